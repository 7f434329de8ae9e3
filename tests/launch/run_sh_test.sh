#!/usr/bin/env bash
# Tests exit codes, restarts and usage of launch/mpirun/run.sh with small shell scripts as ranks.
# run_sh_signals_test.sh tests stop requests. Exit 77: mpirun is missing.
set -uo pipefail
# shellcheck source=tests/launch/fake_run.sh
source "$(dirname "${BASH_SOURCE[0]}")/fake_run.sh"

new_case exit_codes
for wanted in 0 3 76; do
  rm -f "$folder"/notes.*
  bash "$run_sh" --ranks 2 -- "$fake" "$folder" exit "$wanted" >"$folder/log" 2>&1
  check "exit $wanted passes through" "$wanted" $?
done
bash "$run_sh" --ranks 2 --threads 3 -- "$fake" "$folder" exit 0 >"$folder/log" 2>&1
check "threads reach the ranks" "rank 1: attempt, threads 3" "$(tail -n 1 "$folder/notes.1")"

# mpirun's own messages depend on the exit codes of the ranks.
new_case messages
# shown CODE PATTERN COMMAND...: runs COMMAND on 2 ranks and checks that the exit code is CODE. Sets
# num_shown to the number of lines of the log that match PATTERN.
shown() {
  bash "$run_sh" --ranks 2 -- "${@:3}" >"$folder/log" 2>&1
  check "${*:3}: exit $1" "$1" $?
  num_shown=$(grep -c -- "$2" "$folder/log")
}
for code in 2 75 130; do
  rm -f "$folder"/notes.*
  shown "$code" . "$fake" "$folder" exit "$code"
  check "exit $code is planned: mpirun adds nothing" 0 "$num_shown"
done
for code in 1 72; do
  rm -f "$folder"/notes.*
  shown "$code" 'Primary job' "$fake" "$folder" exit "$code"
  check "exit $code is a crash: mpirun reports it" 1 "$num_shown"
done
# shellcheck disable=SC2016  # for the ranks to expand
shown 137 'Primary job' bash -c 'kill -KILL $$'
check "killed by a signal: mpirun reports it" 1 "$num_shown"
shown 132 'could not access' "$folder/no_such_program"
check "a missing program: mpirun reports it" 1 "$num_shown"
shown 0 '^to stderr$' bash -c 'echo to stderr >&2'
check "stderr of the ranks is passed on" 2 "$num_shown"
bash "$run_sh" --hosts localhost:1 --ranks 2 -- true >"$folder/log" 2>&1
check "too many ranks: mpirun reports it" "1 1" "$? $(grep -c 'There are not enough slots' "$folder/log")"
rm -f "$folder"/notes.*
bash "$run_sh" --restart -- "$fake" "$folder" exit 72 75 2 >"$folder/log" 2>&1
check "--restart: only the crash of the first attempt is reported" "2 1" \
  "$? $(grep -c 'Primary job' "$folder/log")"

