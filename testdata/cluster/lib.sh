# What build.sh and knative/build.sh share; they source it. A program is built once for each content
# of its module files and its flags, into a store below the user's cache folder, and linked from
# there into a folder with the names that its users know. So a change of one program, or of these
# scripts, builds no other program again.

cache=${XDG_CACHE_HOME:-$HOME/.cache}/appbridge
platform=$(go env GOOS)-$(go env GOARCH)
store=$cache/bin-$platform
# As make builds everything else: then Go compiles a package once for all of them.
export CGO_ENABLED=0 GOWORK=off
flags=(-trimpath -buildvcs=false)

# hash: the first characters of the checksum of standard input.
hash() { sha256sum | cut -c1-12; }

# version MODFILE MODULE
version() { go list -modfile="$1" -m -f '{{.Version}}' "$2"; }

# lock DIR: two clones may build into the same folder: one after the other.
lock() {
	mkdir -p "$1"
	if command -v flock >/dev/null; then
		exec 9>"$1/.lock"
		flock 9
	fi
}

# build BIN NAME KEY MODFILE PACKAGE [LDFLAGS [TAGS]]: KEY names all that the program is built of
# besides these arguments.
build() {
	local bin=$1 name=$2 mod=$4 pkg=$5 ldflags="-s -w ${6:-}" tags=${7:-} total started=$SECONDS built
	[ ! -x "$bin/$name" ] || return 0
	built=$store/$name-$(echo "$3 $pkg $ldflags $tags ${flags[*]}" | hash)
	if [ ! -x "$built" ]; then
		mkdir -p "$store"
		echo "$name: downloading its modules" >&2
		total=$(go list -modfile="$mod" -tags="$tags" -deps "$pkg" | wc -l)
		echo "$name: compiling up to $total packages (minutes the first time, nothing after that)" >&2
		# -v names each package as it is compiled; anything with a colon is a complaint.
		go build -modfile="$mod" -tags="$tags" "${flags[@]}" -v -ldflags "$ldflags" -o "$built.$$" "$pkg" 2>&1 |
			awk -v name="$name" -v total="$total" '
				/[: ]/ { print; next }
				++n % 100 == 0 { printf "%s: %d of at most %d packages\n", name, n, total; fflush() }
			' >&2
		mv "$built.$$" "$built"
		echo "$name: built in $((SECONDS - started)) s" >&2
	fi
	# A folder on another file system gets a copy.
	ln -f "$built" "$bin/$name" 2>/dev/null || cp -f "$built" "$bin/$name"
}
