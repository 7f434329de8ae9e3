#!/usr/bin/env bash
# slurm_preempt_test.sh HALFLIFE (inside with_slurm.sh): checks that a preempted job saves, waits
# until the nodes are free, and continues to the same bits.
set -uo pipefail
# shellcheck source=tests/launch/slurm_run.sh
source "$(dirname "${BASH_SOURCE[0]}")/slurm_run.sh" "$1"
make_dataset
make_undisturbed

submit_urgent() { urgent=$(sbatch --parsable --partition=urgent --nodes=2 --exclusive --output=/dev/null --wrap 'sleep 1'); }
# Whether Slurm has begun to preempt a job. This happens up to a second after the urgent job was
# submitted. Slurm then signals the steps of the preempted job.
# shellcheck disable=SC2317  # wait_until calls it
is_preempted() { [ "$(job_field "$1" PreemptTime)" != None ]; }
check_finished() {
  wait_for_run "$job" "$2"
  check "$1: finished" "COMPLETED 0" "$(ending "$job")" "$2"
  check "$1: the urgent job ran" "COMPLETED 0" "$(ending "$urgent")" "$2"
  check "$1: two attempts" 2 "$(attempts "$2" | wc -w)" "$2"
  check_undisturbed "$1" "$2"
}

run=warned
submit $run --exclusive
pause_until_asked $run submit_urgent
check_finished "preempted" $run

# If a site does not send --signal before preemption, the ranks receive TERM and the script nothing.
grep -v '^#SBATCH --signal' "$batch_script" >unwarned.sbatch
batch_script=$work/unwarned.sbatch
run=unwarned
submit $run --exclusive
pause $run "$job" && submit_urgent && wait_until "$run is preempted" is_preempted "$job"
continue_run "$job"
check_finished "preempted without a warning" $run

exit $((failures > 0))
