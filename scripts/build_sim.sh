#!/usr/bin/env bash
# scripts/build_sim.sh [torch]: builds the simulated accelerator (tests/sim) in build/sim: libcuda.so.1 and
# libcufile.so.0, for tests in Python. With "torch" also the backend of torch over them, libpenstock_sim_torch.so, which
# takes some seconds when its sources have changed. Several may run at once: they take turns.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

log=build/logs/build-sim.log
mkdir -p build/logs build/sim
exec 9>build/sim/.lock
flock 9

build_libraries() {
  cmake -S tests/sim -B build/sim -G Ninja && cmake --build build/sim -j "$(nproc)"
}

# As cmake, this is called where a failure does not end the script.
build_torch() {
  local backend=build/sim/libpenstock_sim_torch.so python=${PYTHON:-.venv/bin/python}
  [[ -e $backend && -z $(find tests/sim/torch tests/sim/sim.h "$0" -newer "$backend" -name '*.[ch]*' -print -quit) ]] && return
  local torch source object objects=() compiler=(c++)
  torch=$("$python" -c 'import importlib.util as u, os; print(os.path.dirname(u.find_spec("torch").origin))') || return
  command -v ccache >/dev/null && compiler=(ccache c++)
  for source in tests/sim/torch/*.cc; do
    object=build/sim/torch_$(basename "$source" .cc).o
    "${compiler[@]}" -std=c++20 -O1 -fPIC -fvisibility=hidden -Wall -Wextra -Werror -isystem "$torch/include" \
      -isystem "$torch/include/torch/csrc/api/include" -c "$source" -o "$object" || return
    objects+=("$object")
  done
  c++ -shared "${objects[@]}" -o "$backend.new" -Lbuild/sim -l:libcuda.so.1 -L"$torch/lib" -lc10 -ltorch_cpu \
    "-Wl,-rpath,\$ORIGIN" "-Wl,-rpath,$torch/lib" && mv "$backend.new" "$backend"
}

if ! { build_libraries && if [ "${1:-}" = torch ]; then build_torch; fi; } >"$log" 2>&1; then
  tail -n 40 "$log" >&2
  echo "[build] FAILED: the simulated accelerator; the whole output is in $log" >&2
  exit 1
fi
