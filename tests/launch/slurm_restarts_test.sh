#!/usr/bin/env bash
# slurm_restarts_test.sh HALFLIFE (inside with_slurm.sh): launch/slurm/train.sbatch requeues its job
# until the run is finished, and stops where a restart would not help.
set -uo pipefail
# shellcheck source=tests/launch/slurm_run.sh
source "$(dirname "${BASH_SOURCE[0]}")/slurm_run.sh" "$1"

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
  check "exit $code: halted in the first life" "FAILED $code 0>0" \
    "$(ending "${jobs[code]}") $(lives "final_$code")" "final_$code"
done
wait_for_run "${jobs[0]}" nothing_done
check "exit 0 without DONE is a failure" "FAILED 1 0>0 0>0 0>0" \
  "$(ending "${jobs[0]}") $(lives nothing_done)" nothing_done
MAX_RESTARTS=1 fake 75 limit
wait_for_run "$job" limit
check "restart limit" "FAILED 1 0>0 0>0" "$(ending "$job") $(lives limit)" limit

submit nothing_done
wait_for_end "$job"
check "a halted run: later jobs end at once" "FAILED 1 1" \
  "$(ending "$job") $(count ': halted: exit 0, and 3 lives' nothing_done.log)" nothing_done

exit $((failures > 0))
