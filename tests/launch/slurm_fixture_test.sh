#!/usr/bin/env bash
# Checks that tests/support/with_slurm.sh returns the exit code of its command and leaves no
# processes and files, even if the command leaves a job running or is stopped.
set -uo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/launch/checks.sh
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
shown_log=$work/log
export TMPDIR=$work  # where with_slurm.sh puts its files

cat >"$work/leave_a_job" <<'END'
echo "$SLURM_CONF" >"$1/conf_was"
sed -nE 's/^SlurmctldPort=//p; s/.* Port=([0-9]+).*/\1/p' "$SLURM_CONF" >"$1/ports"
sbatch --nodes=2 --ntasks-per-node=1 --output=/dev/null --wrap 'srun --mpi=none sleep 300' >"$1/job"
until squeue --steps --noheader | grep -q sleep; do sleep 0.1; done
touch "$1/running"
[ "$2" = stay ] && sleep 300
exit 7
END

leftovers() {
  local conf port
  conf=$(<"$work/conf_was")
  grep -lsa "SLURM_CONF=$conf" /proc/[0-9]*/environ
  while read -r port; do
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then echo "port $port"; fi
  done <"$work/ports"
  ls -d "$work"/hlslurm.* 2>/dev/null
  find /run/netns -name "hl$1-*" 2>/dev/null
}

for isolated in '' --isolated; do
  name=with_slurm.sh${isolated:+ $isolated}
  rm -f "$work"/{running,ports,conf_was}
  # shellcheck disable=SC2086  # one word or none
  "$repo/tests/support/with_slurm.sh" $isolated bash "$work/leave_a_job" "$work" >"$work/log" 2>&1 &
  pid=$!
  wait $pid
  code=$?
  if [ $code -eq 77 ]; then
    cat "$work/log"
    [ -n "$isolated" ] || exit 77
    continue
  fi
  check "$name: exit code of the command" 7 $code
  check "$name: nothing left" "" "$(leftovers $pid)"
done

rm -f "$work/running"
"$repo/tests/support/with_slurm.sh" bash "$work/leave_a_job" "$work" stay >"$work/log" 2>&1 &
pid=$!
for ((i = 0; i < 600; i++)); do
  [ -e "$work/running" ] && break
  sleep 0.1
done
kill -TERM $pid
wait $pid
check "stopped: exit code" 130 $?
check "stopped: nothing left" "" "$(leftovers $pid)"

exit $((failures > 0))
