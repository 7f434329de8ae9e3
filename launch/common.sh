# shellcheck shell=bash
# What the scripts of launch/, tests/ and .ci/ share. Sourced, never run.

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
script_name=${0##*/}

say() { printf '%s: %s\n' "$script_name" "$*"; }
# A message that cannot be written, as the terminal or the `| tee` is gone, ends no script.
warn() { printf '%s: %s\n' "$script_name" "$*" >&2 || true; }
# fail CODE MESSAGE: the codes are those of the halflife program (2 command line, 3 data, 4
# environment).
fail() {
  local code=$1
  shift
  warn "$*"
  exit "$code"
}
# finding OK|WARN|FAIL NAME TEXT [REMEDY]: what a check met, in the form of `halflife doctor`
# (src/cli/doctor/finding.h).
finding() {
  printf '%-4s  %-16s %s\n' "$1" "$2" "$3"
  if [ -n "${4:-}" ]; then printf '      mend: %s\n' "$4"; fi
}
have() { command -v "$1" >/dev/null 2>&1; }

# The text between the shebang and the first line that is no comment: every script's --help.
print_usage() { awk 'NR == 1 { next } !/^#/ { exit } { sub(/^# ?/, ""); print }' "$1"; }

# Prints the program of $HALFLIFE, else the one that was built in this repository or installed with
# these scripts (PREFIX/bin for scripts in PREFIX/share/halflife, which has no CMakeLists.txt).
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

# capture NAME COMMAND...: NAME=$(COMMAND...), for scripts with traps. bash (5.2) runs a trap that
# is due in the midst of parsing a $(...), takes the trap's text for the inside of it, and ends the
# script with a syntax error: "unexpected EOF while looking for matching `)'". Backquotes are parsed
# by the child, which has no traps.
capture() {
  local captured captured_code=0
  # shellcheck disable=SC2006
  captured=`"${@:2}"` || captured_code=$?
  printf -v "$1" %s "$captured"
  return "$captured_code"
}

# await_child PID: until it has ended, whatever traps run meanwhile; each of them must set
# interrupted=yes. Sets code to its exit code.
interrupted=no
# shellcheck disable=SC2034  # code is the caller's
await_child() {
  # Not by `wait`: a trap cuts that short, and where the child ends at this moment bash (5.2) may
  # have taken note of neither its end nor its code, and the next `wait` hangs. A signal to our
  # process group ends a sleep.
  while kill -0 "$1" 2>/dev/null; do sleep 0.2 || true; done
  # bash keeps the code. A signal that cuts a `wait` short puts its own in place of it, and one that
  # comes when a `wait` has just returned does so to the next: no trap may run during two in a row.
  while :; do
    interrupted=no code=0
    wait "$1" || true
    wait "$1" || code=$?
    if [ "$interrupted" = no ]; then break; fi
  done
}

# Ends this attempt of a Slurm job for the next; where the site forbids it, 75 is what RequeueExit
# may act on.
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

# nproc takes OpenMP's variables for a limit.
usable_processors() { env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc; }

# One compile job a core, but no more than memory allows: a torch translation unit takes up to 1.5
# GB.
build_jobs() {
  local cores memory_gb
  cores=$(usable_processors)
  memory_gb=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo)
  local by_memory=$((memory_gb * 2 / 3))
  if [ "$by_memory" -lt 1 ]; then by_memory=1; fi
  echo $((cores < by_memory ? cores : by_memory))
}

# build PRESET [TARGET...] [-- CMAKE_OPTION...]
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
