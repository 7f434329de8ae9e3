#!/usr/bin/env bash
# Checks that every script parses, passes shellcheck (if it is installed), and refuses unknown
# arguments with exit code 2.
set -uo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$repo" || exit 1
scripts=(launch/setup launch/quickstart launch/mpirun/run.sh launch/slurm/train.sbatch launch/slurm/sweep.sbatch tests/run .ci/run
  tests/support/*.sh tests/launch/*_test.sh tests/launch/fake_rank.sh)
sourced=(launch/common.sh launch/supervise.sh tests/launch/slurm_run.sh
  tests/launch/fake_run.sh)
failures=0
fail() {
  echo "FAILED  $*"
  failures=$((failures + 1))
}

for script in "${scripts[@]}"; do
  [ -x "$script" ] || fail "$script is not executable"
  bash -n "$script" || fail "$script does not parse"
done
if command -v shellcheck >/dev/null; then
  shellcheck -x "${scripts[@]}" "${sourced[@]}" || fail "shellcheck"
else
  echo "SKIPPED: shellcheck not found (Debian: shellcheck)"
fi

# Slurm sends CONT with its warning. A trap for CONT would delay bash's trap for the warning.
if grep -nE '^ *trap .*CONT' "${scripts[@]}" "${sourced[@]}"; then fail "a trap for CONT"; fi

for script in launch/setup launch/quickstart launch/mpirun/run.sh tests/run; do
  message=$("$script" --no-such-option 2>&1)
  code=$?
  if [ "$code" -ne 2 ] || [[ $message != *"unknown argument '--no-such-option'"* ]]; then
    fail "$script --no-such-option: exit $code, '$message'"
  fi
  message=$("$script" --help 2>&1)
  code=$?
  if [ "$code" -ne 0 ] || [[ $message != "$script"* ]]; then fail "$script --help: exit $code, '$message'"; fi
done
message=$(launch/quickstart /no/such/text 2>&1)
code=$?
if [ "$code" -ne 3 ] || [[ $message != *"cannot read '/no/such/text'"* ]]; then fail "quickstart: exit $code, '$message'"; fi
message=$(tests/run --label nonsense 2>&1)
code=$?
if [ "$code" -ne 2 ] || [[ $message != *"unknown label 'nonsense'. Use unit, emulated, sanitized, mpi, slurm, gpu or e2e."* ]]; then
  fail "tests/run --label nonsense: exit $code, '$message'"
fi

# array_task CODE OUTPUT SETTING...: runs a task of a job array of sweeps with a program that prints
# its arguments. Checks the exit code and the output.
array_task() {
  local expected_code=$1 words=$2
  shift 2
  message=$(env HALFLIFE=/bin/echo HALFLIFE_ROOT="$repo" "$@" bash launch/slurm/sweep.sbatch --config x 2>&1)
  code=$?
  if [ "$code" -ne "$expected_code" ] || [[ $message != *"$words"* ]]; then
    fail "sweep.sbatch of $*: exit $code, '$message'"
  fi
}
array_of() {  # ID MIN MAX COUNT
  echo "SLURM_ARRAY_TASK_ID=$1 SLURM_ARRAY_TASK_MIN=$2 SLURM_ARRAY_TASK_MAX=$3 SLURM_ARRAY_TASK_COUNT=$4"
}
# shellcheck disable=SC2046  # array_of prints several words
{
  array_task 0 "sweep --config x --share 2/8" $(array_of 2 0 7 8)
  array_task 2 "the array is not 0 to N" $(array_of 3 3 3 1)
  array_task 2 "the array is not 0 to N" $(array_of 3 1 8 8)
  array_task 0 "sweep --config x --share 3/8" $(array_of 3 3 3 1) SHARES=8
}

[ "$failures" -eq 0 ] && echo "ok      ${#scripts[@]} scripts"
exit $((failures > 0))
