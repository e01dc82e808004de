#!/usr/bin/env bash
# Builds the Python package with its native command and installs both. Does nothing when no source has changed.
#
#   scripts/install_package.sh         in .venv
#   scripts/install_package.sh vllm    in .venv-vllm, which has the same Python
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

environment=.venv${1:+-$1}
log=build/logs/install-package${1:+-$1}.log
stamp=$environment/package-stamp
wheels=build/package
mkdir -p build/logs
# shellcheck source=scripts/progress.sh
source scripts/progress.sh

fingerprint() {
  find CMakeLists.txt cmake cli include python src pyproject.toml -type f \
    -not -name '*.pyc' -not -name '*_test.cc' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum
}

# The tests set PENSTOCK_WARNINGS_AS_ERRORS to ON: then the flags are those of the release preset, and ccache serves both.
install_package() {
  rm -rf "$wheels"
  .venv/bin/python -m pip wheel --verbose --no-build-isolation --no-deps --wheel-dir "$wheels" \
    --config-settings=build-dir=build/python \
    --config-settings=cmake.define.PENSTOCK_WARNINGS_AS_ERRORS="${PENSTOCK_WARNINGS_AS_ERRORS:-OFF}" . &&
    "$environment/bin/python" -m pip install --no-deps --force-reinstall "$wheels"/penstock-*.whl
}

wanted=$(fingerprint)
if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && [ -x "$environment/bin/penstock" ]; then
  echo "[build] python package${1:+ in $environment}: up to date"
  exit 0
fi
echo "[build] python package${1:+ in $environment} (the first time takes a minute or two)"
rm -f "$stamp"
drop_old_precompiled_headers build/python
if ! with_progress "[build] python package" "$log" install_package; then
  tail -n 40 "$log" >&2
  echo "[build] FAILED: python package; the whole output is in $log" >&2
  exit 1
fi
printf '%s\n' "$wanted" >"$stamp"
