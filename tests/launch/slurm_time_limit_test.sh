#!/usr/bin/env bash
# slurm_time_limit_test.sh HALFLIFE (inside with_slurm.sh): checks that a run that exceeds its time
# limit is warned, saves, is requeued, and continues to the same bits. Slurm checks limits every
# 30 s, so this test takes about one and a half minutes.
set -uo pipefail
# shellcheck source=tests/launch/slurm_run.sh
source "$(dirname "${BASH_SOURCE[0]}")/slurm_run.sh" "$1"
make_dataset
make_undisturbed

run=limited
submit $run --time=2 --signal=B:USR1@60
pause_until_asked $run
wait_for_run "$job" $run
check "finished in two attempts" "COMPLETED 0 2" "$(ending "$job") $(attempts $run | wc -w)" $run
check "the first was warned, and saved" 1 "$(count ': exit 75 after USR1' $run.log)" $run
check_undisturbed "time limit" $run

exit $((failures > 0))
