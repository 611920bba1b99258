# Sourced by the scripts at the root: where things are, and how they speak.

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

cores=$(nproc)
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/graft
model_file=$cache/models/SmolLM2-135M-Instruct.Q4_1.gguf

# Where ccache is installed, another checkout of the same sources finds what this one compiled.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1

say() { printf '== %s\n' "$*"; }
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# The cargo to build with: the first on PATH that is new enough, else Debian's own.
rust_minimum=1.88
find_cargo() {
  local candidate version
  for candidate in "$(command -v cargo || true)" "${HOME:-/root}/.cargo/bin/cargo" /usr/bin/cargo; do
    [ -n "$candidate" ] && [ -x "$candidate" ] || continue
    version=$("$candidate" --version 2>/dev/null | awk '{print $2}') || continue
    if [ "$(printf '%s\n%s\n' "$rust_minimum" "$version" | sort -V | head -n 1)" = "$rust_minimum" ]; then
      printf '%s\n' "$candidate"
      return 0
    fi
  done
  return 1
}

# configure FOLDER [cmake options]: quick when nothing changed.
configure() {
  local folder=$1
  shift
  local cargo
  cargo=$(find_cargo) || fail "no cargo of version $rust_minimum or newer; run scripts/setup.sh"
  # rustc must be cargo's own.
  PATH=$(dirname "$cargo"):$PATH cmake -S . -B "$folder" -G Ninja -DGRAFT_CARGO="$cargo" \
    -DGRAFT_RUST_TARGET="$root/build/rust" "$@" > "$folder.log" 2>&1 || {
    cat "$folder.log" >&2
    fail "cmake failed in $folder"
  }
  rm -f "$folder.log"
}

# compile FOLDER [targets]
compile() {
  local folder=$1 cargo
  shift
  cargo=$(find_cargo)
  PATH=$(dirname "$cargo"):$PATH cmake --build "$folder" -j "$cores" -- "$@"
}
