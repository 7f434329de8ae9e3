#!/usr/bin/env bash
# launch/mpirun/run.sh [OPTIONS] -- COMMAND [ARGUMENT...]
#
# Runs COMMAND on several ranks under Open MPI's mpirun, so that stopping it saves first:
#
#   launch/mpirun/run.sh --ranks 2 -- halflife train --config RECIPE --run RUN
#   launch/mpirun/run.sh --hosts a:8,b:8 --restart -- halflife train --config RECIPE --run RUN
#
#   --ranks N          processes (default: the slots of --hosts, else 1)
#   --hosts A:N,B:N    machines and the processes on each, reached by ssh; the same paths must hold
#                      on all of them
#   --threads N        compute threads a rank (default: OMP_NUM_THREADS, else cores over ranks of
#                      this machine)
#   --restart          run again after exit 75 (saved, wants to go on) and after a lost or hung
#                      rank; gives up after 3 lives without a new checkpoint in the folder that
#                      COMMAND names with --run
#   --max-restarts N   at most so many (default 50)
#   --mpi-option X     passed to mpirun; may be repeated
#
# Ctrl-C and TERM ask the ranks to save and stop; a second Ctrl-C ends them in seconds. Exit code:
# COMMAND's, among them 75 saved and stopped by TERM or a time limit, 130 saved and stopped by
# Ctrl-C; 2 and 4 also for this script's own errors.
set -euo pipefail
# shellcheck source=launch/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

max_lives_without_checkpoint=3
seconds_to_start=10  # after that a rank without a USR1 handler is taken to have none
stop=''              # the signal that asked us to stop: TERM or INT
mpirun=''            # its process id, while it runs

parse_arguments() {
  ranks='' hosts='' threads=${OMP_NUM_THREADS:-} restart=no max_restarts=50
  mpi_options=() command=()
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
      --restart) restart=yes && shift && continue ;;
      -h | --help) print_usage "${BASH_SOURCE[0]}" && exit 0 ;;
      --ranks | --hosts | --threads | --max-restarts | --mpi-option) ;;
      *) fail 2 "unknown argument '$1'; the command to run comes after --" ;;
    esac
    [ $# -ge 2 ] || fail 2 "$1 needs a value; run.sh --help shows one"
    case $1 in
      --ranks) ranks=$(number "$1" "$2") ;;
      --hosts) hosts=$2 ;;
      --threads) threads=$(number "$1" "$2") ;;
      --max-restarts) max_restarts=$(number "$1" "$2") ;;
      --mpi-option) mpi_options+=("$2") ;;
    esac
    shift 2
  done
  [ $# -ge 2 ] || fail 2 "no command to run; it comes after --, as run.sh --help shows"
  command=("${@:2}")
}

number() {
  [[ $2 =~ ^[1-9][0-9]*$ ]] || fail 2 "$1 wants a number of at least 1, not '$2'"
  echo "$2"
}

# Ranks on one machine: the N of the first A:N in --hosts, else all.
local_ranks() {
  if [[ ${hosts%%,*} =~ :([0-9]+)$ ]]; then
    echo "${BASH_REMATCH[1]}"
  elif [ -n "$hosts" ]; then
    echo 1
  else
    echo "${ranks:-1}"
  fi
}

make_launch_line() {
  have mpirun || fail 4 "mpirun not found; launch/setup installs it (Debian: openmpi-bin)"
  allow_mpi_as_root
  if [ -z "$threads" ]; then
    threads=$(($(nproc) / $(local_ranks)))
    if [ "$threads" -lt 1 ]; then threads=1; fi
  fi
  export OMP_NUM_THREADS=$threads
  launch=(mpirun --bind-to none -x OMP_NUM_THREADS)
  if [ -n "$hosts" ]; then
    launch+=(--host "$hosts")
  else
    launch+=(--oversubscribe)
    ranks=${ranks:-1}
  fi
  if [ -n "$ranks" ]; then launch+=(-n "$ranks"); fi
  launch+=("${mpi_options[@]}" "${command[@]}")
}

