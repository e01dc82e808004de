#!/usr/bin/env bash
# scripts/build_native.sh PRESET [TARGET...]: configures and builds a preset of CMakePresets.json in build/PRESET.
# Says how far it is; the whole output is in build/logs/build-PRESET.log.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=$1
shift
log=build/logs/build-$preset.log
mkdir -p build/logs
# shellcheck source=scripts/progress.sh
source scripts/progress.sh

build() {
  cmake --preset "$preset" && cmake --build --preset "$preset" -j "$(nproc)" ${1:+--target "$@"}
}

echo "[build] $preset"
drop_old_precompiled_headers "build/$preset"
if ! with_progress "[build] $preset" "$log" build "$@"; then
  { grep -E -A4 'error: |undefined reference|CMake Error' "$log" || tail -n 40 "$log"; } | cut -c 1-240 | tail -n 60 >&2
  echo "[build] FAILED: preset $preset; the whole output is in $log" >&2
  exit 1
fi
