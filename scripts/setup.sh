#!/usr/bin/env bash
# Prepares what building, testing and measuring need: Debian packages and Python environments.
# Safe to run again: what is there already is left alone, and then nothing touches the network.
#
#   scripts/setup.sh           packages and .venv (build, tests, demo)
#   scripts/setup.sh build     only what building and the demo need of them, in half the time
#   scripts/setup.sh bench     also .venv-bench, the released peers that bench/ races against
#   scripts/setup.sh deepspeed also .venv-deepspeed, DeepSpeed, with the package
#   scripts/setup.sh vllm      also .venv-vllm, vLLM and SGLang, with the package: 3.5 GB
#   scripts/setup.sh docs      .venv-docs alone, which makes the site of docs/
#
# PYTHON names the interpreter the environments are made with (default: python3, at least 3.10).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck source=scripts/progress.sh
source scripts/progress.sh

python=${PYTHON:-python3}
logs=build/logs
scope=$([ "${1:-}" = build ] && echo build || echo all)
mkdir -p "$logs"

say() { printf '[setup] %s\n' "$*"; }
fail() {
  printf '[setup] FAILED: %s\n' "$*" >&2
  exit 1
}

# logged NAME COMMAND...: runs quietly, keeps the output in a log, and shows the end of it on failure.
logged() {
  local name=$1 log="$logs/setup-$1.log"
  shift
  if ! with_progress "[setup] $name" "$log" "$@"; then
    tail -n 15 "$log" >&2
    fail "$name: \`$*\` did not succeed; the whole output is in $log"
  fi
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    env DEBIAN_FRONTEND=noninteractive "$@"
  else
    sudo env DEBIAN_FRONTEND=noninteractive "$@"
  fi
}

# in_scope FILE: its lines, up to the mark where only the demo is wanted.
in_scope() {
  if [ "$scope" = build ]; then sed '/^# ---- from here on/,$d' "$1"; else cat "$1"; fi
}

# The distribution's own Python comes without venv and headers; one from elsewhere brings both.
wanted_packages() {
  in_scope scripts/packages.txt | sed -e 's/#.*//' -e '/^[[:space:]]*$/d'
  if ! command -v "$python" >/dev/null || [ "$("$python" -c 'import sys; print(sys.base_prefix)')" = /usr ]; then
    printf '%s\n' python3 python3-venv python3-dev
  fi
}

missing_packages() {
  local package
  while read -r package; do
    dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || printf '%s\n' "$package"
  done < <(wanted_packages)
}

install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian system: the equivalents of scripts/packages.txt must be installed by hand"
    return
  fi
  local missing
  mapfile -t missing < <(missing_packages)
  if [ ${#missing[@]} -eq 0 ]; then
    say "system packages: all there"
    return
  fi
  if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
    fail "these packages are missing and there is no sudo; as root: apt-get install ${missing[*]}"
  fi
  say "system packages: installing ${missing[*]}"
  logged apt-update as_root apt-get update
  logged apt-install as_root apt-get install -y --no-install-recommends "${missing[@]}"
}

check_python() {
  command -v "$python" >/dev/null || fail "$python was not found"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$("$python" --version) is too old: penstock needs Python 3.10 or later (set PYTHON to one)"
}

# make_environment DIRECTORY REQUIREMENTS...: an environment with what the files name, one after the other. A file that says
# so names every package it needs, and nothing else is installed.
make_environment() {
  local directory=$1 name=${1#.} stamp=$1/setup-stamp-$scope requirements version wanted dependencies
  shift
  version=$("$python" -c 'import sys; print(sys.version, sys.base_prefix)')
  wanted=$({ echo "$version"; for requirements in "$@"; do in_scope "$requirements"; done; } | sha256sum)
  if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && "$directory/bin/python" -c '' 2>/dev/null; then
    say "$directory: up to date"
    return
  fi
  rm -f "$stamp"
  if [ "$("$directory/bin/python" -c 'import sys; print(sys.version, sys.base_prefix)' 2>/dev/null)" != "$version" ]; then
    say "$directory: creating the environment ($("$python" --version))"
    logged "$name-create" "$python" -m venv --clear "$directory"
  fi
  for requirements in "$@"; do
    say "$directory: installing $requirements$([[ $requirements == *torch* ]] && echo " (a large download the first time)")"
    in_scope "$requirements" >"$logs/$name-requirements.txt"
    dependencies=()
    if grep -q -e '^#.*installed with --no-deps' "$requirements"; then dependencies=(--no-deps); fi
    logged "$name-packages" "$directory/bin/python" -m pip install "${dependencies[@]}" \
      -r "$logs/$name-requirements.txt"
  done
  printf '%s\n' "$wanted" >"$stamp"
}

case ${1:-} in
  "" | build | bench | vllm | deepspeed) ;;
  docs)
    check_python
    make_environment .venv-docs scripts/requirements-docs.txt
    exit
    ;;
  *) fail "unknown argument '$1' (there are: build, bench, vllm, deepspeed, docs)" ;;
esac
torch=scripts/requirements-torch.txt # first, so that nothing else chooses another one
install_packages
check_python
make_environment .venv "$torch" scripts/requirements-dev.txt
export DS_BUILD_OPS=0 # DeepSpeed compiles its operators when they are first used
case ${1:-} in
  bench | vllm | deepspeed) make_environment ".venv-$1" "$torch" "scripts/requirements-$1.txt" ;;
esac
case ${1:-} in
  vllm | deepspeed) scripts/install_package.sh "$1" ;;
esac
