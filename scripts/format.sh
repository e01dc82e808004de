#!/usr/bin/env bash
# Formats C++ and Python in place; with --check only names what would change, and fails if anything would.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cpp_files() {
  find include src cli python/bindings bench/native examples fuzz tests \( -name '*.h' -o -name '*.cc' \) -print0
}

python_folders=(bench examples fuzz python scripts tests)

if [ "${1:-}" = --check ]; then
  status=0
  # shellcheck disable=SC2016  # $1 belongs to the inner shell
  cpp_files | xargs -0 -n 1 -P "$(nproc)" sh -c '
    clang-format --dry-run -Werror "$1" 2>/dev/null || { echo "Would reformat: $1"; exit 1; }' sh || status=1
  .venv/bin/ruff format --check --quiet --exclude '*.md' "${python_folders[@]}" || status=1
  exit $status
fi
cpp_files | xargs -0 clang-format -i
.venv/bin/ruff format --exclude '*.md' "${python_folders[@]}"
