#!/usr/bin/env bash
# slurm_ranks_test.sh HALFLIFE RANK_PROBE (inside with_slurm.sh): checks that ranks know their node
# and number with every launcher, and that the end of one rank ends the job with its exit code.
set -uo pipefail
# shellcheck source=tests/launch/slurm_run.sh
source "$(dirname "${BASH_SOURCE[0]}")/slurm_run.sh" "$1"
rank_probe=$2
make_dataset

# Prints a line for each rank: node, rank, ranks, rank on the node.
cat >place.sh <<END
echo "\$SLURMD_NODENAME \$($rank_probe context-info | cut -d ' ' -f 1-3)"
END
places() {
  local launcher=$1 per_node=$2
  wait_for_end "$(sbatch --parsable --nodes=2 --ntasks-per-node="$per_node" --output=places.log \
    --wrap "$launcher bash $work/place.sh")"
  grep '^n[12] ' places.log | sort -n -k 2 | paste -sd ,
}
for launcher in "mpirun --bind-to none" "srun --mpi=pmix"; do
  check "$launcher, 1 per node" "n1 0 2 0,n2 1 2 0" "$(places "$launcher" 1)" places
  check "$launcher, 2 per node" "n1 0 4 0,n1 1 4 1,n2 2 4 0,n2 3 4 1" "$(places "$launcher" 2)" places
done

# The script gives every rank its share of the 16 cores of a node. Ranks wait for each other, because
# Slurm ends the others when one exits with an error.
cat >cores.sh <<END
#!/usr/bin/env bash
echo "cores of rank \$SLURM_PROCID: \$SLURM_CPUS_PER_TASK"
mkdir -p "$work/said.\$SLURM_JOB_ID/\$SLURM_PROCID"
for ((i = 0; i < 300; i++)); do
  said=("$work/said.\$SLURM_JOB_ID"/*)
  if [ \${#said[@]} -eq "\$SLURM_NTASKS" ]; then break; fi
  sleep 0.1
done
exit 2
END
chmod +x cores.sh
for per_node in 2 4; do
  HALFLIFE=$work/cores.sh LAUNCHER=srun submit "cores_$per_node" --exclusive --ntasks-per-node="$per_node"
  wait_for_end "$job" >/dev/null
  check "$per_node ranks per node: cores of each" "$((2 * per_node))" \
    "$(count "cores of rank [0-9]+: $((16 / per_node))\$" "cores_$per_node.log")" "cores_$per_node"
done

# start NAME LAUNCHER FAULT [TRAIN ARGUMENT...]: starts one attempt of a run that does not end.
declare -A jobs
start() {
  HL_FAULT=$3 LAUNCHER=$2 MAX_RESTARTS=0 submit "$1_$2" -- --set train.steps=1000000 "${@:4}"
  jobs[$1_$2]=$job
}
for launcher in mpirun srun; do
  start kill $launcher train.step:kill:5:1
  start exit $launcher train.step:exit:5:1
  start throw $launcher train.step:throw:5:1
  start hang $launcher train.step:stall:5:1 --set comm.timeout_s=3
  start segv $launcher ''
done
for launcher in mpirun srun; do
  wait_until "segv_$launcher trains" has_trained segv_$launcher
  pid=$(rank_zero "${jobs[segv_$launcher]}")
  kill -PIPE "$pid" # no rank ends by a write to one that has died
  sleep 0.3
  kill -SEGV "$pid"
done

check_death() {
  local run=$2_$1
  wait_for_end "${jobs[$run]}"
  check "$1: one rank ends by $2: exit $3" "$3" "$(sed -nE 's/.*: exit ([0-9]+), step.*/\1/p' "$run.log")" "$run"
  wait_until "the processes of $run are gone" is_gone "${jobs[$run]}"
}
for launcher in mpirun srun; do
  check_death $launcher kill 137
  check_death $launcher throw 70  # by MPI_Abort
  check_death $launcher hang 71
  check_death $launcher segv 139
done
check_death mpirun exit 3
check_death srun exit 137  # the code of the rank that Slurm had to kill, because it waits for the other

exit $((failures > 0))
