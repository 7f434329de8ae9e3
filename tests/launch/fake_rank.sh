#!/usr/bin/env bash
# Stands in for a rank of `halflife train` in run_sh_test.sh: notes each life and signal in FOLDER,
# and ends as told.
#   fake_rank.sh FOLDER exit CODE...    life n ends with the n-th code (the last one stays)
#   fake_rank.sh FOLDER finish          ends a run: DONE, exit 0
#   fake_rank.sh FOLDER save            runs until USR1, then "saves" and ends with 75
#   fake_rank.sh FOLDER slow-save       the same, with its handler installed only after a second
#   fake_rank.sh FOLDER deaf            ignores USR1
set -u
folder=$1 mode=$2
shift 2
rank=${OMPI_COMM_WORLD_RANK:-0}
note() { echo "rank $rank: $*" >>"$folder/notes.$rank"; }

note "life, threads ${OMP_NUM_THREADS:-unset}"
life=$(grep -c life "$folder/notes.$rank")
case $mode in
  exit)
    [ "$life" -le $# ] || life=$#
    exit "${!life}"
    ;;
  finish)
    echo "step 1" >"$folder/DONE.new"
    mv "$folder/DONE.new" "$folder/DONE"
    ;;
  save | slow-save)
    asked=no
    if [ "$mode" = slow-save ]; then sleep 1; fi
    trap 'asked=yes' USR1
    touch "$folder/ready.$rank"
    while [ "$asked" = no ]; do sleep 0.05; done
    note saved
    exit 75
    ;;
  deaf)
    trap '' USR1
    touch "$folder/ready.$rank"
    sleep 60
    ;;
esac