# Whether process $1 has a handler for USR1 (signal 10: bit 9 of SigCgt).
catches_usr1() {
  local mask
  mask=$(awk '/^SigCgt:/ { print $2 }' "/proc/$1/status" 2>/dev/null) || true
  [ -n "$mask" ] && (((16#$mask >> 9) & 1))
}

# mpirun forwards USR1 to the ranks, but before they have their handlers it would kill them: all of
# them must be there.
ranks_are_ready() {
  local child children num_ready=0
  catches_usr1 "$mpirun" || return 1
  children=$(cat "/proc/$mpirun/task/"*/children 2>/dev/null) || true
  for child in $children; do
    if catches_usr1 "$child"; then num_ready=$((num_ready + 1)); fi
  done
  [ -z "$hosts" ] && [ "$num_ready" -ge "$ranks" ]
}

# Runs in the background, so that a second signal is heard meanwhile.
ask_ranks_to_save() {
  local begin=$SECONDS
  until ranks_are_ready || [ $((SECONDS - begin)) -ge "$seconds_to_start" ]; do
    kill -0 "$mpirun" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -USR1 "$mpirun" 2>/dev/null || true
}

# shellcheck disable=SC2317  # called by trap
on_signal() {
  interrupted=yes
  if [ "$1" = INT ] && [ "$stop" = INT ] && [ -n "$mpirun" ]; then
    warn "second Ctrl-C: ending the ranks now"
    kill -TERM "$mpirun" 2>/dev/null || true
    return 0
  fi
  stop=$1
  warn "asking the ranks to save and stop"
  if [ -n "$mpirun" ]; then ask_ranks_to_save & fi
}

# One life. Sets code. setsid: Ctrl-C in the terminal reaches this script alone, not mpirun and the
# ranks.
run_once() {
  setsid "${launch[@]}" &
  mpirun=$!
  if [ -n "$stop" ]; then ask_ranks_to_save & fi
  while :; do
    interrupted=no code=0
    wait "$mpirun" || code=$?
    # else a trap cut the wait short, and code is the signal's
    if [ "$interrupted" = no ]; then break; fi
  done
  mpirun=''
}

# The run folder that the command names, to see whether a life left a new checkpoint.
find_run_folder() {
  run_folder=''
  local i
  for i in "${!command[@]}"; do
    case ${command[i]} in
      --run) run_folder=${command[i + 1]:-} ;;
      --run=*) run_folder=${command[i]#--run=} ;;
    esac
  done
}
latest_checkpoint() {
  if [ -n "$run_folder" ]; then cat "$run_folder/ckpt/LATEST" 2>/dev/null || true; fi
}

# 75 saved; 71 hung, 72 a peer lost, 134 137 139 a rank crashed or was killed, 205 a machine lost.
# The rest would recur.
worth_restarting() {
  case $1 in
    71 | 72 | 75 | 134 | 137 | 139 | 205) [ "$restart" = yes ] ;;
    *) return 1 ;;
  esac
}

main() {
  parse_arguments "$@"
  make_launch_line
  find_run_folder
  trap 'on_signal TERM' TERM
  trap 'on_signal INT' INT
  local before num_restarts=0 num_same=0
  while :; do
    before=$(latest_checkpoint)
    run_once
    if [ -n "$stop" ] || ! worth_restarting "$code"; then break; fi
    # without a folder to look into, exit 75 is taken at its word
    if [ "$(latest_checkpoint)" != "$before" ] || [ "$run_folder,$code" = ,75 ]; then
      num_same=0
    else
      num_same=$((num_same + 1))
    fi
    if [ "$num_same" -ge "$max_lives_without_checkpoint" ]; then
      warn "giving up: exit $code, and no new checkpoint in $num_same lives"
      break
    fi
    if [ "$num_restarts" -ge "$max_restarts" ]; then
      warn "giving up: exit $code after $num_restarts restarts"
      break
    fi
    num_restarts=$((num_restarts + 1))
    warn "exit $code: restart $num_restarts"
  done
  if [ "$stop" = INT ] && [ "$code" -eq 75 ]; then code=130; fi
  exit "$code"
}

main "$@"
