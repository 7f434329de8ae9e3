# shellcheck shell=bash
# Functions for tiny runs of the real program under a private Slurm. slurm_*_test.sh source this
# file inside tests/support/with_slurm.sh, with the path of halflife as the first argument.
export HALFLIFE=$1
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export HALFLIFE_ROOT=$repo OMP_NUM_THREADS=1
batch_script=$repo/launch/slurm/train.sbatch
# shellcheck source=tests/launch/checks.sh
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
wait_limit=240
cd "$work" || exit 1

count() { cat "${@:2}" 2>/dev/null | grep -cE "$1"; }

# Prints sentences from which a small model learns. They are always the same.
make_text() {
  awk 'BEGIN {
    srand(7)
    n = split("the river carried a small boat past old stone walls while birds sang and rain fell", w)
    for (i = 1; i <= 12000; i++) printf "%s%s", w[int(rand() * n) + 1], rand() < 0.1 ? ".\n\n" : " "
  }'
}
make_dataset() {
  make_text >text.txt
  "$HALFLIFE" prepare --input text.txt --documents blank_lines --tokenizer bytes --out data \
    --validation-fraction 0.2 >prepare.log 2>&1 || { cat prepare.log && exit 1; }
  cat >recipe.textproto <<'RECIPE'
data { path: "data" seq_len: 64 }
model {
  model_dim: 32 num_layers: 2 channel_mixer { swiglu { width: 64 } }
  mixer { gla { num_heads: 2 } }
}
optimizer { lr: 3e-3 clip_norm: 1.0 }
schedule { kind: "cosine" warmup_steps: 5 }
train { steps: 150 global_batch: 8 micro_batch: 4 seed: 7 threads: 1 device: "cpu" log_every: 50 }
eval { windows: 4 }
ckpt { every: 0 }
RECIPE
}

# The result of an undisturbed run: 2 ranks without Slurm.
make_undisturbed() {
  mpirun -n 2 --oversubscribe --bind-to none "$HALFLIFE" train --config recipe.textproto \
    --run undisturbed >undisturbed.log 2>&1 || { cat undisturbed.log && exit 1; }
}
# check_undisturbed NAME RUN: checks that weights and optimizer state have the same bits.
check_undisturbed() {
  "$HALFLIFE" ckpt diff undisturbed "$2" --bitwise >diff.log 2>&1
  check "$1: the bits of an undisturbed run" 0 $? "$2"
}

# submit RUN [SBATCH OPTION]... [-- TRAIN ARGUMENT...]: submits a job on two nodes with one rank
# each. Sets job.
# shellcheck disable=SC2034  # the caller uses job
submit() {
  local run=$1 options=()
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1") && shift; done
  if [ $# -gt 0 ]; then shift; fi
  # The jobs of a test share the nodes.
  job=$(sbatch --parsable --nodes=2 --ntasks-per-node=1 --oversubscribe --output="$run.log" \
    "${options[@]}" \
    "$batch_script" --config recipe.textproto --run "$run" "$@")
}

job_field() { scontrol --oneliner show job "$1" | grep -oE "(^| )$2=[^ ]*" | cut -d = -f 2-; }

# Slurm delays a requeued job by two minutes. This function reduces the delay to three seconds. It
# cannot be zero, because nodes refuse a job in the second in which they ended its previous attempt.
shorten_requeue_delay() {
  local start
  if [ "$(job_field "$1" JobState)" = PENDING ] && [ "$(job_field "$1" Restarts)" != 0 ]; then
    start=$(date -d "$(job_field "$1" StartTime)" +%s 2>/dev/null) || return 0
    if [ $((start - $(date +%s))) -gt 10 ]; then scontrol update JobId="$1" StartTime=now+3; fi
  fi
}
has_ended() {
  shorten_requeue_delay "$1"
  case $(job_field "$1" JobState) in
    COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL | PREEMPTED) ;;
    *) return 1 ;;
  esac
}
# Each question to Slurm starts several processes, so they are asked rarely.
wait_for_end() {
  local wait_pause=0.3
  wait_until "job $1 ends" has_ended "$1"
}
# Prints the state and exit code of a job that has ended, for example "COMPLETED 0".
ending() { echo "$(job_field "$1" JobState) $(job_field "$1" ExitCode | cut -d : -f 1)"; }
# is_over JOB RUN: whether the job has ended. Between two attempts, its state may briefly look
# final, but its log does not.
is_over() {
  shorten_requeue_delay "$1"
  [ -e "$2/DONE" ] || [ -e "$2/HALT" ] || grep -qs 'giving up' "$2.log"
}
wait_for_run() {
  local wait_pause=0.3
  wait_until "$2 is finished or given up" is_over "$1" "$2"
  wait_for_end "$1"
}
# Prints the steps of each attempt in the job log of a run, for example "0>57 57>150".
attempts() { sed -nE 's/.*: exit .*step ([0-9]+) -> ([0-9]+)$/\1>\2/p' "$1.log" | paste -sd ' '; }

