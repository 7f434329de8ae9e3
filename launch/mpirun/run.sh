#!/usr/bin/env bash
# launch/mpirun/run.sh [OPTIONS] -- COMMAND [ARGUMENT...]
#
# Runs COMMAND on several ranks under Open MPI's mpirun. A request to stop lets the ranks save
# first:
#
#   launch/mpirun/run.sh --ranks 2 -- halflife train --config RECIPE --run RUN
#   launch/mpirun/run.sh --hosts a:8,b:8 --restart -- halflife train --config RECIPE --run RUN
#
#   --ranks N          processes (default: the slots of --hosts, else 1)
#   --hosts A:N,B:N    machines and the number of processes on each. They are reached by ssh, and
#                      program, dataset and run must have the same paths on all of them. The
#                      variables HALFLIFE_*, NCCL_*, CUBLAS_*, ATEN_*, MKL_* and ONEDNN_* are
#                      exported to them; --mpi-option -x --mpi-option NAME exports another one
#   --threads N        compute threads per rank (default: OMP_NUM_THREADS, else cores / ranks of
#                      this machine). Each rank is bound to its own processors if the ranks use more
#                      than half of this machine and no other machine
#   --restart          start again after exit 75 (saved, to be continued), a crash, or a lost or
#                      hung rank, until COMMAND, a `halflife train`, has finished the run that it
#                      names with --run. Gives up after 3 attempts without a new checkpoint. Once an
#                      attempt has saved, the next one continues from the newest checkpoint
#                      (--resume auto) and ignores --resume
#   --max-restarts N   limit of the restarts (default 50)
#   --mpi-option X     passed to mpirun; may be repeated
#   --grace N          seconds that the ranks have to save if this script was killed; after that
#                      they are ended (default 600)
#
# COMMAND `halflife` that is not in PATH is the program that was built or installed with this script
# ($HALFLIFE overrides it).
#
# TERM, HUP (the terminal was closed; ignored under nohup) and USR1 (the warning of a batch system)
# ask the ranks to save and stop; the exit code is 75: start again to continue. Ctrl-C does the same
# with exit code 130. A second Ctrl-C ends the ranks within seconds, saved or not: exit 130. Further
# signals change nothing. After KILL of this script the ranks also save and stop. No case leaves
# ranks on this machine, or a partial checkpoint.
#
# Exit code: that of COMMAND, for example 75 for its own time limit. A request to stop does not hide
# that COMMAND finished (0) or failed (for example 74). If the ranks had no handler for USR1 yet and
# ended without saving, it is 75 or 130 as well. 2 and 4 are also this script's own errors.
#
# Messages of mpirun itself are printed, except those that only repeat that COMMAND ended with 2, 3,
# 4, 75, 76 or 130, because the ranks have already printed the reason.
set -euo pipefail
# shellcheck source=launch/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
# shellcheck source=launch/supervise.sh
source "$repo/launch/supervise.sh"

seconds_to_start=10  # COMMAND may be a program that handles no signals
seconds_to_end=10    # time for mpirun to end its ranks, which it kills a second after TERM
helpers=()           # process ids of helper processes to wait for
num_stops=0          # number of HUP, TERM and USR1 signals
num_interrupts=0     # number of Ctrl-C signals
num_endings=0        # number of requests to end the ranks; only the first one is passed on
watch=''             # file descriptor of the pipe to the watcher; '' in the watcher
messages=''          # file descriptor of the pipe to filter_messages, for mpirun's own messages

