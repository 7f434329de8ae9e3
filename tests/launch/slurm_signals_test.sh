#!/usr/bin/env bash
# slurm_signals_test.sh HALFLIFE (inside with_slurm.sh): checks that ranks save once and at the same
# step, whichever way and however often they receive a stop request.
set -uo pipefail
# shellcheck source=tests/launch/slurm_run.sh
source "$(dirname "${BASH_SOURCE[0]}")/slurm_run.sh" "$1"
make_dataset

# shellcheck disable=SC2317  # wait_until calls it
trains_or_ended() { has_trained "$1" || has_ended "$job"; }
# signalled RUN LAUNCHER [SCANCEL OPTION]...: starts a run that does not end by itself, and signals
# it while it trains. On a busy machine, ranks of Open MPI 4.1 that srun starts sometimes crash
# while they connect, so a failed start is repeated once.
signalled() {
  local run=$1 launcher=$2 start
  shift 2
  for start in first second; do
    LAUNCHER=$launcher MAX_RESTARTS=0 submit "$run" -- --set train.steps=1000000
    wait_until "$run trains" trains_or_ended "$run"
    if has_trained "$run"; then break; fi
    echo "the $start start of $run failed: $(tail -n 1 "$run.log")"
    rm -rf "$run" "$run.log"
  done
  scancel "$@" "$job"
  wait_for_end "$job"
}

for launcher in mpirun srun; do
  signalled "batch_$launcher" $launcher --batch --signal=USR1
  check "$launcher: USR1 to the batch script" "75 2 1" "$(outcome "batch_$launcher")" "batch_$launcher"
  signalled "steps_$launcher" $launcher --signal=USR1
  check "$launcher: USR1 to the steps" "75 2 1" "$(outcome "steps_$launcher")" "steps_$launcher"
  signalled "full_$launcher" $launcher --full --signal=USR1
  check "$launcher: USR1 to all" "75 2 1" "$(outcome "full_$launcher")" "full_$launcher"
  signalled "cancel_$launcher" $launcher
  # The exit code is not checked, because mpirun also receives TERM and then returns 1.
  check "$launcher: cancelled" "2 1" "$(outcome "cancel_$launcher" | cut -d ' ' -f 2-)" "cancel_$launcher"
  check "$launcher: the cancelled job is not requeued" CANCELLED "$(job_field "$job" JobState)"
done

exit $((failures > 0))
