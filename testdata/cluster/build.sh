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
#   APPBRIDGE_CLUSTER_BIN   use this folder instead of one below the user's cache
set -euo pipefail
cd "$(dirname "$0")"

# The key changes with every version, so an upgrade never finds old binaries.
server=$(awk '{ sub(/^require /, ""); sub(/^[ \t]+/, "") } /^github\.com\/nats-io\/nats-server\/v2 / { print $1, $2 }' ../../go.mod)
[ -n "$server" ] || { echo "build.sh: ../../go.mod does not require nats-server" >&2; exit 1; }
key=$( (cat ./*.mod ./*.sum ../../.ci/promtool.mod ../../.ci/promtool.sum build.sh; echo "$server") | sha256sum | cut -c1-12)
bin=${APPBRIDGE_CLUSTER_BIN:-${XDG_CACHE_HOME:-$HOME/.cache}/appbridge/cluster-$(go env GOOS)-$(go env GOARCH)-$key}
if [ "${1:-}" = --print ]; then
	echo "$bin"
	exit 0
fi
mkdir -p "$bin"
export CGO_ENABLED=0 GOWORK=off

version() { go list -modfile="$1" -m -f '{{.Version}}' "$2"; }

names=(etcd nats nats-server kube-apiserver kubectl jq kwok promtool)
[ $# -gt 0 ] || set -- "${names[@]}"
for name; do
	[[ " ${names[*]} " == *" $name "* ]] || { echo "build.sh: no $name: want ${names[*]}" >&2; exit 2; }
done
wanted=" $* "

# build NAME MODFILE PACKAGE [LDFLAGS [TAGS]]
build() {
	local name=$1 mod=$2 pkg=$3 ldflags="-s -w ${4:-}" tags=${5:-} total started=$SECONDS
	[[ "$wanted" != *" $name "* || -x "$bin/$name" ]] && return 0
	echo "$name: downloading its modules" >&2
	total=$(go list -modfile="$mod" -tags="$tags" -deps "$pkg" | wc -l)
	echo "$name: compiling up to $total packages (minutes the first time, nothing after that)" >&2
	# -v names each package as it is compiled; anything with a colon is a complaint.
	go build -modfile="$mod" -tags="$tags" -trimpath -buildvcs=false -v -ldflags "$ldflags" -o "$bin/.$name" "$pkg" 2>&1 |
		awk -v name="$name" -v total="$total" '
			/[: ]/ { print; next }
			++n % 100 == 0 { printf "%s: %d of at most %d packages\n", name, n, total; fflush() }
		' >&2
	mv "$bin/.$name" "$bin/$name"
	echo "$name: built in $((SECONDS - started)) s" >&2
}

# Two clones may build into the same folder: one after the other.
if command -v flock >/dev/null; then
	exec 9>"$bin/.lock"
	flock 9
fi

build etcd go.mod go.etcd.io/etcd/server/v3
build nats nats.mod github.com/nats-io/natscli/nats "-X main.version=$(version nats.mod github.com/nats-io/natscli)"
build nats-server ../../go.mod github.com/nats-io/nats-server/v2
kubernetes="-X k8s.io/component-base/version.gitVersion=$(version go.mod k8s.io/kubernetes)"
build kube-apiserver go.mod k8s.io/kubernetes/cmd/kube-apiserver "$kubernetes"
build kubectl go.mod k8s.io/kubernetes/cmd/kubectl "$kubernetes"
build jq gojq.mod github.com/itchyny/gojq/cmd/gojq
build kwok kwok.mod sigs.k8s.io/kwok/cmd/kwok
# Without the clients of every cloud, some of which the module proxy does not have.
build promtool ../../.ci/promtool.mod github.com/prometheus/prometheus/cmd/promtool "" remove_all_sd

echo "$bin"
