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
#   --restart          run again after exit 75 (saved, wants to go on) and after a crash, a lost or a
#                      hung rank, until COMMAND, a `halflife train`, has finished the run that it
#                      names with --run; gives up after 3 lives without a new checkpoint there
#   --max-restarts N   at most so many (default 50)
#   --mpi-option X     passed to mpirun; may be repeated
#
# Ctrl-C and TERM ask the ranks to save and stop; a second Ctrl-C ends them in seconds. Exit code:
# COMMAND's, among them 75 saved and stopped by TERM or a time limit, 130 saved and stopped by
# Ctrl-C; 2 and 4 also for this script's own errors.
set -euo pipefail
# shellcheck source=launch/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
# shellcheck source=launch/lives.sh
source "$repo/launch/lives.sh"

seconds_to_start=10  # COMMAND may be a program that handles no signals

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
  # setsid: Ctrl-C in the terminal reaches this script alone, not mpirun and the ranks
  launch=(setsid mpirun --bind-to none -x OMP_NUM_THREADS)
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

# As in lives.sh, or on this machine: every rank has its handler.
ranks_are_ready() {
  local child children num_ready=0
  if [ "$(version_of heartbeat.json)" != "$heartbeat_before" ]; then return 0; fi
  catches_usr1 "$launcher" || return 1
  children=$(cat "/proc/$launcher/task/"*/children 2>/dev/null) || true
  for child in $children; do
    if catches_usr1 "$child"; then num_ready=$((num_ready + 1)); fi
  done
  [ -z "$hosts" ] && [ "$num_ready" -ge "$ranks" ]
}

# shellcheck disable=SC2317  # called by trap
on_interrupt() {
  if [ "$stop" = INT ] && [ -n "$launcher" ]; then
    interrupted=yes
    warn "second Ctrl-C: ending the ranks now"
    kill -TERM "$launcher" 2>/dev/null || true
  else
    on_stop_signal INT
  fi
}

main() {
  parse_arguments "$@"
  make_launch_line
  find_run_folder "${command[@]}"
  trap 'on_stop_signal TERM' TERM
  trap on_interrupt INT
  local num_restarts=0
  while :; do
    run_life "${launch[@]}"
    if [ -n "$stop" ] || [ "$restart" = no ]; then break; fi
    judge_life
    case $verdict in
      finished) code=0 && break ;;
      final) break ;;
      stuck) warn "giving up: exit $code, and no new checkpoint in $num_stuck lives" && break ;;
    esac
    if [ "$num_restarts" -ge "$max_restarts" ]; then
      warn "giving up: exit $code after $num_restarts restarts"
      break
    fi
    num_restarts=$((num_restarts + 1))
    warn "exit $code: restart $num_restarts"
  done
  if [ "$stop" = INT ] && [ "$code" -eq 75 ]; then code=130; fi
  # a launcher's 0 for a run that it did not finish is no success
  if [ "${verdict:-finished}" != finished ] && [ "$code" -eq 0 ]; then code=1; fi
  exit "$code"
}

main "$@"
