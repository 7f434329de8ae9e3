#!/usr/bin/env bash
# Tests the functions of launch/common.sh for scripts with traps. A signal at any moment must only
# run the trap.
set -uo pipefail
# shellcheck source=tests/launch/checks.sh
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
common=$(dirname "${BASH_SOURCE[0]}")/../../launch/common.sh

# storm_script NAME COMMANDS: runs a script with a trap that repeats COMMANDS for at least 3 s and
# 10 signals, and sends the signal as fast as possible. Sets code. With $(...) instead of capture,
# the script fails at once.
storm_script() {
  local pid
  bash -euo pipefail -c "source '$common'
    trap 'interrupted=yes num_signals=\$((num_signals + 1))' USR1
    num_signals=0
    : >'$work/$1.ready'
    end=\$((SECONDS + 3))
    while [ \$SECONDS -lt \$end ] || [ \$num_signals -lt 10 ]; do $2; done" \
    >"$work/$1.log" 2>&1 &
  pid=$!
  wait_until "the script of $1 has its trap" [ -e "$work/$1.ready" ]
  while kill -USR1 "$pid" 2>/dev/null; do :; done
  wait "$pid"
  code=$?
}

# shellcheck disable=SC2016  # for the script to expand
storm_script capture '
  capture text printf "%s\n" "two  words" "and a line"
  [ "$text" = $'"'two  words\nand a line'"' ]
  if capture text false; then exit 1; fi
  [ -z "$text" ]'
check "capture under a storm of signals" 0 "$code" "$work/capture"
# shellcheck disable=SC2016  # for the script to expand
storm_script await_child '
  (exit 7) &
  await_child $!
  [ "$code" -eq 7 ]'
check "await_child under a storm of signals" 0 "$code" "$work/await_child"

exit $((failures > 0))
