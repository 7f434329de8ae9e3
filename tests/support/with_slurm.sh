#!/usr/bin/env bash
# tests/support/with_slurm.sh [--nodes N] [--isolated] COMMAND...
#
# Runs COMMAND with a private Slurm on this machine and returns its exit code. The nodes are n1, n2,
# ... The partitions are ci (default) and urgent, whose jobs preempt those of ci. Munge and cgroups
# are not needed, and root is needed only with --isolated. Exit 77: Slurm or a permission is
# missing; the reason is on a line "SKIPPED: ...".
#
#   --nodes N     number of nodes (default 2)
#   --isolated    every node has its own network, host name, processes and shared memory. A bridge
#                 in a separate network namespace connects the nodes. COMMAND runs in this
#                 namespace, with the variables
#                   HL_BRIDGE    name of this namespace, in which link pN leads to node N
#                   HL_NODE_PIDS a process id for each node; KILL to the N-th one simulates a power
#                                failure of node N
#
# Without --isolated, the nodes share the name and loopback of this host, and COMMAND has Open MPI
# settings for that. At the end, all started processes are ended by their process id, and their
# files are removed.
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin
seconds_to_start=120
num_nodes=2 isolated=no
pids=() command_pid='' bridge='' namespaces=()

skip() {
  echo "SKIPPED: $*"
  exit 77
}

parse_arguments() {
  while [[ ${1:-} == --* ]]; do
    case $1 in
      --nodes) num_nodes=$2 && shift 2 ;;
      --isolated) isolated=yes && shift ;;
      *) echo "with_slurm.sh: unknown argument '$1'" && exit 2 ;;
    esac
  done
  command=("$@")
}

check_machine() {
  local tool tools=(slurmctld slurmd sbatch srun scontrol squeue sinfo mpirun)
  if [ "$isolated" = yes ]; then tools+=(ip nsenter unshare); fi
  for tool in "${tools[@]}"; do
    command -v "$tool" >/dev/null ||
      skip "$tool not found (Debian: slurm-wlm openmpi-bin iproute2 util-linux)"
  done
  mountpoint -q /sys/fs/cgroup || skip "/sys/fs/cgroup is not mounted, which slurmd requires"
  getent ahostsv4 "$host" | grep -q '^127\.' || [ "$isolated" = yes ] ||
    skip "the name of this host, $host, does not resolve to 127.0.0.1"
}

# Prints the first of 2 + num_nodes adjacent free ports.
free_ports() {
  local first port
  while :; do
    first=$((20000 + RANDOM % 10000))
    for ((port = first; port < first + num_nodes + 2; port++)); do
      if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then continue 2; fi
    done
    echo "$first"
    return 0
  done
}

write_conf() {
  local controller=127.0.0.1 shared_host='' port i
  port=$(free_ports)
  if [ "$isolated" = yes ]; then
    controller=$subnet.10
  else
    shared_host='CommunicationParameters=NoInAddrAny,NoCtldInAddrAny'
  fi
  # FirstJobId: job ids must differ from those of another Slurm that a parallel test has started.
  # Jobs and nodes on one host must not share temporary directories. Slurm's PMIx has one per node
  # (TmpFS), and a job of Open MPI that ends would remove the directory of a job that begins.
  cat >"$dir/task_prolog" <<PROLOG
#!/bin/sh
tmp=$dir/tmp.\$SLURMD_NODENAME/\$SLURM_JOB_ID
mkdir -p "\$tmp" && echo "export TMPDIR=\$tmp"
PROLOG
  chmod +x "$dir/task_prolog"
  cat >"$SLURM_CONF" <<CONF
ClusterName=halflife_test
SlurmctldHost=$host($controller)
SlurmctldPort=$port
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/none
CredType=cred/none
$shared_host
MpiDefault=pmix
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
FirstJobId=$((port * 100))
TaskProlog=$dir/task_prolog
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
SlurmctldParameters=preempt_send_user_signal
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillOnBadExit=1
KillWait=10
SlurmdTimeout=10
MinJobAge=600
CompleteWait=0
ReturnToService=2
MailProg=/bin/true
JobCompType=jobcomp/none
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool.%n
TmpFS=$dir/tmp.%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
CONF
  for ((i = 1; i <= num_nodes; i++)); do
    mkdir -p "$dir/spool.n$i" "$dir/tmp.n$i"
    if [ "$isolated" = yes ]; then
      echo "NodeName=n$i NodeHostname=n$i NodeAddr=$subnet.$((10 + i)) CPUs=16 RealMemory=1024"
    else
      echo "NodeName=n$i NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + i)) CPUs=16 RealMemory=1024"
    fi
  done >>"$SLURM_CONF"
  cat >>"$SLURM_CONF" <<CONF
PartitionName=ci Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=10
CONF
}

