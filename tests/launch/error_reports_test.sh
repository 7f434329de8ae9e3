#!/usr/bin/env bash
# error_reports_test.sh HALFLIFE: tests the output of several ranks of the real program that end
# with an error, or save and stop. An error of all ranks must be printed once, an error of a single
# rank must be printed, and under run.sh mpirun must print nothing. Exit 77: mpirun is missing.
set -uo pipefail
halflife=$1
# shellcheck source=tests/launch/fake_run.sh
source "$(dirname "${BASH_SOURCE[0]}")/fake_run.sh"
allow_root=(env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1)

new_case errors
seq 1 2000 | sed 's/$/ green bottles on the wall/; G' >"$folder/text.txt"
"$halflife" prepare --input "$folder/text.txt" --tokenizer bytes --out "$folder/data" >"$folder/log" 2>&1
check "a dataset: exit 0" 0 $?
cat >"$folder/recipe.textproto" <<'RECIPE'
data { seq_len: 64 }
model {
  model_dim: 32 num_layers: 2 channel_mixer { swiglu { width: 64 } }
  mixer { gla { num_heads: 2 } }
}
train { steps: 4 global_batch: 4 micro_batch: 1 threads: 1 log_every: 1 }
eval { windows: 2 }
RECIPE
train=("$halflife" train --config "$folder/recipe.textproto" --set "data.path=$folder/data" --run)

# once NAME CODE PATTERN COMMAND...: on 2 ranks COMMAND ends with CODE and prints one line with
# [error], which comes from rank 0 and matches PATTERN, both with mpirun and with run.sh. Under
# run.sh mpirun itself prints nothing.
once() {
  local name=$1 code=$2 pattern=$3
  shift 3
  "${allow_root[@]}" mpirun --oversubscribe --bind-to none -n 2 "$@" >"$folder/log" 2>&1
  check "$name, mpirun: exit code, errors, matching errors" "$code 1 1" \
    "$? $(grep -c '\[error\]' "$folder/log") $(grep -c "r0/2\] \[error\] .*$pattern" "$folder/log")"
  bash "$run_sh" --ranks 2 -- "$@" >"$folder/log" 2>&1
  check "$name, run.sh: exit code, errors, matching errors" "$code 1 1" \
    "$? $(grep -c '\[error\]' "$folder/log") $(grep -c "r0/2\] \[error\] .*$pattern" "$folder/log")"
  check "$name, run.sh: no messages of mpirun" 0 "$(grep -ciE 'primary job|mpirun|MPI_ABORT|ORTE|^---' "$folder/log")"
}
once "a mistyped subcommand" 2 "did you mean 'train'" "$halflife" trian
once "a mistyped option" 2 "did you mean 'steps'" "${train[@]}" "$folder/new" --set train.stepss=3
once "sizes that do not fit the ranks" 2 "invalid values" "${train[@]}" "$folder/new" --set train.global_batch=7
once "no dataset" 3 "there is no dataset" "${train[@]}" "$folder/new" --set "data.path=$folder/nothing"

bash "$run_sh" --ranks 2 -- "${train[@]}" "$folder/run" >"$folder/log" 2>&1
check "a run that is finished: exit 0" 0 $?
once "a recipe that does not fit its run" 2 "does not fit this run" "${train[@]}" "$folder/run" --set model.model_dim=64

# Ranks of one job with different command lines.
"${allow_root[@]}" mpirun --oversubscribe --bind-to none -n 1 "${train[@]}" "$folder/new" : -n 1 "$halflife" trian >"$folder/log" 2>&1
check "an error of only rank 1 is reported" "2 1" "$? $(grep -c "r1/2\] \[error\] .*did you mean 'train'" "$folder/log")"

# stop NAME SIGNAL CODE: signals run.sh while the ranks train.
stop() {
  start -- "${train[@]}" "$folder/$1" --set train.steps=1000000 --set log.level=warn
  wait_for "$folder/$1/heartbeat.json"
  kill "-$2" "$pid"
  end
  check "$1: exit $3" "$3" "$code"
  # mpirun prints its line when it forwards the signal.
  check "$1: mpirun prints nothing" "run.sh: asking the ranks to save and stop" \
    "$(grep -vx 'mpirun: Forwarding signal 10 to job' "$folder/log")"
}
stop ctrl_c INT 130
stop terminated TERM 75
exit $((failures > 0))
