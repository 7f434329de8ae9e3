#!/usr/bin/env bash
# slurm_restarts_test.sh HALFLIFE (inside with_slurm.sh): checks that launch/slurm/train.sbatch
# requeues its job until the run is finished, and stops if a restart would not help.
set -uo pipefail
# shellcheck source=tests/launch/slurm_run.sh
source "$(dirname "${BASH_SOURCE[0]}")/slurm_run.sh" "$1"
make_dataset
make_undisturbed

for launcher in mpirun srun; do
  run=two_attempts_$launcher
  LAUNCHER=$launcher submit "$run"
  pause_until_asked "$run" scancel --batch --signal=USR1 "$job"
  wait_for_run "$job" "$run"
  check "$launcher, two attempts: ends" "COMPLETED 0" "$(ending "$job")" "$run"
  check "$launcher, two attempts: one restart" 1 "$(job_field "$job" Restarts)"
  steps_made=$(attempts "$run")
  check "$launcher, two attempts: the second continues where the first stopped" yes \
    "$([[ $steps_made =~ ^0\>([0-9]+)\ ([0-9]+)\>150$ && ${BASH_REMATCH[1]} = "${BASH_REMATCH[2]}" ]] && echo yes)" "$run"
  check "$launcher, two attempts: DONE" "step 150" "$(<"$run/DONE")"
  check_undisturbed "$launcher, two attempts" "$run"
done

run=two_attempts_srun
submit "$run"
wait_for_end "$job"
check "a finished run: ends at once" "COMPLETED 0 150>150" \
  "$(ending "$job") $(attempts "$run" | cut -d ' ' -f 3)" "$run"
submit "$run" -- --set train.steps=160 --allow-change train.steps
wait_for_end "$job"
check "a finished run can be extended" "COMPLETED 0 step 160" "$(ending "$job") $(<"$run/DONE")" "$run"

run=crashes
HL_FAULT=train.step:kill:65:1 submit "$run" -- --set ckpt.every=50 --set ckpt.background=false
wait_for_run "$job" "$run"
check "crashes with new checkpoints between them" "COMPLETED 0 0>50 50>100 100>150" \
  "$(ending "$job") $(attempts "$run")" "$run"
check_undisturbed "crashes" "$run"

# Resumes from step 100 and is requeued afterwards. The requeued job must not begin at step 100
# again. The first attempt stops itself in the middle of its 50 steps, and the second one makes
# fewer steps.
run=goes_back
cp -r crashes "$run"
rm "$run/DONE" "$run/metrics.jsonl"
HL_FAULT=train.step:stop:30:0 submit "$run" -- --resume step=100
wait_until "$run stops in the middle" has_stopped "$job"
scancel --batch --signal=USR1 "$job"
wait_until "$run is asked to save" was_asked "$run"
continue_run "$job"
wait_for_run "$job" "$run"
steps_made=$(attempts "$run")
check "--resume step=100, requeued: continues where it stopped" yes \
  "$([[ $steps_made =~ ^150\>(1[0-4][0-9])\ ([0-9]+)\>150$ && ${BASH_REMATCH[1]} = "${BASH_REMATCH[2]}" ]] && echo yes)" "$run"
check_undisturbed "--resume step=100, requeued" "$run"

for launcher in mpirun srun; do
  run=breaker_$launcher
  HL_FAULT=train.step:kill:3:1 LAUNCHER=$launcher submit "$run"
  wait_for_run "$job" "$run"
  check "$launcher, no new checkpoint: given up after three attempts" "FAILED 1 0>0 0>0 0>0" \
    "$(ending "$job") $(attempts "$run")" "$run"
  check "$launcher, no new checkpoint: HALT has the reason" \
    "exit 137, and 3 attempts without a checkpoint after step 0" "$(<"$run/HALT")"
done
submit "$run"
wait_for_end "$job"
check "a halted run: later jobs end at once" "FAILED 1 1" "$(ending "$job") $(count ': halted: exit 137' "$run.log")" "$run"

# A launcher that ends at once, with FAKE_CODE.
mkdir bin
cat >bin/mpirun <<'END'
#!/bin/sh
exit "$FAKE_CODE"
END
chmod +x bin/mpirun
fake() {
  FAKE_CODE=$1 PATH=$work/bin:$PATH submit "${@:2}"
  jobs[$1]=$job
}
jobs=()
for code in 2 3 4 73 76; do fake $code "final_$code"; done
fake 0 nothing_done
for code in 2 3 4 73 76; do
  wait_for_run "${jobs[code]}" "final_$code"
  check "exit $code: halted in the first attempt" "FAILED $code 0>0" \
    "$(ending "${jobs[code]}") $(attempts "final_$code")" "final_$code"
done
wait_for_run "${jobs[0]}" nothing_done
check "exit 0 without DONE is a failure" "FAILED 1 0>0 0>0 0>0" \
  "$(ending "${jobs[0]}") $(attempts nothing_done)" nothing_done
MAX_RESTARTS=1 fake 75 limit
wait_for_run "$job" limit
check "restart limit" "FAILED 1 0>0 0>0" "$(ending "$job") $(attempts limit)" limit

run=twice
submit "$run" -- --set train.steps=1000000
first=$job
wait_until "$run trains" has_trained "$run"
submit "$run" --output=second.log -- --set train.steps=1000000
wait_for_end "$job"
check "submitted twice: the second ends, the run is not halted" "FAILED 4 no" \
  "$(ending "$job") $([ -e $run/HALT ] && echo yes || echo no)" second
scancel "$first"
wait_for_end "$first"

exit $((failures > 0))
