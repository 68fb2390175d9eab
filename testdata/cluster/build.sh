#!/usr/bin/env bash
# Builds kube-apiserver, kubectl, etcd, kwok, the nats CLI and a jq, at the
# versions named in this folder's *.mod files, promtool, at that of .ci/promtool.mod,
# and nats-server, at the version that the module at the top embeds, into a cache
# folder that all clones share. The last line of standard output is that folder;
# progress goes to standard error.
#
#   build.sh            build what is missing
#   build.sh NAME...    build only these, for example etcd kube-apiserver nats
#   build.sh --print    only print the folder
#
# Older servers, for make compat-test, are built only by name: nats-server-2.11.0 from
# nats-server-2.11.0.mod, and so on; and so is stern, for make bench-logs.
#
#   APPBRIDGE_CLUSTER_BIN   use this folder instead of one below the user's cache
set -euo pipefail
cd "$(dirname "$0")"
. ./lib.sh

# The key changes with every version, so an upgrade never finds old binaries.
server=$(awk '{ sub(/^require /, ""); sub(/^[ \t]+/, "") } /^github\.com\/nats-io\/nats-server\/v2 / { print $1, $2 }' ../../go.mod)
[ -n "$server" ] || { echo "build.sh: ../../go.mod does not require nats-server" >&2; exit 1; }
key=$( (cat ./*.mod ./*.sum ../../.ci/promtool.mod ../../.ci/promtool.sum build.sh lib.sh; echo "$server") | hash)
bin=${APPBRIDGE_CLUSTER_BIN:-$cache/cluster-$platform-$key}
if [ "${1:-}" = --print ]; then
	echo "$bin"
	exit 0
fi

names=(etcd nats nats-server kube-apiserver kubectl jq kwok promtool)
older=(nats-server-*.mod)
older=("${older[@]%.mod}")
byname=("${older[@]}" stern)
[ $# -gt 0 ] || set -- "${names[@]}"
for name; do
	[[ " ${names[*]} ${byname[*]} " == *" $name "* ]] || { echo "build.sh: no $name: want ${names[*]} ${byname[*]}" >&2; exit 2; }
done
wanted=" $* "
lock "$bin"

# program NAME MODFILE PACKAGE [LDFLAGS [TAGS]]: builds a program if it is wanted.
program() {
	[[ "$wanted" == *" $1 "* ]] || return 0
	build "$bin" "$1" "$(cat "$2" "${2%.mod}.sum" | hash)" "${@:2}"
}

program etcd go.mod go.etcd.io/etcd/server/v3
program nats nats.mod github.com/nats-io/natscli/nats "-X main.version=$(version nats.mod github.com/nats-io/natscli)"
program nats-server ../../go.mod github.com/nats-io/nats-server/v2
for name in "${older[@]}"; do
	program "$name" "$name.mod" github.com/nats-io/nats-server/v2
done
kubernetes="-X k8s.io/component-base/version.gitVersion=$(version go.mod k8s.io/kubernetes)"
program kube-apiserver go.mod k8s.io/kubernetes/cmd/kube-apiserver "$kubernetes"
program kubectl go.mod k8s.io/kubernetes/cmd/kubectl "$kubernetes"
program jq gojq.mod github.com/itchyny/gojq/cmd/gojq
program kwok kwok.mod sigs.k8s.io/kwok/cmd/kwok
program stern stern.mod github.com/stern/stern
# Without the clients of every cloud, some of which the module proxy does not have.
program promtool ../../.ci/promtool.mod github.com/prometheus/prometheus/cmd/promtool "" remove_all_sd

echo "$bin"
