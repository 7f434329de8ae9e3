# shellcheck shell=bash
# Supervises a run: starts it, asks it to save when it must stop, and decides whether to start it
# again. Each start is an attempt. mpirun/run.sh and slurm/train.sbatch source this file after
# common.sh. Code that runs in the script itself, which has traps, uses capture instead of $(...).

run_folder=''        # --run of the command, or ''
launcher=''          # process id of mpirun or srun while it runs
stop=''              # the last signal that requested a stop
num_asked=0          # requests to save in this attempt; only the first one is passed on
code=0               # exit code of the last attempt
heartbeat_before=''  # version_of heartbeat.json before this attempt
done_before=''       # version_of DONE before this attempt
num_stuck=0          # attempts in a row without a new checkpoint
max_stuck=3          # limit of num_stuck
seconds_to_start=60  # a rank without a handler for USR1 after this time is assumed to have none

# Sets run_folder to the --run option of a `halflife train` command.
find_run_folder() {
  while [ $# -gt 0 ]; do
    case $1 in
      --run) run_folder=${2:-} ;;
      --run=*) run_folder=${1#--run=} ;;
    esac
    shift
  done
}

# Sets step to the number in ckpt/LATEST, "step_000000001200 <hash>", or to 0 if there is none.
read_latest_step() {
  local name=''
  if [ -n "$run_folder" ]; then read -r name _ 2>/dev/null <"$run_folder/ckpt/LATEST" || true; fi
  step=0
  if [[ $name =~ ^step_([0-9]+)$ ]]; then step=$((10#${BASH_REMATCH[1]})); fi
}

# Prints a text that changes whenever the trainer replaces file $1 of the run's folder (by rename).
version_of() {
  if [ -n "$run_folder" ]; then stat -c '%i %.9Y' "$run_folder/$1" 2>/dev/null || true; fi
}

# Prints a word for each checkpoint of the run, which changes when the checkpoint is written again.
saved_steps() {
  local step manifests=()
  if [ -z "$run_folder" ]; then return 0; fi
  for step in "$run_folder"/ckpt/step_*; do
    # Skips damaged steps, which the trainer has renamed to *.bad.
    if [[ ${step##*/} != *.* ]]; then manifests+=("$step/manifest.pb"); fi
  done
  stat -c '%i:%.9Y' "${manifests[@]}" 2>/dev/null | tr '\n' ' '
}

# continue_from_newest SAVED: changes the launch line for an attempt after the first. SAVED is
# saved_steps before the first attempt. `--resume step=N`, `path=DIR` and `none` set where a run
# begins, so repeating them would discard what earlier attempts saved. If nothing was saved, the
# option is kept. --skip-data is dropped with it: the checkpoint that the first attempt saves at
# once contains it.
continue_from_newest() {
  local i saved step is_new=no changed=()
  capture saved saved_steps || true
  for step in $saved; do
    if [[ " $1 " != *" $step "* ]]; then is_new=yes; fi
  done
  if [ "$is_new" = no ]; then return 0; fi
  for ((i = 0; i < ${#launch[@]}; ++i)); do
    case ${launch[i]} in
      --resume=*) changed+=(--resume=auto) ;;
      --skip-data=*) ;;
      --resume)
        changed+=(--resume)
        if ((++i < ${#launch[@]})); then changed+=(auto); fi
        ;;
      --skip-data) i=$((i + 1)) ;;
      *) changed+=("${launch[i]}") ;;
    esac
  done
  launch=("${changed[@]}")
}

# Whether all ranks handle USR1. The launchers forward USR1, and it would end a rank that has no
# handler yet. Rank 0 writes its first heartbeat after all ranks have installed theirs.
ranks_are_ready() { [ "$(version_of heartbeat.json)" != "$heartbeat_before" ]; }

# Whether the launcher would forward USR1. After it has ended its ranks, it may have no handler.
launcher_catches_usr1() { kill -0 "$launcher" 2>/dev/null; }

# Functions that a script may override.
start_asking() { ask_ranks_to_save & }  # in the background, so that a second signal is handled
on_late_stop() { ask_once; }            # a request to stop arrived while the launcher started
on_attempt_end() { :; }                 # the launcher has ended; code and launcher are set

ask_ranks_to_save() {
  local begin=$SECONDS ready=yes
  # The script itself handles signals to its process group; they must not end this request.
  trap '' HUP TERM USR1
  until ranks_are_ready; do
    kill -0 "$launcher" 2>/dev/null || return 0
    if [ $((SECONDS - begin)) -ge "$seconds_to_start" ]; then ready=no && break; fi
    sleep 0.1
  done
  if [ "$ready" = no ] || launcher_catches_usr1; then kill -USR1 "$launcher" 2>/dev/null || true; fi
}

# Asks the ranks of this attempt to save, only at the first call. A launcher or a rank that is
# ending may have removed its handler, and another USR1 would end it although its work is done. The
# count is read and increased by one command, because a trap may interrupt another trap.
ask_once() {
  if ((num_asked++ == 0)); then start_asking; fi
}

# Called by traps. On TERM, mpirun kills the ranks within seconds and srun at once, so the launcher
# receives USR1 for every kind of stop request.
on_stop_signal() {
  # shellcheck disable=SC2034  # await_child reads it
  interrupted=yes
  stop=$1
  warn "asking the ranks to save and stop"
  if [ -n "$launcher" ]; then ask_once; fi
}

# run_attempt COMMAND...: sets code, step_before and step_after.
run_attempt() {
  local step
  read_latest_step
  step_before=$step
  # `|| true`: a signal to the script's process group may end the child of capture; the attempt
  # continues.
  capture heartbeat_before version_of heartbeat.json || true
  capture done_before version_of DONE || true
  num_asked=0
  "$@" &
  launcher=$!
  if [ -n "$stop" ]; then on_late_stop; fi
  await_child "$launcher"
  on_attempt_end
  launcher=''
  read_latest_step
  step_after=$step
}

# Sets verdict for the last attempt, and num_stuck:
#   finished   the trainer wrote DONE in this attempt. The launcher's exit code 0 is not sufficient:
#              srun also returns it for a step that never started.
#   again      another attempt may make progress
#   final      another attempt would fail in the same way, or a user stopped the run
#   stuck      too many attempts in a row without a new checkpoint
judge_attempt() {
  local done_after
  verdict=again
  if [ -z "$run_folder" ]; then
    if [ "$code" -eq 0 ]; then verdict=finished; fi
  else
    capture done_after version_of DONE || true
    if [ "$done_after" != "$done_before" ] && [ -e "$run_folder/DONE" ]; then verdict=finished; fi
  fi
  if [ "$verdict" = finished ]; then return 0; fi
  # command line, data, environment, non-finite values, no usable checkpoint, stopped by the user
  case $code in 2 | 3 | 4 | 73 | 76 | 130) verdict=final && return 0 ;; esac
  # Without a run folder, exit code 75 (saved, to be continued) counts as progress.
  if [ "$step_after" -gt "$step_before" ] || [ "$run_folder,$code" = ,75 ]; then
    num_stuck=0
  else
    num_stuck=$((num_stuck + 1))
  fi
  if [ "$num_stuck" -ge "$max_stuck" ]; then verdict=stuck; fi
}
