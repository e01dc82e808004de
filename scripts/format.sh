#!/usr/bin/env bash
# Formats C++ and Python in place; with --check only says what would change, and fails if anything would.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

clang_format=(-i)
ruff_format=()
if [ "${1:-}" = --check ]; then
  clang_format=(--dry-run -Werror)
  ruff_format=(--check)
fi

status=0
find include src cli python/bindings bench/native examples fuzz -name '*.h' -print0 -o -name '*.cc' -print0 2>/dev/null |
  xargs -0 clang-format "${clang_format[@]}" || status=1
.venv/bin/ruff format --quiet "${ruff_format[@]}" . || status=1
exit $status