# Prints the number of steps that all attempts of RUN have made so far.
num_steps() { count '"loss"' "$1/metrics.jsonl"; }
has_trained() { [ "$(num_steps "$1")" -ge "${2:-5}" ]; }

# Prints the ids of processes with VARIABLE=VALUE in their environment. (If nodes are isolated, the
# ids that a run records belong to another namespace.)
processes_with() { grep -lzsxF "$1" /proc/[0-9]*/environ | cut -d / -f 3; }
is_gone() { [ -z "$(processes_with "SLURM_JOB_ID=$1")" ]; }
rank_zero() {
  comm -12 <(processes_with "SLURM_JOB_ID=$1" | sort) <(processes_with PMIX_RANK=0 | sort)
}

# pause RUN JOB [STEPS]: stops the run in the middle, so that the following events do not depend on
# the speed of this machine. Rank 0 is stopped after some steps, and the others wait for it in a
# collective.
pause() {
  local pid
  wait_until "$1 trains" has_trained "$1" 1 || return 1
  pid=$(rank_zero "$2")
  wait_until "$1 trains" has_trained "$1" "${3:-5}" || return 1
  kill -STOP "$pid"
}
# has_stopped JOB: whether rank 0 has stopped itself (HL_FAULT=train.step:stop:STEPS:0). For runs
# that could finish before `pause` has seen their first steps.
has_stopped() {
  local pid
  pid=$(rank_zero "$1")
  [ -n "$pid" ] && grep -qs '^State:[[:space:]]*T' "/proc/$pid/status"
}
continue_run() { kill -CONT "$(rank_zero "$1")"; }

# Whether launch/slurm/train.sbatch has received the warning. A paused run may then continue.
was_asked() { [ "$(count 'asking the ranks to save' "$1.log")" -ge 1 ]; }
# pause_until_asked RUN COMMAND...: pauses the last submitted job, runs COMMAND, which leads to the
# warning, and lets the job continue.
pause_until_asked() {
  pause "$1" "$job" || return 1
  "${@:2}"
  wait_until "$1 is asked to save" was_asked "$1"
  continue_run "$job"
}

# Prints the exit code, the number of ranks that stopped at the step in ckpt/LATEST, and the number
# of published checkpoints, for example "75 2 1".
outcome() {
  local run=$1 code step
  code=$(sed -nE 's/.*: exit ([0-9]+)( after [A-Z0-9]+)?, step.*/\1/p' "$run.log" | head -n 1)
  step=$(cut -d ' ' -f 1 "$run/ckpt/LATEST" | sed -E 's/step_0*//')
  echo "$code $(count "stopped after step $step of" "$run"/logs/r*.log)" \
    "$(find "$run/ckpt" -name 'step_*' | wc -l)"
}
