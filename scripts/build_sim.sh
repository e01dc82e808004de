#!/usr/bin/env bash
# Builds the simulated accelerator (tests/sim) in build/sim: libcuda.so.1 and libcufile.so.0, for tests in Python.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

log=build/logs/build-sim.log
mkdir -p build/logs
if ! { cmake -S tests/sim -B build/sim -G Ninja && cmake --build build/sim -j "$(nproc)"; } >"$log" 2>&1; then
  tail -n 40 "$log" >&2
  echo "[build] FAILED: the simulated accelerator; the whole output is in $log" >&2
  exit 1
fi
