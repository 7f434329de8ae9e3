# shellcheck shell=bash
# Shared by shell tests: a temporary folder, and checks that count failures and continue. Sourced.
#
#   source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
#   check "a bad number: exit 2" 2 $?
#   exit $((failures > 0))
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
shown_log=''  # what a failed check shows, where it is there
patience=60   # seconds that wait_until tries for, as the machine may be busy

# check NAME EXPECTED ACTUAL [RUN]: a failure shows RUN.log, or else $shown_log.
check() {
  local log=${4:+$4.log}
  log=${log:-$shown_log}
  if [ "$2" = "$3" ]; then
    echo "ok      $1"
    return 0
  fi
  echo "FAILED  $1: wanted '$2', met '$3'"
  if [ -f "$log" ]; then sed 's/^/        | /' "$log"; fi
  failures=$((failures + 1))
}

# wait_until NAME COMMAND...
wait_until() {
  local name=$1 begin=$SECONDS
  shift
  until "$@"; do
    if [ $((SECONDS - begin)) -ge "$patience" ]; then
      echo "FAILED  $name: not within $patience s"
      failures=$((failures + 1))
      return 1
    fi
    sleep 0.02
  done
}