parse_arguments() {
  ranks='' hosts='' threads=${OMP_NUM_THREADS:-} restart=no max_restarts=50 grace=600
  mpi_options=() command=()
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
      --restart) restart=yes && shift && continue ;;
      -h | --help) print_usage "${BASH_SOURCE[0]}" && exit 0 ;;
      --ranks | --hosts | --threads | --max-restarts | --mpi-option | --grace) ;;
      *) fail 2 "unknown argument '$1'. Put the command to run after --." ;;
    esac
    [ $# -ge 2 ] || fail 2 "$1 needs a value. See run.sh --help."
    case $1 in
      --ranks) ranks=$(number "$1" "$2") ;;
      --hosts) hosts=$2 ;;
      --threads) threads=$(number "$1" "$2") ;;
      --max-restarts) max_restarts=$(number "$1" "$2") ;;
      --mpi-option) mpi_options+=("$2") ;;
      --grace) grace=$(number "$1" "$2") ;;
    esac
    shift 2
  done
  [ $# -ge 2 ] || fail 2 "no command to run. Put it after --, as run.sh --help shows."
  command=("${@:2}")
  if [ "${command[0]}" = halflife ] && ! have halflife; then command[0]=$(find_program); fi
}

number() {
  [[ $2 =~ ^[1-9][0-9]*$ ]] || fail 2 "$1 needs a number of at least 1, not '$2'"
  echo "$2"
}

# Prints the number of ranks on this machine: the N of the first A:N in --hosts, otherwise all
# ranks.
local_ranks() {
  if [[ ${hosts%%,*} =~ :([0-9]+)$ ]]; then
    echo "${BASH_REMATCH[1]}"
  elif [ -n "$hosts" ]; then
    echo 1
  else
    echo "${ranks:-1}"
  fi
}

# Sets binding. Ranks that use more than half of this machine are bound to their own processors:
# unbound, a rank that has waited for another often wakes up on the processor of that other rank.
# Ranks are not bound in two cases: (1) smaller jobs, because mpirun would bind all of them to the
# first processors, and (2) jobs that may not use every processor, because mpirun does not know
# that.
choose_binding() {
  binding=(--bind-to none)
  local processors num_ranks num_threads
  processors=$(usable_processors) num_ranks=$(local_ranks)
  [[ $threads =~ ^[1-9][0-9]*$ ]] || return 0
  num_threads=$((num_ranks * threads))
  if [ -z "$hosts" ] && [ "$num_ranks" -gt 1 ] && [ "$processors" -eq "$(nproc --all)" ] &&
    [ "$num_threads" -le "$processors" ] && [ $((2 * num_threads)) -gt "$processors" ]; then
    binding=(--use-hwthread-cpus --map-by "slot:PE=$threads" --bind-to hwthread)
  fi
}

# Appends -x options for the variables that decide how ranks compute and communicate. Other machines
# receive only the exported variables of this machine's environment.
export_settings() {
  local name
  for name in $(compgen -e); do
    case $name in
      HALFLIFE_* | HL_* | NCCL_* | ATEN_* | MKL_* | ONEDNN_* | CUBLAS_*) launch+=(-x "$name") ;;
    esac
  done
}

make_launch_line() {
  have mpirun || fail 4 "mpirun not found. Run launch/setup, or install the package openmpi-bin."
  allow_mpi_as_root
  if [ -z "$threads" ]; then
    threads=$(($(usable_processors) / $(local_ranks)))
    if [ "$threads" -lt 1 ]; then threads=1; fi
  fi
  export OMP_NUM_THREADS=$threads
  threads=${threads%%,*}  # in a list, later numbers are for nested parallel regions
  choose_binding
  # The ranks' MPI library writes to stderr; mpirun itself does not, see start_launcher.
  launch=(mpirun "${binding[@]}" -x OMP_NUM_THREADS -x OPAL_OUTPUT_STDERR_FD=2)
  if [ -n "$hosts" ]; then
    export_settings
    launch+=(--host "$hosts")
  else
    launch+=(--oversubscribe)
    ranks=${ranks:-1}
  fi
  if [ -n "$ranks" ]; then launch+=(-n "$ranks"); fi
  launch+=("${mpi_options[@]}" "${command[@]}")
}

