# shellcheck shell=bash
# Shared by shell tests, which source it: a temporary folder, and checks that count failures and
# continue.
#
#   source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
#   check "a bad number: exit 2" 2 $?
#   exit $((failures > 0))
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
shown_log=''   # a failed check prints this file, if it exists
wait_limit=60    # time limit of wait_until in seconds; the machine may be busy
wait_pause=0.05  # seconds between the attempts of wait_until

# check NAME EXPECTED ACTUAL [RUN]: compares two texts. A failure prints RUN.log, or otherwise
# $shown_log.
check() {
  local log=${4:+$4.log}
  log=${log:-$shown_log}
  if [ "$2" = "$3" ]; then
    echo "ok      $1"
    return 0
  fi
  echo "FAILED  $1: expected '$2', got '$3'"
  if [ -f "$log" ]; then sed 's/^/        | /' "$log"; fi
  failures=$((failures + 1))
}

# wait_until NAME COMMAND...: repeats COMMAND until it succeeds.
wait_until() {
  local name=$1 begin=$SECONDS
  shift
  until "$@"; do
    if [ $((SECONDS - begin)) -ge "$wait_limit" ]; then
      echo "FAILED  $name: timed out after $wait_limit s"
      failures=$((failures + 1))
      return 1
    fi
    sleep "$wait_pause"
  done
}