# binding ALL ALLOWED OPTION...: prints the options that mpirun receives before the number of ranks,
# on a machine with ALL processors of which ALLOWED may be used.
binding() {
  local all=$1 allowed=$2 bin=$folder/bin
  mkdir -p "$bin"
  cat >"$bin/nproc" <<<"#!/bin/sh
if [ \"\$1\" = --all ]; then echo $all; else echo \${OMP_NUM_THREADS:-$allowed}; fi"
  cat >"$bin/mpirun" <<<"#!/bin/sh
echo \"\$*\" | sed 's/ -n .*//' >'$folder/mpirun_options'"
  chmod +x "$bin"/*
  PATH=$bin:$PATH bash "$run_sh" "${@:3}" -- true >"$folder/log" 2>&1
  cat "$folder/mpirun_options"
}
bound() { echo "--use-hwthread-cpus --map-by slot:PE=$1 --bind-to hwthread -x OMP_NUM_THREADS -x OPAL_OUTPUT_STDERR_FD=2 --oversubscribe"; }
unbound="--bind-to none -x OMP_NUM_THREADS -x OPAL_OUTPUT_STDERR_FD=2 --oversubscribe"

new_case binding
check "ranks that fill the machine are bound" "$(bound 4)" "$(binding 8 8 --ranks 2)"
check "ranks that use more than half of the machine are bound" "$(bound 1)" "$(binding 8 8 --ranks 5 --threads 1)"
check "OMP_NUM_THREADS does not change the number of processors" "$(bound 4)" "$(OMP_NUM_THREADS=4 binding 8 8 --ranks 2)"
check "half of the machine: unbound" "$unbound" "$(binding 8 8 --ranks 4 --threads 1)"
check "more threads than processors: unbound" "$unbound" "$(binding 8 8 --ranks 3 --threads 3)"
check "some processors may not be used: unbound" "$unbound" "$(binding 16 8 --ranks 2)"
check "one rank: unbound" "$unbound" "$(binding 8 8 --ranks 1)"
check "a list of thread counts for nested regions: the first one counts" "$(bound 2)" "$(OMP_NUM_THREADS=2,1 binding 4 4 --ranks 2)"
check "an invalid number of threads: unbound" "$unbound" "$(OMP_NUM_THREADS=08 binding 8 8 --ranks 2)"

# in_clean_environment COMMAND...: runs COMMAND without the variables that run.sh exports to other
# machines.
in_clean_environment() {
  local name
  for name in $(compgen -e); do
    case $name in HALFLIFE_* | HL_* | NCCL_* | ATEN_* | MKL_* | ONEDNN_* | CUBLAS_*) unset "$name" ;; esac
  done
  "$@"
}
# shellcheck disable=SC2317  # in_clean_environment calls it
binding_with_settings() { NCCL_SOCKET_IFNAME=eth0 HALFLIFE_CPU_ISA=avx2 binding "$@"; }
check "several machines: unbound" "--bind-to none -x OMP_NUM_THREADS -x OPAL_OUTPUT_STDERR_FD=2 --host a:2,b:2 true" "$(in_clean_environment binding 4 4 --hosts a:2,b:2)"
check "the ranks get the settings of MPI, OpenMP and NCCL" "--bind-to none -x OMP_NUM_THREADS -x OPAL_OUTPUT_STDERR_FD=2 -x HALFLIFE_CPU_ISA -x NCCL_SOCKET_IFNAME --host a:2,b:2 true" "$(in_clean_environment binding_with_settings 4 4 --hosts a:2,b:2)"
processors=$(nproc)
if [ "$processors" -ge 2 ] && [ "$processors" -eq "$(nproc --all)" ]; then
  bash "$run_sh" --ranks 2 -- grep Cpus_allowed_list /proc/self/status >"$folder/log" 2>&1
  check "mpirun binds the ranks to different processors" "2 2" "$(grep -c Cpus_allowed "$folder/log") $(grep Cpus_allowed "$folder/log" | sort -u | wc -l)"
  bash "$run_sh" --ranks 2 --mpi-option --bind-to --mpi-option none -- grep Cpus_allowed_list /proc/self/status >"$folder/log" 2>&1
  check "a user's --bind-to overrides the binding" "2 1" "$(grep -c Cpus_allowed "$folder/log") $(grep Cpus_allowed "$folder/log" | sort -u | wc -l)"
fi

new_case restart
bash "$run_sh" --restart -- "$fake" "$folder" exit 75 75 0 >"$folder/log" 2>&1
check "--restart: exit 0 in the end" 0 $?
check "--restart: three attempts" 3 "$(attempts)"

# The values of --resume of all attempts, in order.
resumes() { sed -n 's/.*, resume \(.*\)/\1/p' "$folder/notes.0" | tr '\n' ' '; }

new_case continues
for request in "--resume step=10" "--resume=step=10" "--resume path=elsewhere" "--resume none"; do
  rm -rf "$folder"/notes.* "$folder/ckpt"
  # shellcheck disable=SC2086  # one word per argument
  bash "$run_sh" --restart -- "$fake" "$folder" exit-saved 75 75 0 --run "$folder" $request >"$folder/log" 2>&1
  check "$request: exit 0 in the end" 0 $?
  first=${request#--resume?}
  check "$request: later attempts continue from the newest checkpoint" "$first auto auto " "$(resumes)"
done
for request in "--resume step=10 --skip-data 3" "--skip-data=3 --resume=step=10"; do
  rm -rf "$folder"/notes.* "$folder/ckpt"
  # shellcheck disable=SC2086  # one word per argument
  bash "$run_sh" --restart -- "$fake" "$folder" exit-saved 75 75 0 $request --run "$folder" >"$folder/log" 2>&1
  check "$request: exit 0 in the end" 0 $?
  check "$request: only the first attempt skips data" "1 2" "$(grep -c 'skip 3' "$folder/notes.0") $(grep -c 'resume auto$' "$folder/notes.0")"
done
rm -f "$folder"/notes.*
bash "$run_sh" --restart -- "$fake" "$folder" exit 72 72 2 --run "$folder" --resume path=elsewhere >"$folder/log" 2>&1
check "nothing saved: --resume is kept" "path=elsewhere path=elsewhere path=elsewhere " "$(resumes)"
rm -f "$folder"/notes.*
bash "$run_sh" --restart -- "$fake" "$folder" exit 72 72 2 --run "$folder" --resume step=10 --skip-data 3 >"$folder/log" 2>&1
check "nothing saved: --skip-data is kept as well" 3 "$(grep -c 'resume step=10, skip 3' "$folder/notes.0")"

# Step 10 is older than the newest checkpoint, so a load changes ckpt/LATEST, and then no save succeeds.
rm -rf "$folder"/notes.* "$folder/ckpt"
mkdir -p "$folder"/ckpt/step_0000000000{10,20}
touch "$folder"/ckpt/step_0000000000{10,20}/manifest.pb
echo step_000000000020 >"$folder/ckpt/LATEST"
bash "$run_sh" --restart -- "$fake" "$folder" exit-loaded 74 74 2 --run "$folder" --resume step=10 --skip-data 3 >"$folder/log" 2>&1
check "only loaded: --resume and --skip-data are kept" 3 "$(grep -c 'resume step=10, skip 3' "$folder/notes.0")"

new_case no_restart
bash "$run_sh" -- "$fake" "$folder" exit 75 0 >"$folder/log" 2>&1
check "without --restart 75 is returned" 75 $?

new_case final
bash "$run_sh" --restart -- "$fake" "$folder" exit 2 0 >"$folder/log" 2>&1
check "--restart: exit 2 is final" 2 $?

new_case breaker
mkdir -p "$folder/ckpt"
echo step_000000000040 >"$folder/ckpt/LATEST"
bash "$run_sh" --restart -- "$fake" "$folder" exit 75 75 75 75 --run "$folder" >"$folder/log" 2>&1
check "no new checkpoint: gives up" yes "$(grep -q 'giving up: exit 75, and no new checkpoint in 3 attempts' "$folder/log" && echo yes)"
check "no new checkpoint: three attempts" 3 "$(attempts)"

new_case not_done
touch "$folder/DONE"  # of an earlier attempt
bash "$run_sh" --restart -- "$fake" "$folder" exit 0 0 0 0 --run "$folder" >"$folder/log" 2>&1
check "exit 0, but the run is not finished: gives up" 1 $?
check "exit 0, but the run is not finished: three attempts" 3 "$(attempts)"

new_case finished
bash "$run_sh" --restart -- "$fake" "$folder" finish --run "$folder" >"$folder/log" 2>&1
check "a finished run: exit 0" 0 $?
check "a finished run: one attempt" 1 "$(attempts)"

new_case limit
bash "$run_sh" --restart --max-restarts 1 -- "$fake" "$folder" exit 75 >"$folder/log" 2>&1
check "--max-restarts: exit 75 in the end" 75 $?
check "--max-restarts: two attempts" 2 "$(attempts)"

new_case usage
bash "$run_sh" --ranks none -- true >"$folder/log" 2>&1
check "a bad number: exit 2" "2 yes" "$? $(grep -q "needs a number of at least 1, not 'none'" "$folder/log" && echo yes)"
bash "$run_sh" --ranks 2 >"$folder/log" 2>&1
check "no command: exit 2" "2 yes" "$? $(grep -q 'no command to run' "$folder/log" && echo yes)"

# If `halflife` is not in PATH, the program at the expected path is used. The copy has no build
# folder, and has a CMakeLists.txt only if it represents a repository.
new_case program
share=$folder/prefix/share/halflife
mkdir -p "$share" "$folder/prefix/bin"
cp -r "$repo/launch" "$share/launch"
without_halflife=/usr/bin:/bin:$(dirname "$(command -v mpirun)")
run_copy() { PATH=$without_halflife bash "$share/launch/mpirun/run.sh" -- halflife train >"$folder/log" 2>&1; }
run_copy
check "no program: exit 2" 2 $?
check "no program: the message has its path and the fix" yes \
  "$(grep -qF "there is no program at $folder/prefix/bin/halflife. Build it (cmake" "$folder/log" && echo yes)"
cat >"$folder/prefix/bin/halflife" <<<"#!/bin/sh
echo \"\$0 \$*\""
chmod +x "$folder/prefix/bin/halflife"
run_copy
check "an installed run.sh finds the installed program" "0 $folder/prefix/bin/halflife train" "$? $(cat "$folder/log")"
touch "$share/CMakeLists.txt"
run_copy
check "run.sh of a repository does not use the installed program" 2 $?

exit $((failures > 0))
