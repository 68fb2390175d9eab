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

# The key changes with every version and every line of the program.
key=$(cat ./go.mod ./go.sum ./*.go build.sh ../go.mod ../go.sum | sha256sum | cut -c1-12)
bin=${APPBRIDGE_KNATIVE_BIN:-${XDG_CACHE_HOME:-$HOME/.cache}/appbridge/knative-$(go env GOOS)-$(go env GOARCH)-$key}
if [ "${1:-}" = --print ]; then
	echo "$bin"
	exit 0
fi
mkdir -p "$bin"
export CGO_ENABLED=0 GOWORK=off

# Two clones may build into the same folder: one after the other.
if command -v flock >/dev/null; then
	exec 9>"$bin/.lock"
	flock 9
fi

# build NAME FOLDER PACKAGE [LDFLAGS]
build() {
	local name=$1 folder=$2 pkg=$3 ldflags="-s -w ${4:-}" total started=$SECONDS
	[ ! -x "$bin/$name" ] || return 0
	echo "$name: downloading its modules" >&2
	total=$(go list -C "$folder" -deps "$pkg" | wc -l)
	echo "$name: compiling up to $total packages (minutes the first time, nothing after that)" >&2
	# -v names each package as it is compiled; anything with a colon is a complaint.
	go build -C "$folder" -trimpath -buildvcs=false -v -ldflags "$ldflags" -o "$bin/.$name" "$pkg" 2>&1 |
		awk -v name="$name" -v total="$total" '
			/[: ]/ { print; next }
			++n % 100 == 0 { printf "%s: %d of at most %d packages\n", name, n, total; fflush() }
		' >&2
	mv "$bin/.$name" "$bin/$name"
	echo "$name: built in $((SECONDS - started)) s" >&2
}

# copy MODULE FOLDER NAME: the YAML files of a folder of a module, below config/NAME.
copy() {
	local dir
	dir=$(go list -m -f '{{.Dir}}' "$1")
	[ -n "$dir" ] || { echo "build.sh: $1 is not downloaded" >&2; exit 1; }
	mkdir -p "$bin/.config/$3"
	cp "$dir/$2"/*.yaml "$bin/.config/$3/"
}

build knative . .
build kube-controller-manager .. k8s.io/kubernetes/cmd/kube-controller-manager \
	"-X k8s.io/component-base/version.gitVersion=$(go list -C .. -m -f '{{.Version}}' k8s.io/kubernetes)"
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
