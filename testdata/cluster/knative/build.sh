#!/usr/bin/env bash
# Builds what a cluster with Knative needs besides the servers of ../build.sh: the
# program of this folder and kube-controller-manager, and copies Knative's definitions
# and config maps out of its modules. All of it goes to a folder of its own beside that
# of ../build.sh, so that a change here rebuilds no API server. The last line of standard
# output is that folder; progress goes to standard error.
#
#   build.sh            build what is missing
#   build.sh --print    only print the folder
#
#   APPBRIDGE_KNATIVE_BIN   use this folder instead of one below the user's cache
set -euo pipefail
cd "$(dirname "$0")"

. ../lib.sh

# The key changes with every version and every line of the program.
key=$(cat ./go.mod ./go.sum ./*.go build.sh ../go.mod ../go.sum ../lib.sh | hash)
bin=${APPBRIDGE_KNATIVE_BIN:-$cache/knative-$platform-$key}
if [ "${1:-}" = --print ]; then
	echo "$bin"
	exit 0
fi
lock "$bin"

# copy MODULE FOLDER NAME: the YAML files of a folder of a module, below config/NAME.
copy() {
	local dir
	dir=$(go list -m -f '{{.Dir}}' "$1")
	[ -n "$dir" ] || { echo "build.sh: $1 is not downloaded" >&2; exit 1; }
	mkdir -p "$bin/.config/$3"
	cp "$dir/$2"/*.yaml "$bin/.config/$3/"
}

build "$bin" knative "$(cat go.mod go.sum ./*.go | hash)" go.mod .
build "$bin" kube-controller-manager "$(cat ../go.mod ../go.sum | hash)" ../go.mod k8s.io/kubernetes/cmd/kube-controller-manager \
	"-X k8s.io/component-base/version.gitVersion=$(version ../go.mod k8s.io/kubernetes)"
if [ ! -d "$bin/config" ]; then
	rm -rf "$bin/.config"
	copy knative.dev/serving config/core/300-resources serving
	copy knative.dev/networking config networking
	copy knative.dev/caching config caching
	copy knative.dev/serving config/core/configmaps configmaps
	copy knative.dev/serving config/core/webhooks webhooks
	# The module's files are read-only.
	chmod -R u+w "$bin/.config"
	mv "$bin/.config" "$bin/config"
fi

echo "$bin"
