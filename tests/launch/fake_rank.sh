#!/usr/bin/env bash
# Imitates a rank of `halflife train` in run_sh_*test.sh. Records each attempt and signal in FOLDER,
# and ends as its arguments specify.
#   fake_rank.sh FOLDER exit CODE...      attempt n ends with the n-th code, or with the last one
#   fake_rank.sh FOLDER exit-saved CODE...   the same, with a new checkpoint each time, and DONE at 0
#   fake_rank.sh FOLDER exit-loaded CODE...  the same as exit, and ckpt/LATEST names step 10
#   fake_rank.sh FOLDER finish            ends a run: DONE, exit 0
#   fake_rank.sh FOLDER save [SECONDS]    runs until USR1, then saves for SECONDS and ends with 75
#   fake_rank.sh FOLDER slow-save         the same, but installs its handler only after a second
#   fake_rank.sh FOLDER fail-save         runs until USR1, then ends with 74
#   fake_rank.sh FOLDER finish-save       runs until USR1, then ends a run: DONE, exit 0
#   fake_rank.sh FOLDER deaf              ignores USR1
#   fake_rank.sh FOLDER mute              has no handler for USR1
#   fake_rank.sh FOLDER crash-then MODE   the first attempt ends with 72, the next ones as with MODE
# A checkpoint is FOLDER/checkpoint.RANK. Like a real one, it is first written under another name.
set -u
folder=$1 mode=$2
shift 2
rank=${OMPI_COMM_WORLD_RANK:-0}
note() { echo "rank $rank: $*" >>"$folder/notes.$rank"; }
finish() {
  echo "step 1" >"$folder/DONE.new.$rank"
  mv "$folder/DONE.new.$rank" "$folder/DONE"
}
# point_to STEP: replaces ckpt/LATEST. A save does this, and so does a load of an older step.
point_to() {
  printf 'step_%012d\n' "$1" >"$folder/ckpt/LATEST.new.$rank"
  mv "$folder/ckpt/LATEST.new.$rank" "$folder/ckpt/LATEST"
}
save_step() {
  local step
  step=$folder/ckpt/$(printf 'step_%012d' "$1")
  mkdir -p "$step"
  touch "$step/manifest.pb"
  point_to "$1"
}
# Waits for USR1. Handles only the first one, like a rank that is about to end.
run_until_asked() {
  asked=no
  trap 'asked=yes; trap - USR1' USR1
  touch "$folder/ready.$rank"
  while [ "$asked" = no ]; do sleep 0.05; done
  trap '' TERM  # mpirun sends TERM when the other rank has ended; real ranks end at the same time
}

# Prints the values of --resume and --skip-data in the arguments, if any.
resume_of() {
  while [ $# -gt 0 ]; do
    case $1 in
      --resume) printf ', resume %s' "$2" ;;
      --resume=*) printf ', resume %s' "${1#--resume=}" ;;
      --skip-data) printf ', skip %s' "$2" ;;
      --skip-data=*) printf ', skip %s' "${1#--skip-data=}" ;;
    esac
    shift
  done
}

note "attempt, threads ${OMP_NUM_THREADS:-unset}$(resume_of "$@")"
attempt=$(grep -c attempt "$folder/notes.$rank")
if [ "$mode" = crash-then ]; then
  if [ "$attempt" = 1 ]; then exit 72; fi
  mode=$1
  shift
fi
case $mode in
  exit)
    [ "$attempt" -le $# ] || attempt=$#
    exit "${!attempt}"
    ;;
  exit-saved)
    save_step "$attempt"
    if [ "${!attempt}" = 0 ]; then finish; fi
    exit "${!attempt}"
    ;;
  exit-loaded)
    [ "$attempt" -le $# ] || attempt=$#
    point_to 10
    exit "${!attempt}"
    ;;
  finish) finish ;;
  save | slow-save)
    if [ "$mode" = slow-save ]; then sleep 1; fi
    run_until_asked
    note saving
    printf 'first half, ' >"$folder/checkpoint.$rank.new"
    sleep "${1:-0.1}"
    echo 'second half' >>"$folder/checkpoint.$rank.new"
    mv "$folder/checkpoint.$rank.new" "$folder/checkpoint.$rank"
    note saved
    exit 75
    ;;
  fail-save)
    run_until_asked
    exit 74
    ;;
  finish-save)
    run_until_asked
    finish
    ;;
  deaf)
    trap '' USR1
    touch "$folder/ready.$rank"
    sleep 60
    ;;
  mute)
    touch "$folder/ready.$rank"
    sleep 60
    ;;
esac