# Whether process $1 has a handler for USR1 (signal 10, bit 9 of SigCgt).
catches_usr1() {
  local mask
  mask=$(awk '/^SigCgt:/ { print $2 }' "/proc/$1/status" 2>/dev/null) || true
  [ -n "$mask" ] && (((16#$mask >> 9) & 1))
}

# Sets stat to the fields of /proc/PID/stat after the name, which may contain spaces: state, parent,
# process group, session, ...
read_stat() {
  local text=''
  { IFS= read -r -d '' text <"/proc/$1/stat"; } 2>/dev/null || true
  read -r -a stat <<<"${text##*) }"
  [ ${#stat[@]} -ge 4 ]
}

# Prints the processes of mpirun's session: mpirun, the ranks of this machine, and their children.
# shellcheck disable=SC2317  # called by capture
processes_of_launcher() {
  local folder stat
  for folder in /proc/[0-9]*; do
    read_stat "${folder#/proc/}" || continue
    if [ "${stat[3]}" = "$launcher" ] && [[ ${stat[0]} != [ZX] ]]; then echo "${folder#/proc/}"; fi
  done
}

# Between fork and exec a process has the handlers of its parent. mpirun has started when it leads a
# session, and a rank has started when it runs another program than mpirun.
launcher_catches_usr1() {
  local stat
  read_stat "$launcher" && [ "${stat[3]}" = "$launcher" ] && catches_usr1 "$launcher"
}

# Overrides the function of supervise.sh. The ranks are also ready if all of them are on this
# machine and each has its handler.
ranks_are_ready() {
  local child children program num_ready=0
  if [ "$(version_of heartbeat.json)" != "$heartbeat_before" ]; then return 0; fi
  launcher_catches_usr1 || return 1
  program=$(readlink "/proc/$launcher/exe") || return 1
  children=$(cat "/proc/$launcher/task/"*/children 2>/dev/null) || true
  for child in $children; do
    if [ "$(readlink "/proc/$child/exe")" != "$program" ] && catches_usr1 "$child"; then
      num_ready=$((num_ready + 1))
    fi
  done
  [ -z "$hosts" ] && [ "$num_ready" -ge "$ranks" ]
}

# Sends a line to the watcher. Fails if the watcher has ended, and also in the watcher itself.
send_to_watcher() { [ -n "$watch" ] && { echo "$*" >&"$watch"; } 2>/dev/null; }

# The watcher does what takes time, because a signal to the script's process group does not reach
# it.
start_asking() {
  if ! send_to_watcher "ask $launcher $heartbeat_before"; then
    ask_ranks_to_save &
    helpers+=($!)
  fi
}
end_once() {
  if ((num_endings++ > 0)); then return 0; fi
  if ! send_to_watcher "end $launcher $heartbeat_before"; then
    end_ranks &
    helpers+=($!)
  fi
}
on_late_stop() { if [ "$num_interrupts" -ge 2 ]; then end_once; else ask_once; fi; }
on_attempt_end() {
  if [ "$code" -ne 0 ]; then kill_leftovers; fi
  { echo "run.sh: exit $code" >&"$messages"; } 2>/dev/null || true
  send_to_watcher ended || true
}

# Runs in the background, reports its process id to the watcher and becomes mpirun. If the script
# reported the id, it could be killed before the report. setsid: a signal to the process group of
# the terminal or the script, such as Ctrl-C, reaches only this script, not mpirun and the ranks.
# shellcheck disable=SC2317  # called by run_attempt
start_launcher() {
  # PIPE is ignored for two reasons: the watcher may have been killed, and mpirun removes its own
  # handler before its last message; if the reader has ended, PIPE would end mpirun and lose the
  # exit code of the ranks. The ranks have the default handler again.
  trap '' PIPE
  send_to_watcher "started $BASHPID $heartbeat_before" || true
  exec {watch}>&-
  export OPAL_OUTPUT_STDERR_FD=$messages
  exec setsid "$@"
}

# Starts the filter. mpirun writes its own messages, but not the output of the ranks, to its pipe.
start_message_filter() {
  exec {messages}> >(trap '' HUP INT TERM USR1 && exec {watch}>&- && filter_messages >&2)
  helpers+=($!)
}

# Prints each message at once, except messages about the end of the job and everything after them.
# Those are kept until on_attempt_end writes the exit code. After a planned exit code of `halflife`
# they are dropped: the ranks have printed the reason, and the script returns the code. A message of
# several lines is enclosed by two lines of dashes.
filter_messages() {
  local line opening='' in_message=no kept=()
  while IFS= read -r line; do
    case $line in
      'run.sh: exit '*)
        case ${line##* } in 2 | 3 | 4 | 75 | 76 | 130) kept=() ;; esac
        print_lines "${kept[@]}"
        opening='' in_message=no kept=()
        continue
        ;;
      ---*)
        if [ "$in_message" = no ]; then
          in_message=yes opening=$line
          continue
        fi
        in_message=no
        ;;
    esac
    if [ ${#kept[@]} -gt 0 ] || is_about_the_end "$line"; then
      kept+=(${opening:+"$opening"} "$line")
    else
      print_lines ${opening:+"$opening"} "$line"
    fi
    opening=''
  done
  print_lines "${kept[@]}"
}
is_about_the_end() {
  case $1 in
    'Primary job '*' terminated normally, but'* | 'MPI_ABORT was invoked'* | \
      'mpirun detected that one or more processes exited'* | 'mpirun noticed that process rank'* | \
      *ORTE_ERROR_LOG*show_help.c*) return 0 ;;
    *) return 1 ;;
  esac
}
print_lines() { if [ $# -gt 0 ]; then printf '%s\n' "$@" || true; fi; }

# Ends mpirun and its session: TERM, which mpirun forwards, then KILL. It sends only one TERM,
# because at a second one mpirun exits at once and leaves the ranks.
end_ranks() {
  local begin=$SECONDS
  trap '' HUP TERM USR1
  kill -TERM "$launcher" 2>/dev/null || true
  while launcher_runs && [ $((SECONDS - begin)) -lt "$seconds_to_end" ]; do sleep 0.1; done
  kill_leftovers
}
# Kills the processes of the session. Returns when they have ended, or after some seconds: a process
# that is writing to a dead network file system ends only after the write.
kill_leftovers() {
  local pids i
  for ((i = 0; i < 50; i++)); do
    if capture pids processes_of_launcher && [ -z "$pids" ]; then return 0; fi
    # shellcheck disable=SC2086  # one word per process id
    kill -KILL $pids 2>/dev/null || true
    sleep 0.1 || true
  done
}

# Whether mpirun is running. For the watcher, which is not its parent, mpirun may remain a zombie
# after it has ended.
launcher_runs() {
  local stat
  read_stat "$launcher" && [[ ${stat[0]} != [ZX] ]]
}

# Starts the watcher: a second process of this script in a separate session. It asks the ranks to
# save and ends them on the script's request, and it stops ranks that outlive the script. It reads a
# pipe whose only writer is the script; the kernel closes the pipe even after KILL. A KILL of the
# script's process group, which `timeout` sends, does not reach the watcher. (setpriv --pdeathsig
# would need no second process, but it sends only one signal: TERM would kill the ranks before they
# save, and after USR1 no process would end ranks that do not react.)
start_watcher() {
  exec {watch}> >(trap '' HUP INT TERM USR1 && exec setsid bash "${BASH_SOURCE[0]}" --watch "$@")
  helpers+=($!)
}
run_watcher() {
  local word pid heartbeat begin
  while read -r word pid heartbeat; do
    # "started", which start_launcher writes, may arrive after a request of the script.
    if [ "$word" != ended ] && [ "$pid" != "$launcher" ]; then
      launcher=$pid heartbeat_before=$heartbeat num_asked=0 num_endings=0
    fi
    case $word in
      ask) ask_once ;;
      end) end_once ;;
      ended) launcher='' ;;
    esac
  done
  if [ -n "$launcher" ] && launcher_runs; then
    warn "this script was killed: the ranks save and stop, or are ended after $grace s"
    ask_once
    begin=$SECONDS
    while launcher_runs && [ $((SECONDS - begin)) -lt "$grace" ]; do sleep 0.2; done
    if launcher_runs; then
      warn "the ranks did not stop within $grace s: ending them"
      end_ranks
    else
      kill_leftovers
    fi
  fi
  wait
}

# The traps are never changed while they are needed: if a trap changes while its signal is pending,
# bash may treat the signal as the end of the interrupted `wait`. A trap may therefore run within
# another one, and decides by a count that a single command reads and increases.
# shellcheck disable=SC2317  # called by trap
on_stop() {
  interrupted=yes
  if ((num_stops++ == 0)); then on_stop_signal "$1"; fi
}

# shellcheck disable=SC2317  # called by trap
on_interrupt() {
  interrupted=yes
  case $((num_interrupts++)) in
    0) on_stop_signal INT ;;
    1)
      warn "second Ctrl-C: ending the ranks now"
      if [ -n "$launcher" ]; then end_once; fi
      ;;
  esac
}

# Sets code to the script's exit code for an attempt that ended after a request to stop.
judge_stop() {
  local stopped=75
  if [ "$num_interrupts" -gt 0 ]; then stopped=130; fi
  if [ "$verdict" = finished ]; then
    code=0
  elif [ "$num_endings" -ge 1 ]; then
    code=130  # mpirun's own code is 1, 139, 143, ..., depending on its state
  else
    case $code in
      75) code=$stopped ;;
      # ended by HUP, USR1 or TERM
      129 | 138 | 143)
        warn "exit $code: the ranks ended before they could save"
        code=$stopped
        ;;
      0) if [ "$restart" = yes ]; then code=$stopped; fi ;;
    esac
  fi
}

