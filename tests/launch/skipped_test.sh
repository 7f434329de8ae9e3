#!/usr/bin/env bash
# Tests the report of skipped tests that tests/run prints, on a log of ctest. Also checks that every
# GTEST_SKIP has a reason.
set -uo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/launch/checks.sh
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
cd "$repo" || exit 1

mkdir -p "$work/Testing/Temporary"
cat >"$work/Testing/Temporary/LastTest.log" <<'LOG'
Start testing: Nov 22 12:00 UTC
----------------------------------------------------------
1/4 Testing: walk_tsan_forward
[ RUN      ] Walk.Short
tests/walk_test.cc:7: Skipped
adds no kernel

[  SKIPPED ] Walk.Short (0 ms)
[ RUN      ] Walk.Long
tests/walk_test.cc:9: Skipped
adds no kernel

[  SKIPPED ] Walk.Long (12 ms)
[ RUN      ] Walk.Bare
tests/walk_test.cc:11: Skipped


[  SKIPPED ] Walk.Bare (0 ms)
[  SKIPPED ] 3 tests, listed below:
[  SKIPPED ] Walk.Short
2/4 Testing: walk_tsan_reverse
[ RUN      ] Walk.Short
tests/walk_test.cc:7: Skipped
adds no kernel

[  SKIPPED ] Walk.Short (0 ms)
3/4 Testing: step_gpu_test
[ RUN      ] Mixers/StepGpu.Agrees/0
tests/step_gpu_test.cc:51: Skipped
no GPU:
driver not found

a line of the test's own
[  SKIPPED ] Mixers/StepGpu.Agrees/0, where GetParam() = "gla" (3 ms)
[ RUN      ] Mixers/StepGpu.Agrees/1
[       OK ] Mixers/StepGpu.Agrees/1 (3 ms)
4/4 Testing: run_sh_test
SKIPPED: mpirun not found
LOG
check "a line for each reason" "skipped (every test: $work/skipped.txt):
    2  adds no kernel (e.g. Walk.Long)
    1  mpirun not found (run_sh_test)
    1  no GPU: driver not found (Mixers/StepGpu.Agrees/0)
    1  no reason given (Walk.Bare)" "$(tests/support/summarise_skipped.sh "$work")"
check "every test in skipped.txt" "Mixers/StepGpu.Agrees/0: no GPU: driver not found (step_gpu_test)
run_sh_test: mpirun not found
Walk.Bare: no reason given (walk_tsan_forward)
Walk.Long: adds no kernel (walk_tsan_forward)
Walk.Short: adds no kernel (walk_tsan_forward)
Walk.Short: adds no kernel (walk_tsan_reverse)" "$(LC_ALL=C sort -f "$work/skipped.txt")"

echo "1/1 Testing: run_sh_test" >"$work/Testing/Temporary/LastTest.log"
check "nothing skipped" "skipped: nothing" "$(tests/support/summarise_skipped.sh "$work")"
check "nothing skipped: an empty list" "" "$(cat "$work/skipped.txt")"

check "every GTEST_SKIP() has a reason" "" \
  "$(grep -rnE 'GTEST_SKIP\(\) *;' --include='*.cc' --include='*.h' tests)"

exit $((failures > 0))
