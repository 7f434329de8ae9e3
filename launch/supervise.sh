# shellcheck shell=bash
# Supervises a run: starts it, has it save when it is to stop, and judges whether to start it
# again; each start is an attempt. Shared by mpirun/run.sh and slurm/train.sbatch, which source it
# after common.sh. What runs in the script itself, which has traps, uses capture in place of $(...).

run_folder=''        # of the command, '' where it names none
launcher=''          # process id of mpirun or srun, while it runs
stop=''              # the last signal that asked us to stop
num_asked=0          # how often this attempt was to be asked to save; the first time counts
code=0               # of the attempt that ended
heartbeat_before=''  # version_of before this attempt
done_before=''       # likewise
num_stuck=0          # attempts in a row that left no new checkpoint
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

# Sets step to the number in ckpt/LATEST, "step_000000001200 <hash>"; 0 without one.
read_latest_step() {
  local name=''
  if [ -n "$run_folder" ]; then read -r name _ 2>/dev/null <"$run_folder/ckpt/LATEST" || true; fi
  step=0
  if [[ $name =~ ^step_([0-9]+)$ ]]; then step=$((10#${BASH_REMATCH[1]})); fi
}

# Changes whenever the trainer writes file $1 of the run's folder anew, which it does by rename.
version_of() {
  if [ -n "$run_folder" ]; then stat -c '%i %.9Y' "$run_folder/$1" 2>/dev/null || true; fi
}

# go_on_since VERSION: the launch line of an attempt after the first, when ckpt/LATEST was as VERSION.
# `--resume step=N` and `path=DIR` say where a run begins, and `none` that it begins: they would undo
# what the attempts before have saved. A load that goes back, and every save, writes LATEST anew;
# until then the run is where it was, and the request stands.
go_on_since() {
  local i version
  capture version version_of ckpt/LATEST || true
  if [ "$version" = "$1" ]; then return 0; fi
  for i in "${!launch[@]}"; do
    case ${launch[i]} in
      --resume) if [ $((i + 1)) -lt ${#launch[@]} ]; then launch[i + 1]=auto; fi ;;
      --resume=*) launch[i]=--resume=auto ;;
    esac
  done
}

# The launchers forward USR1, but a rank that has no handler for it yet would die of it. Rank 0
# writes its first heartbeat when all ranks have theirs.
ranks_are_ready() { [ "$(version_of heartbeat.json)" != "$heartbeat_before" ]; }

# Whether USR1 would be forwarded: a launcher that has ended its ranks may have no handler any more.
launcher_hears() { kill -0 "$launcher" 2>/dev/null; }

# What a script may have done in its own way.
start_asking() { ask_ranks_to_save & }  # in the background, so that a second signal is heard
on_late_stop() { ask_once; }            # a request to stop came while the launcher started
on_attempt_end() { :; }                 # the launcher has ended; code and launcher are set

ask_ranks_to_save() {
  local begin=$SECONDS ready=yes
  # a signal to our whole process group is answered by the script, and must not end this request
  trap '' HUP TERM USR1
  until ranks_are_ready; do
    kill -0 "$launcher" 2>/dev/null || return 0
    if [ $((SECONDS - begin)) -ge "$seconds_to_start" ]; then ready=no && break; fi
    sleep 0.1
  done
  if [ "$ready" = no ] || launcher_hears; then kill -USR1 "$launcher" 2>/dev/null || true; fi
}

# Asks the ranks of this attempt once, however often it is called: a launcher or a rank that is
# ending may have given up its handler, and would die of another USR1 with its work done. The count
# is one command, so that a trap which runs in the midst of another counts on.
ask_once() {
  if ((num_asked++ == 0)); then start_asking; fi
}

# What a trap calls. mpirun answers TERM by killing the ranks within seconds, srun at once: whatever
# the reason to stop, they are passed USR1.
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
  # `|| true`: a signal to the process group of the script ends the child, but the attempt goes on
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

# Sets verdict on the attempt that ended, and num_stuck:
#   finished   the trainer wrote DONE in this attempt. A launcher's 0 alone proves nothing: srun
#              gives it for a step that never started.
#   again      a new attempt may get further
#   final      the same would happen again, or a user stopped it
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