# Creates a bridge in its own namespace, and for each node a namespace with a link to the bridge.
make_network() {
  local i node
  bridge=hl$$-bridge
  ip netns add "$bridge" 2>/dev/null || skip "network namespaces are not permitted here"
  namespaces+=("$bridge")
  ip -n "$bridge" link set lo up
  ip -n "$bridge" link add br0 type bridge 2>/dev/null || skip "this kernel has no bridges"
  ip -n "$bridge" addr add "$subnet.10/24" dev br0
  ip -n "$bridge" link set br0 up
  for ((i = 1; i <= num_nodes; i++)); do
    node=hl$$-n$i
    ip netns add "$node"
    namespaces+=("$node")
    ip -n "$node" link set lo up
    ip -n "$bridge" link add "p$i" type veth peer name eth0 netns "$node" 2>/dev/null ||
      skip "this kernel has no veth links"
    ip -n "$bridge" link set "p$i" master br0 up
    ip -n "$node" addr add "$subnet.$((10 + i))/24" dev eth0
    ip -n "$node" link set eth0 up
  done
  in_bridge=(nsenter "--net=/run/netns/$bridge")
  export HL_BRIDGE=$bridge
}

# Uses nsenter instead of `ip netns exec`, which would mount /sys again without the cgroups that
# slurmd needs.
start_isolated_node() {
  # shellcheck disable=SC2016  # the inner shell expands $1
  nsenter "--net=/run/netns/hl$$-$1" unshare --uts --ipc --pid --fork --kill-child=KILL --mount-proc \
    sh -c 'hostname "$1"; mount -t tmpfs tmpfs /dev/shm; slurmd -D -N "$1"; exit 0' sh "$1" \
    >"$dir/slurmd.$1.out" 2>&1 &
}

start() {
  local i
  in_bridge=()
  if [ "$isolated" = yes ]; then make_network; fi
  write_conf
  "${in_bridge[@]}" slurmctld -D -i >"$dir/slurmctld.out" 2>&1 &
  pids+=($!)
  for ((i = 1; i <= num_nodes; i++)); do
    if [ "$isolated" = yes ]; then
      start_isolated_node "n$i"
    else
      slurmd -D -N "n$i" >"$dir/slurmd.n$i.out" 2>&1 &
    fi
    pids+=($!)
  done
  export HL_NODE_PIDS="${pids[*]:1}"
}

client() { timeout 5 "${in_bridge[@]}" "$@"; }

wait_until_idle() {
  local begin=$SECONDS num_idle
  while :; do
    num_idle=$(client sinfo -h -N -p ci -t idle -o %N 2>/dev/null | wc -l)
    if [ "$num_idle" -eq "$num_nodes" ]; then return 0; fi
    if ! kill -0 "${pids[@]}" 2>/dev/null || [ $((SECONDS - begin)) -ge "$seconds_to_start" ]; then
      echo "FAILED  with_slurm.sh: only $num_idle of $num_nodes nodes started"
      return 1
    fi
    sleep 0.1
  done
}

# Prints the step daemons and processes of jobs, which outlive slurmd. Their environment contains
# the path of our slurm.conf.
processes_of_jobs() {
  local environment
  grep -lzsxF "SLURM_CONF=$SLURM_CONF" /proc/[0-9]*/environ | while read -r environment; do
    if [ "$(cat "${environment%environ}comm" 2>/dev/null)" = slurmstepd ] ||
      grep -qzs '^SLURM_JOB_ID=' "$environment"; then
      cut -d / -f 3 <<<"$environment"
    fi
  done
}

wait_for_jobs() {
  local i
  for ((i = 0; i < 150; i++)); do
    if [ -z "$(client squeue -h -t R,CG 2>/dev/null)" ]; then return 0; fi
    sleep 0.1
  done
}

# shellcheck disable=SC2317  # called by trap
stop() {
  local code=$1 pid i name
  trap '' INT TERM HUP
  if [ -n "$command_pid" ]; then kill -TERM -- "-$command_pid" 2>/dev/null; fi
  if [ ${#pids[@]} -gt 0 ]; then
    client scancel -f -u "$user" 2>/dev/null
    wait_for_jobs
    if [ "$isolated" = yes ]; then
      kill -KILL "${pids[@]:1}" 2>/dev/null  # ends unshare and, with it, all processes of its node
    fi
    kill -TERM "${pids[@]}" 2>/dev/null
    for ((i = 0; i < 50; i++)); do
      if ! kill -0 "${pids[@]}" 2>/dev/null; then break; fi
      sleep 0.1
    done
    for pid in "${pids[@]}" $(processes_of_jobs); do kill -KILL "$pid" 2>/dev/null; done
    wait 2>/dev/null  # hides bash's message "Killed" for each node
  fi
  for name in "${namespaces[@]}"; do ip netns del "$name"; done
  if [ "$code" -ne 0 ] && [ "$code" -ne 77 ]; then tail -n 20 "$dir"/*.out; fi
  rm -rf "$dir"
}

main() {
  parse_arguments "$@"
  user=$(id -un) host=$(hostname -s) subnet=10.77.0
  check_machine
  dir=$(mktemp -d "${TMPDIR:-/tmp}/hlslurm.XXXXXX")
  trap 'stop $?' EXIT
  trap 'exit 130' INT TERM HUP
  mkdir -p "$dir/state" "$dir/tmp"
  export SLURM_CONF=$dir/slurm.conf TMPDIR=$dir/tmp
  if [ "$isolated" = no ]; then
    # With one host name, ranks of two nodes would use the same shared-memory segment.
    export OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo
  fi
  if [ "$(id -u)" -eq 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  start
  wait_until_idle || exit 1
  # Runs in the background, so that signals are handled at once, and in its own group, so that all
  # of it can be ended.
  setsid "${in_bridge[@]}" "${command[@]}" <&0 &
  command_pid=$!
  wait "$command_pid" 2>/dev/null
}

main "$@"
