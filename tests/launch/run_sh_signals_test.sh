#!/usr/bin/env bash
# Stops launch/mpirun/run.sh in many ways, once and repeatedly. It must end with 75 or 130, the
# ranks must save if they can, and no process may be left. Exit 77: mpirun is missing.
set -uo pipefail
# shellcheck source=tests/launch/fake_run.sh
source "$(dirname "${BASH_SOURCE[0]}")/fake_run.sh"

# Whether run.sh has set its traps. PIPE (signal 13) is the last one. An earlier signal ends run.sh
# before it has started anything. Until exec, the process has the handlers of this shell, including
# one for PIPE.
# shellcheck disable=SC2317  # called by wait_until
has_set_traps() {
  local mask
  grep -qzxF "$run_sh" "/proc/$pid/cmdline" || return 1
  mask=$(awk '/^SigCgt:/ { print $2 }' "/proc/$pid/status" 2>/dev/null)
  [ -n "$mask" ] && (((16#$mask >> 12) & 1))
}
wait_for_traps() { wait_until "run.sh has its traps" has_set_traps; }

# storm PROCESS SIGNAL...: sends a burst of each signal, and then one every few milliseconds until
# run.sh ends.
storm() {
  local i signal process=$1
  shift
  for ((i = 0; i < 100; i++)); do
    for signal in "$@"; do kill "-$signal" -- "$process" 2>/dev/null; done
  done
  while kill "-$1" -- "$process" 2>/dev/null; do
    for signal in "$@"; do kill "-$signal" -- "$process" 2>/dev/null; done
    sleep 0.005
  done
}
# check_end NAME CODE SAVES: checks how run.sh ended. There must be no partial checkpoint.
check_end() {
  local whole
  end
  check "$1: exit $2" "$2" "$code"
  if [ -n "${3:-}" ]; then check "$1: $3 ranks saved" "$3" "$(saves)"; fi
  whole=$(whole_checkpoints)
  check "$1: checkpoints are whole or absent" "$whole" \
    "$(find "$folder" -name 'checkpoint.[01]' | wc -l)"
  check_no_process_left "$1"
}

# Kills the watcher and waits for its end. Until then, run.sh can still write requests to its pipe.
kill_watcher() {
  local child
  for child in $(processes); do
    if grep -qzx -- --watch "/proc/$child/cmdline" 2>/dev/null; then
      kill -KILL "$child"
      wait_until "the watcher is gone" is_gone "$child"
    fi
  done
}
# shellcheck disable=SC2317  # called by wait_until
is_gone() { ! grep -qz . "/proc/$1/environ" 2>/dev/null; }  # a zombie has no environment

# This case takes 10 s, so it runs in parallel with the others. Its exit code is written to a file,
# because this shell forgets it if a later child gets the same process id.
new_case mute
(
  start -- "$fake" "$folder" mute
  echo "$pid" >"$folder/pid"
  end
  echo "$code" >"$folder/code"
) &
wait_until_ready
wait_until "its process id is known" [ -s "$folder/pid" ]
kill -TERM "$(cat "$folder/pid")"

declare -A code_of=([TERM]=75 [HUP]=75 [USR1]=75 [INT]=130)
for signal in TERM HUP USR1 INT; do
  new_case "one_$signal"
  start -- "$fake" "$folder" save
  wait_until_ready
  kill "-$signal" "$pid"
  check_end "$signal" "${code_of[$signal]}" 2
done

for signal in TERM HUP USR1; do
  new_case "storm_$signal"
  start -- "$fake" "$folder" save 0.5
  wait_until_ready
  storm "$pid" "$signal" &
  check_end "a storm of $signal" 75 2
  new_case "early_storm_$signal"
  start -- "$fake" "$folder" slow-save
  wait_for_traps
  storm "$pid" "$signal" &
  check_end "a storm of $signal from the start" 75 ""
  check "a storm of $signal from the start: ranks that began have saved" \
    "$(cat "$folder"/notes.* 2>/dev/null | grep -c attempt)" "$(saves)"
done

new_case storm_INT
start -- "$fake" "$folder" save 0.5
wait_until_ready
storm "$pid" INT &
check_end "a storm of INT" 130
new_case early_storm_INT
start -- "$fake" "$folder" slow-save
wait_for_traps
storm "$pid" INT &
check_end "a storm of INT from the start" 130
new_case storm_of_all
start -- "$fake" "$folder" save 0.5
wait_until_ready
storm "$pid" HUP TERM USR1 &
check_end "a storm of HUP, TERM and USR1" 75 2

new_case early
start -- "$fake" "$folder" slow-save
wait_for "$folder/notes.0"
wait_for "$folder/notes.1"  # the ranks have started, but have no handler yet
kill -TERM -- "-$pid"       # to the process group, as `timeout` does
sleep 0.2
kill -TERM -- "-$pid"
check_end "an early TERM is kept until the ranks can receive it" 75 2

new_case group_storm
start -- "$fake" "$folder" save 0.5
wait_until_ready
storm "-$pid" TERM &
check_end "a storm of TERM to the process group" 75 2

new_case no_watcher
start -- "$fake" "$folder" save 0.5
wait_until_ready
kill_watcher
kill -TERM "$pid"
check_end "TERM, and the watcher was killed" 75 2
new_case no_watcher_deaf
start -- "$fake" "$folder" deaf
wait_until_ready
kill_watcher
kill -INT "$pid"
sleep 0.3
kill -INT "$pid"
check_end "second Ctrl-C, and the watcher was killed" 130 0

new_case two_INT
begin=$SECONDS
start -- "$fake" "$folder" deaf
wait_until_ready
kill -INT "$pid"
sleep 0.5
kill -INT "$pid"
check_end "second Ctrl-C ends ranks that ignore USR1" 130 0
check "second Ctrl-C: within 30 s" yes "$([ $((SECONDS - begin)) -lt 30 ] && echo yes)"

# The pauses cover all states of the ranks, from before their save to after their end.
for pause in 0 0.05 0.2 0.5 1 1.5; do
  new_case "two_INT_$pause"
  start -- "$fake" "$folder" save 0.7
  wait_until_ready
  kill -INT "$pid"
  sleep "$pause"
  kill -INT "$pid" 2>/dev/null
  check_end "a second Ctrl-C after $pause s" 130
done

new_case TERM_INT
start -- "$fake" "$folder" save 0.5
wait_until_ready
kill -TERM "$pid"
sleep 0.1
kill -INT "$pid"
check_end "TERM, then Ctrl-C" 130 2
new_case INT_TERM
start -- "$fake" "$folder" save 0.5
wait_until_ready
kill -INT "$pid"
sleep 0.1
kill -TERM "$pid"
check_end "Ctrl-C, then TERM" 130 2

# The signal does not hide the exit codes of the ranks.
new_case fail_save
start -- "$fake" "$folder" fail-save
wait_until_ready
kill -TERM "$pid"
check_end "TERM, and the save failed" 74
new_case finish_save
start --restart -- "$fake" "$folder" crash-then finish-save --run "$folder"
wait_until_ready
kill -TERM "$pid"
check_end "TERM in the second attempt, which finished" 0

# check_killed NAME SAVES: checks that the ranks save and end after run.sh was killed by KILL, which
# it cannot trap.
check_killed() {
  end
  check "$1: exit 137" 137 "$code"
  wait_until "$1: all processes have ended" has_no_process
  if [ -n "$2" ]; then check "$1: $2 ranks saved" "$2" "$(saves)"; fi
  check "$1: checkpoints are whole" "${2:-$(whole_checkpoints)}" "$(whole_checkpoints)"
  check_no_process_left "$1"
}
new_case KILL
start -- "$fake" "$folder" save
wait_until_ready
kill -KILL "$pid"
check_killed "KILL" 2
new_case KILL_group
start -- "$fake" "$folder" save
wait_until_ready
kill -KILL -- "-$pid"
check_killed "KILL of the process group" 2
new_case KILL_early
start -- "$fake" "$folder" slow-save
wait_for "$folder/notes.0"
wait_for "$folder/notes.1"
kill -KILL "$pid"
check_killed "KILL before the ranks have handlers" 2
new_case KILL_after_TERM
start -- "$fake" "$folder" save 1
wait_until_ready
kill -TERM "$pid"
wait_until "rank 0 saves" grep -q saving "$folder/notes.0"
kill -KILL "$pid"
check_killed "KILL while the ranks save" 2
new_case KILL_deaf
start --grace 1 -- "$fake" "$folder" deaf
wait_until_ready
kill -KILL "$pid"
check_killed "KILL, and the ranks ignore USR1" 0
for pause in 0 0.03 0.1; do
  new_case "KILL_$pause"
  start --grace 1 -- "$fake" "$folder" save
  wait_for_traps
  sleep "$pause"
  kill -KILL "$pid"
  check_killed "KILL $pause s after the start" ""
done

new_case mpirun_killed
start -- "$fake" "$folder" save
wait_until_ready
for child in $(processes); do
  if [ "$(cat "/proc/$child/comm" 2>/dev/null)" = mpirun ]; then kill -KILL "$child"; fi
done
check_end "KILL of mpirun" 137

# In `run.sh 2>&1 | tee log`, the same Ctrl-C also kills the reader of the output.
new_case pipe
mkfifo "$folder/pipe"
FAKE_RUN=$folder bash "$run_sh" --ranks 2 -- "$fake" "$folder" save >"$folder/pipe" 2>&1 &
pid=$!
cat <"$folder/pipe" >"$folder/log" &
reader=$!
disown "$reader"  # bash would report that it was killed
wait_until_ready
kill -KILL "$reader"
kill -INT "$pid"
check_end "Ctrl-C after the reader has ended" 130 2

new_case terminal
code=$(FAKE_RUN=$folder python3 - bash "$run_sh" --ranks 2 -- "$fake" "$folder" save <<'PYTHON'
import os, pty, sys, time
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
while not all(os.path.exists(f"{sys.argv[-2]}/ready.{rank}") for rank in (0, 1)):
    time.sleep(0.02)
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
PYTHON
)
check "the terminal was closed: exit 75" 75 "$code"
check "the terminal was closed: 2 ranks saved" 2 "$(saves)"
check_no_process_left "the terminal was closed"

folder=$work/mute
wait_until "ranks without a handler have ended" [ -s "$folder/code" ]
check "TERM, and the ranks handle no signal: exit 75" 75 "$(cat "$folder/code")"
check_no_process_left "TERM, and the ranks handle no signal"
check "TERM, and the ranks handle no signal: a message says so" 1 \
  "$(grep -c 'exit 138: the ranks ended before they could save' "$folder/log")"

exit $((failures > 0))
