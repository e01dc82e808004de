#!/usr/bin/env bash
# Sourced by the other scripts: long steps that show they are alive, and how compilers are called.

# Precompiled headers are cached only if ccache may trust their time stamps and macros.
export CCACHE_SLOPPINESS=pch_defines,time_macros
if command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi
# The Python package has the sources and flags of the release build. That ccache sees it, the compiler has one name in both
# (g++ and c++ are two), and paths count from the build's folder.
export CXX=${CXX:-c++} CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1

# drop_old_precompiled_headers BUILD: those that are older than a header. Where one is there, ccache's preprocessor reads
# it instead of the headers, and what another checkout made of other headers is taken for the new one.
drop_old_precompiled_headers() {
  local precompiled
  while read -r precompiled; do
    if [ -n "$(find include src cli python -name '*.h' -newer "$precompiled" -print -quit)" ]; then
      rm -f "$precompiled"
    fi
  done < <(find "$1" -name '*.gch' 2>/dev/null)
}

# watch_log LABEL LOG: says every now and then what the last line of a log is: on a terminal in one line that is written
# over, in a pipe every ten seconds. Ends with the script.
watch_log() {
  local label=$1 log=$2 seconds=0 last
  while sleep 1 && kill -0 $$ 2>/dev/null; do
    seconds=$((seconds + 1))
    last=$(tail -c 400 "$log" 2>/dev/null | tr '\r' '\n' | tail -n 1 | cut -c 1-60)
    if [ -t 1 ]; then
      printf '\r\033[K%s %d s: %s' "$label" "$seconds" "$last"
    elif [ $((seconds % 10)) -eq 0 ]; then
      printf '%s %d s: %s\n' "$label" "$seconds" "$last"
    fi
  done
}

# with_progress LABEL LOG COMMAND...: runs the command with its output in the log while a watcher reports. It is the watcher
# that runs in the background, because a background command would ignore Ctrl-C. The status is the command's.
with_progress() {
  local label=$1 log=$2 watcher status=0
  shift 2
  : >"$log"
  watch_log "$label" "$log" &
  watcher=$!
  "$@" >"$log" 2>&1 || status=$?
  kill "$watcher" 2>/dev/null || true
  wait "$watcher" 2>/dev/null || true
  if [ -t 1 ]; then printf '\r\033[K'; fi
  return $status
}
