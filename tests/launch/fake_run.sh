# shellcheck shell=bash
# Functions that run launch/mpirun/run.sh with fake ranks. run_sh_*test.sh and error_reports_test.sh
# source this file.
# shellcheck disable=SC2034  # the caller uses run_sh, fake and code
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
run_sh=$repo/launch/mpirun/run.sh
fake=$repo/tests/launch/fake_rank.sh
unset OMP_NUM_THREADS
command -v mpirun >/dev/null || { echo "SKIPPED: mpirun not found (Debian: openmpi-bin)"; exit 77; }
set -m  # background jobs get their own process group and a default INT, as under a terminal
# shellcheck source=tests/launch/checks.sh
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"

# new_case NAME: creates a folder for the case, with a session directory for mpirun. In a shared
# session directory, a run that ends would remove files of another run, and a killed run would leave
# files.
new_case() {
  folder=$work/$1
  shown_log=$folder/log
  export OMPI_MCA_orte_tmpdir_base=$folder/mpirun
  mkdir -p "$OMPI_MCA_orte_tmpdir_base"
}

wait_for() { wait_until "$1 appears" [ -e "$1" ]; }
wait_until_ready() { wait_for "$folder/ready.0" && wait_for "$folder/ready.1"; }
attempts() { grep -c attempt "$folder/notes.0"; }
saves() { cat "$folder"/notes.* 2>/dev/null | grep -c saved; }
whole_checkpoints() {
  cat "$folder"/checkpoint.[01] 2>/dev/null | grep -cx 'first half, second half'
}

# start [OPTION]... -- COMMAND...: starts run.sh in the background, with 2 ranks. Sets pid. Only its
# processes have FAKE_RUN in their environment.
start() {
  FAKE_RUN=$folder bash "$run_sh" --ranks 2 "$@" >"$folder/log" 2>&1 &
  pid=$!
}
# end: waits for run.sh. Sets code.
end() {
  wait "$pid" 2>/dev/null
  code=$?
}
processes() { grep -lzsxF "FAKE_RUN=$folder" /proc/[0-9]*/environ | cut -d / -f 3; }
has_no_process() { [ -z "$(processes)" ]; }
# check_no_process_left NAME: checks that no process is left, right after run.sh has returned.
check_no_process_left() {
  local left
  left=$(processes)
  check "$1: no process is left" "" "$left"
  end_processes "$left"
}
# shellcheck disable=SC2086  # one word per process id
end_processes() { if [ -n "$1" ]; then kill -KILL $1 2>/dev/null; fi; }
