#!/usr/bin/env bash
# slurm_sweep_test.sh HALFLIFE (inside with_slurm.sh): runs a sweep as a job array. One of its tasks
# is warned, saves and is requeued. The runs must have the bits of undisturbed runs.
set -uo pipefail
# shellcheck source=tests/launch/slurm_run.sh
source "$(dirname "${BASH_SOURCE[0]}")/slurm_run.sh" "$1"
make_dataset
cat >sweep.textproto <<'SWEEP'
recipe: "recipe.textproto"
axis { field: "model.mixer" value: ["gla", "retention"] }
axis { field: "train.seed" value: ["1", "2"] }
summary { over: "seed" }
SWEEP
"$HALFLIFE" sweep --config sweep.textproto --out undisturbed >undisturbed.log 2>&1 ||
  { cat undisturbed.log && exit 1; }

job=$(sbatch --parsable --array=0-1 --output=%a.log "$repo/launch/slurm/sweep.sbatch" \
  --config sweep.textproto --out swept --jobs 1)
first='swept/runs/mixer=gla,seed=1'
wait_until "a run trains" has_trained "$first" 3
scancel --batch --signal=USR1 "${job}_0"
# shellcheck disable=SC2317  # wait_until calls them
was_requeued() { [ "$(count 'share 0/2: exit 75 after USR1' 0.log)" -ge 1 ]; }
wait_until "task 0 saves" was_requeued
# shellcheck disable=SC2317
both_ended() {
  has_ended "${job}_0" && has_ended "${job}_1" && [ "$(count 'share 0/2: exit' 0.log)" -ge 2 ]
}
wait_until "both tasks end" both_ended

check "task 0, two attempts" "share 0/2: exit 75 after USR1 share 0/2: exit 0" \
  "$(grep -oE 'share 0/2: exit.*' 0.log | paste -sd ' ')"
check "task 1" "share 1/2: exit 0" "$(grep -oE 'share 1/2: exit.*' 1.log)"
check "all runs are finished" 4 "$(count ',finished,0,' swept/results.csv)"
for run in undisturbed/runs/*; do
  "$HALFLIFE" ckpt diff "$run" "swept/runs/${run##*/}" --bitwise >diff.log 2>&1
  check "the bits of ${run##*/}" 0 $?
done

exit $((failures > 0))