main() {
  local arguments=("$@")
  if [ "${1:-}" = --watch ]; then shift; fi
  parse_arguments "$@"
  make_launch_line
  find_run_folder "${command[@]}"
  if [ "${arguments[0]}" = --watch ]; then
    run_watcher
    exit 0
  fi
  # The watcher and the filter start before the traps are set, because they use process
  # substitutions (see capture).
  start_watcher "$@"
  start_message_filter
  trap 'on_stop TERM' TERM
  trap 'on_stop HUP' HUP
  trap 'on_stop USR1' USR1
  trap on_interrupt INT
  trap : PIPE  # if the same Ctrl-C has ended `| tee`, the next message must not end this script
  local num_restarts=0
  code=75 verdict=again  # for a stop request before the first attempt
  local saved_before
  capture saved_before saved_steps || true
  while [ -z "$stop" ]; do
    run_attempt start_launcher "${launch[@]}"
    judge_attempt
    if [ -n "$stop" ] || [ "$restart" = no ]; then break; fi
    case $verdict in
      finished) code=0 && break ;;
      final) break ;;
      stuck) warn "giving up: exit $code, and no new checkpoint in $num_stuck attempts" && break ;;
    esac
    if [ "$num_restarts" -ge "$max_restarts" ]; then
      warn "giving up: exit $code after $num_restarts restarts"
      break
    fi
    continue_from_newest "$saved_before"
    num_restarts=$((num_restarts + 1))
    warn "exit $code: restart $num_restarts"
  done
  trap : HUP INT TERM USR1  # too late to change anything
  if [ -n "$stop" ]; then judge_stop; fi
  # The launcher's exit code 0 is not a success if the run is not finished.
  if [ "$restart" = yes ] && [ "$verdict" != finished ] && [ "$code" -eq 0 ]; then code=1; fi
  exec {watch}>&- {messages}>&-
  local helper
  for helper in "${helpers[@]}"; do
    while kill -0 "$helper" 2>/dev/null; do sleep 0.05 || true; done  # no `wait`, as in run_attempt
  done
  exit "$code"
}

main "$@"
