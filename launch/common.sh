# shellcheck shell=bash
# Functions that the scripts of launch/, tests/ and .ci/ share. This file is sourced, never run.

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
script_name=${0##*/}

say() { printf '%s: %s\n' "$script_name" "$*"; }
# A message that cannot be written, for example because `| tee` has ended, does not end the script.
warn() { printf '%s: %s\n' "$script_name" "$*" >&2 || true; }
# fail CODE MESSAGE: prints MESSAGE and exits. The codes are those of the program halflife (2
# command line, 3 data, 4 environment).
fail() {
  local code=$1
  shift
  warn "$*"
  exit "$code"
}
# finding OK|WARN|FAIL NAME TEXT [REMEDY]: prints the result of a check in the format of `halflife
# doctor` (src/cli/doctor/checks.h).
finding() {
  printf '%-4s  %-16s %s\n' "$1" "$2" "$3"
  if [ -n "${4:-}" ]; then printf '      fix: %s\n' "$4"; fi
}
have() { command -v "$1" >/dev/null 2>&1; }

# Prints the comment between the shebang and the first line of code, which is the --help of a
# script.
print_usage() { awk 'NR == 1 { next } !/^#/ { exit } { sub(/^# ?/, ""); print }' "$1"; }

# Prints the path of the program: $HALFLIFE if set, otherwise the program that was built in this
# repository or installed with these scripts (PREFIX/bin for scripts in PREFIX/share/halflife, which
# has no CMakeLists.txt).
find_program() {
  local program candidates=("$repo"/build/{cuda,cpu}/src/cli/halflife)
  if [ ! -e "$repo/CMakeLists.txt" ]; then candidates=("${repo%/*/*}/bin/halflife"); fi
  if [ -n "${HALFLIFE:-}" ]; then candidates=("$HALFLIFE"); fi
  for program in "${candidates[@]}"; do
    if [ -x "$program" ]; then
      echo "$program"
      return 0
    fi
  done
  fail 2 "there is no program at ${candidates[0]}${candidates[1]:+ or ${candidates[1]}}. Build it (cmake --build --preset cpu --target halflife), or set HALFLIFE to its path."
}

# capture NAME COMMAND...: NAME=$(COMMAND...), for scripts with traps. bash (5.2) may run a pending
# trap while it parses a $(...). It then reads the trap's text as part of the substitution and ends
# the script with a syntax error: "unexpected EOF while looking for matching `)'". Backquotes are
# parsed by the child, which has no traps.
capture() {
  local captured captured_code=0
  # shellcheck disable=SC2006
  captured=`"${@:2}"` || captured_code=$?
  printf -v "$1" %s "$captured"
  return "$captured_code"
}

# await_child PID: waits until the process has ended, also if traps run meanwhile; each trap must
# set interrupted=yes. Sets code to the process's exit code.
interrupted=no
# shellcheck disable=SC2034  # code is the caller's
await_child() {
  # Do not use `wait` here: a trap interrupts it, and if the child ends at that moment, bash (5.2)
  # may miss both its end and its code, so that the next `wait` hangs. `|| true`: a signal to our
  # process group ends the sleep.
  while kill -0 "$1" 2>/dev/null; do sleep 0.2 || true; done
  # bash keeps the exit code of the child. A signal that interrupts a `wait` replaces that code, and
  # a signal that arrives just after a `wait` has returned replaces the code of the next one. The
  # loop therefore repeats until no trap has run during two consecutive waits.
  while :; do
    interrupted=no code=0
    wait "$1" || true
    wait "$1" || code=$?
    if [ "$interrupted" = no ]; then break; fi
  done
}

# Ends this attempt of a Slurm job and requeues the job. If the site forbids that, the exit code is
# 75, on which Slurm's RequeueExit may act.
requeue() {
  trap '' USR1
  trap - TERM  # which is how Slurm ends this script
  if scontrol requeue "$SLURM_JOB_ID"; then sleep 60; fi
  exit 75
}

find_nvcc() {
  local candidate
  for candidate in nvcc /usr/local/cuda/bin/nvcc "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"; do
    if have "$candidate"; then
      command -v "$candidate"
      return 0
    fi
  done
  return 1
}
have_gpu() { have nvidia-smi && nvidia-smi -L >/dev/null 2>&1; }

# Without `env -u`, nproc would treat OpenMP's variables as limits.
usable_processors() { env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc; }

# Prints the number of compile jobs: one per core, limited by memory, because a translation unit
# with torch headers takes up to 1.5 GB.
build_jobs() {
  local cores memory_gb
  cores=$(usable_processors)
  memory_gb=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo)
  local by_memory=$((memory_gb * 2 / 3))
  if [ "$by_memory" -lt 1 ]; then by_memory=1; fi
  echo $((cores < by_memory ? cores : by_memory))
}

# build PRESET [TARGET...] [-- CMAKE_OPTION...]: configures and builds.
build() {
  local preset=$1
  shift
  local targets=()
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    targets+=(--target "$1")
    shift
  done
  if [ $# -gt 0 ]; then shift; fi
  (cd "$repo" && cmake --preset "$preset" "$@" --log-level=WARNING)
  cmake --build "$repo/build/$preset" --parallel "$(build_jobs)" "${targets[@]}"
}

# Open MPI refuses to run as root unless both variables are set.
allow_mpi_as_root() {
  if [ "$EUID" -eq 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
}
