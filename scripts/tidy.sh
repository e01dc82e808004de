#!/usr/bin/env bash
# Runs clang-tidy (see .clang-tidy) over the sources of the release build. Slow: minutes on a small machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find src cli -name '*.cc' -not -name '*_test.cc' -not -path 'src/testing/*' -print0 |
  xargs -0 -n 1 -P "$(nproc)" \
  clang-tidy -p build/release --quiet --warnings-as-errors='*' --extra-arg=-Wno-unknown-warning-option
