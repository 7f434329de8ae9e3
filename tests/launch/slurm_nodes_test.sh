#!/usr/bin/env bash
# slurm_nodes_test.sh HALFLIFE (inside with_slurm.sh --isolated --nodes 8): checks that bad links
# only delay a run, that a dead node causes one restart, and that neither changes any bit of the
# result.
set -uo pipefail
# shellcheck source=tests/launch/slurm_run.sh
source "$(dirname "${BASH_SOURCE[0]}")/slurm_run.sh" "$1"
make_dataset
make_undisturbed
read -r -a node_pids <<<"$HL_NODE_PIDS"

# Prints the number of the last node of job $1, on which its rank 1 runs.
last_node() { scontrol show hostnames "$(job_field "$1" NodeList)" | tail -n 1 | tr -d n; }
finish() {
  wait_for_run "$job" "$2"
  check "$1: finished" "COMPLETED 0" "$(ending "$job")" "$2"
  check_undisturbed "$1" "$2"
}

submit flap
if pause flap "$job"; then
  link=p$(last_node "$job")
  ip -n "$HL_BRIDGE" link set "$link" down
  continue_run "$job"
  sleep 3
  ip -n "$HL_BRIDGE" link set "$link" up
fi
finish "a link that is down for 3 s" flap
check "a link that is down for 3 s: one attempt" 1 "$(attempts flap | wc -w)" flap

in_bridge=(nsenter "--net=/run/netns/$HL_BRIDGE")
if "${in_bridge[@]}" nft add table bridge loss 2>/dev/null &&
  "${in_bridge[@]}" nft add chain bridge loss forward '{ type filter hook forward priority 0; }' &&
  "${in_bridge[@]}" nft add rule bridge loss forward numgen random mod 100 '<' 5 counter drop; then
  submit loss
  wait_until "40 steps under loss" has_trained loss 40
  dropped=$("${in_bridge[@]}" nft list table bridge loss | grep -oE 'packets [0-9]+' | cut -d ' ' -f 2)
  "${in_bridge[@]}" nft delete table bridge loss
  finish "every twentieth packet lost for 40 steps" loss
  check "packets were lost" yes "$([ "${dropped:-0}" -gt 10 ] && echo yes)" loss
else
  echo "SKIPPED: packet loss: nft or its kernel modules were not found (Debian: nftables)"
fi

# Training waits for its saves, so at step 60 the save of step 50 exists.
saves=(--set ckpt.every=50 --set ckpt.background=false --set comm.timeout_s=900)

# Both jobs lose a node at the same time, because Slurm needs half a minute to declare a node dead.
declare -A jobs
for launcher in mpirun srun; do
  LAUNCHER=$launcher submit death_$launcher --exclusive -- "${saves[@]}"
  jobs[$launcher]=$job
  pause death_$launcher "$job" 60
done
for launcher in mpirun srun; do
  job=${jobs[$launcher]}
  kill -KILL "${node_pids[$(last_node "$job") - 1]}"
  continue_run "$job"
done
for launcher in mpirun srun; do
  job=${jobs[$launcher]}
  finish "$launcher: a node dies" death_$launcher
  check "$launcher: a node dies: one restart" 1 "$(job_field "$job" Restarts)" death_$launcher
done
check "mpirun: a node dies: its code" 1 "$(count ': exit 205, step 0 -> (50|100)$' death_mpirun.log)" death_mpirun

# Each row is shared by the two ranks of a node, in two groups. A node dies without a replacement,
# and the job is changed to run on the remaining node. Rows are split as before, so no bit changes.
# shellcheck disable=SC2317  # wait_until calls it
is_requeued() { [ "$(job_field "$1" JobState) $(job_field "$1" Restarts)" = "PENDING 1" ]; }
shared=(--set parallel.sp=2 --set parallel.zero_stage=1 "${saves[@]}")
"$HALFLIFE" train --config recipe.textproto --run mesh_undisturbed --local-ranks 4 "${shared[@]}" \
  >mesh_undisturbed.log 2>&1 || { cat mesh_undisturbed.log && exit 1; }
submit mesh --ntasks-per-node=2 --exclude="n[1-6]" -- "${shared[@]}"
if pause mesh "$job" 60; then
  kill -KILL "${node_pids[$(last_node "$job") - 1]}"
  continue_run "$job"
fi
wait_until "the job of shared rows is requeued" is_requeued "$job"
scontrol update JobId="$job" NumNodes=1
scontrol update JobId="$job" NumTasks=2
wait_for_run "$job" mesh
check "shared rows, a node dies: finished" "COMPLETED 0" "$(ending "$job")" mesh
check "shared rows, a node dies: two ranks continued" 1 \
  "$(count '8 x 64 tokens a step on 2 ranks, 2 to a row' mesh.log)" mesh
check "shared rows, a node dies: four ranks began" 1 \
  "$(count '8 x 64 tokens a step on 4 ranks, 2 to a row' mesh.log)" mesh
"$HALFLIFE" ckpt diff mesh_undisturbed mesh --bitwise >diff.log 2>&1
check "shared rows, a node dies: the bits of an undisturbed run" 0 $? mesh

exit $((failures > 0))
