# shellcheck shell=bash
# The lives of a run: start it, have it save when it is to stop, and judge whether to start it
# again. Shared by mpirun/run.sh and slurm/train.sbatch; sourced after common.sh.

run_folder=''        # of the command, '' where it names none
launcher=''          # process id of mpirun or srun, while it runs
stop=''              # the last signal that asked us to stop
interrupted=no       # a trap has run since the last `wait`
code=0               # of the life that ended
num_stuck=0          # lives in a row that left no new checkpoint
max_stuck=3          # so many, and another one is not worth it
seconds_to_start=60  # after that a rank without a handler for USR1 is taken to have none

# The folder that the words of a `halflife train` command name.
find_run_folder() {
  while [ $# -gt 0 ]; do
    case $1 in
      --run) run_folder=${2:-} ;;
      --run=*) run_folder=${1#--run=} ;;
    esac
    shift
  done
}

# The number in ckpt/LATEST, "step_000000001200 <hash>"; 0 without one.
latest_step() {
  local name=''
  if [ -n "$run_folder" ]; then read -r name _ 2>/dev/null <"$run_folder/ckpt/LATEST" || true; fi
  if [[ $name =~ ^step_([0-9]+)$ ]]; then echo $((10#${BASH_REMATCH[1]})); else echo 0; fi
}

# Changes whenever the trainer writes file $1 of the run's folder anew, which it does by rename.
version_of() {
  if [ -n "$run_folder" ]; then stat -c '%i %.9Y' "$run_folder/$1" 2>/dev/null || true; fi
}

# The launchers forward USR1, but a rank that has no handler for it yet would die of it. Rank 0
# writes its first heartbeat when all ranks have theirs.
ranks_are_ready() { [ "$(version_of heartbeat.json)" != "$heartbeat_before" ]; }

# Called in the background, so that a second signal is heard meanwhile.
ask_ranks_to_save() {
  local begin=$SECONDS
  until ranks_are_ready || [ $((SECONDS - begin)) -ge "$seconds_to_start" ]; do
    kill -0 "$launcher" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -USR1 "$launcher" 2>/dev/null || true
}

# What a trap calls. mpirun answers TERM by killing the ranks within seconds, srun at once: whatever
# the reason to stop, they are passed USR1.
on_stop_signal() {
  interrupted=yes
  stop=$1
  warn "asking the ranks to save and stop"
  if [ -n "$launcher" ]; then ask_ranks_to_save & fi
}

# run_life COMMAND...: sets code, step_before and step_after.
run_life() {
  step_before=$(latest_step)
  heartbeat_before=$(version_of heartbeat.json)
  done_before=$(version_of DONE)
  "$@" &
  launcher=$!
  if [ -n "$stop" ]; then ask_ranks_to_save & fi
  while :; do
    interrupted=no code=0
    wait "$launcher" || code=$?
    # else a trap cut the wait short, and code is the signal's
    if [ "$interrupted" = no ]; then break; fi
  done
  launcher=''
  step_after=$(latest_step)
}

# Sets verdict on the life that ended, and num_stuck:
#   finished   the trainer wrote DONE in this life. A launcher's 0 alone proves nothing: srun gives it
#              for a step that never started.
#   again      a new life may get further
#   final      the same would happen again, or a user stopped it
#   stuck      too many lives in a row without a new checkpoint
judge_life() {
  verdict=again
  if [ -z "$run_folder" ]; then
    if [ "$code" -eq 0 ]; then verdict=finished; fi
  elif [ "$(version_of DONE)" != "$done_before" ] && [ -e "$run_folder/DONE" ]; then
    verdict=finished
  fi
  if [ "$verdict" = finished ]; then return 0; fi
  # command line, data, environment, numbers not finite, no usable checkpoint; stopped by the user
  case $code in 2 | 3 | 4 | 73 | 76 | 130) verdict=final && return 0 ;; esac
  # without a folder to look into, exit 75 (saved, wants to go on) is taken at its word
  if [ "$step_after" -gt "$step_before" ] || [ "$run_folder,$code" = ,75 ]; then
    num_stuck=0
  else
    num_stuck=$((num_stuck + 1))
  fi
  if [ "$num_stuck" -ge "$max_stuck" ]; then verdict=stuck; fi
}
