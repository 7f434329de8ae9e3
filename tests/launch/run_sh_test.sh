#!/usr/bin/env bash
# launch/mpirun/run.sh against ranks that are small shell scripts: exit codes, signals, restarts.
# Exit 77: no mpirun here.
set -uo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
run_sh=$repo/launch/mpirun/run.sh
fake=$repo/tests/launch/fake_rank.sh
unset OMP_NUM_THREADS
command -v mpirun >/dev/null || { echo "SKIPPED: mpirun not found (Debian: openmpi-bin)"; exit 77; }
set -m  # background jobs get their own process group and a default INT, as under a terminal
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# check NAME WANTED MET
check() {
  if [ "$2" = "$3" ]; then
    echo "ok      $1"
  else
    echo "FAILED  $1: wanted '$2', met '$3'"
    [ -f "$folder/log" ] && sed 's/^/        | /' "$folder/log"
    failures=$((failures + 1))
  fi
}
new_case() { folder=$work/$1 && mkdir -p "$folder"; }
wait_for() {
  local i
  for ((i = 0; i < 200; i++)); do
    [ -e "$1" ] && return 0
    sleep 0.05
  done
  echo "FAILED  $1 did not appear"
}
lives() { grep -c life "$folder/notes.0"; }
saves() { cat "$folder"/notes.* | grep -c saved; }

# signalled SIGNAL... -- COMMAND...: run.sh with COMMAND on 2 ranks, signalled once both are ready.
# Sets code.
signalled() {
  local signals=()
  while [ "$1" != -- ]; do signals+=("$1") && shift; done
  shift
  bash "$run_sh" --ranks 2 -- "$@" >"$folder/log" 2>&1 &
  local pid=$! signal
  wait_for "$folder/ready.0"
  wait_for "$folder/ready.1"
  for signal in "${signals[@]}"; do
    kill "-$signal" "$pid"
    sleep 0.5
  done
  wait "$pid"
  code=$?
}

new_case exit_codes
for wanted in 0 3 76; do
  rm -f "$folder"/notes.*
  bash "$run_sh" --ranks 2 -- "$fake" "$folder" exit "$wanted" >"$folder/log" 2>&1
  check "exit $wanted passes through" "$wanted" $?
done
bash "$run_sh" --ranks 2 --threads 3 -- "$fake" "$folder" exit 0 >"$folder/log" 2>&1
check "threads reach the ranks" "rank 1: life, threads 3" "$(tail -n 1 "$folder/notes.1")"

new_case term
signalled TERM -- "$fake" "$folder" save
check "TERM: saved, exit 75" 75 "$code"
check "TERM: every rank saved" 2 "$(saves)"

new_case interrupt
signalled INT -- "$fake" "$folder" save
check "Ctrl-C: saved, exit 130" 130 "$code"
check "Ctrl-C: every rank saved" 2 "$(saves)"

new_case second_interrupt
begin=$SECONDS
signalled INT INT -- "$fake" "$folder" deaf
check "second Ctrl-C ends deaf ranks" yes "$([ "$code" -ne 0 ] && [ $((SECONDS - begin)) -lt 20 ] && echo yes)"

new_case early
bash "$run_sh" --ranks 2 -- "$fake" "$folder" slow-save >"$folder/log" 2>&1 &
pid=$!
wait_for "$folder/notes.1"  # the ranks have started, but have no handler yet
kill -TERM $pid
wait $pid
check "an early TERM is kept until ranks can hear it" 75 $?
check "an early TERM: every rank saved" 2 "$(saves)"

new_case restart
bash "$run_sh" --restart -- "$fake" "$folder" exit 75 75 0 >"$folder/log" 2>&1
check "--restart: exit 0 in the end" 0 $?
check "--restart: three lives" 3 "$(lives)"

new_case no_restart
bash "$run_sh" -- "$fake" "$folder" exit 75 0 >"$folder/log" 2>&1
check "without --restart 75 is returned" 75 $?

new_case hopeless
bash "$run_sh" --restart -- "$fake" "$folder" exit 2 0 >"$folder/log" 2>&1
check "--restart: exit 2 is final" 2 $?

new_case breaker
mkdir -p "$folder/ckpt"
echo step_000000000040 >"$folder/ckpt/LATEST"
bash "$run_sh" --restart -- "$fake" "$folder" exit 75 75 75 75 --run "$folder" >"$folder/log" 2>&1
check "no new checkpoint: gives up" yes "$(grep -q 'giving up: exit 75, and no new checkpoint in 3 lives' "$folder/log" && echo yes)"
check "no new checkpoint: three lives" 3 "$(lives)"

new_case not_done
touch "$folder/DONE"  # of an earlier life
bash "$run_sh" --restart -- "$fake" "$folder" exit 0 0 0 0 --run "$folder" >"$folder/log" 2>&1
check "exit 0, but the run is not finished: gives up" 1 $?
check "exit 0, but the run is not finished: three lives" 3 "$(lives)"

new_case finished
bash "$run_sh" --restart -- "$fake" "$folder" finish --run "$folder" >"$folder/log" 2>&1
check "a finished run: exit 0" 0 $?
check "a finished run: one life" 1 "$(lives)"

new_case limit
bash "$run_sh" --restart --max-restarts 1 -- "$fake" "$folder" exit 75 >"$folder/log" 2>&1
check "--max-restarts: exit 75 in the end" 75 $?
check "--max-restarts: two lives" 2 "$(lives)"

new_case usage
bash "$run_sh" --ranks none -- true >"$folder/log" 2>&1
check "a bad number: exit 2" "2 yes" "$? $(grep -q "wants a number of at least 1, not 'none'" "$folder/log" && echo yes)"
bash "$run_sh" --ranks 2 >"$folder/log" 2>&1
check "no command: exit 2" "2 yes" "$? $(grep -q 'no command to run' "$folder/log" && echo yes)"

exit $((failures > 0))
