#!/usr/bin/env bash
# The logic of launch/quickstart, in a copy with fake set-up, build and halflife program: the
# commands that it runs, the files that it keeps, and its verdict on a run. Exit 77: a tool is
# missing.
set -uo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
for tool in mpirun jq; do
  command -v "$tool" >/dev/null || { echo "SKIPPED: $tool not found"; exit 77; }
done
# shellcheck source=tests/launch/checks.sh
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
shown_log=$work/log

cp -r "$repo/launch" "$work/launch"
printf '#!/bin/sh\n' >"$work/launch/setup"
printf 'build() { :; }\n' >>"$work/launch/common.sh"
mkdir -p "$work/build/cpu/src/cli"
cat >"$work/build/cpu/src/cli/halflife" <<'STAND_IN'
#!/usr/bin/env bash
# Writes what the real commands write. TRAIN_CODE, EXPORT_CODE, VAL_LOSS and BIGRAM_LOSS select the
# outcome.
set -eu
command=$1
value_of() {  # the word after option $1
  local option=$1
  shift
  while [ "$1" != "$option" ]; do shift; done
  echo "$2"
}
[ "${OMPI_COMM_WORLD_RANK:-0}" = 0 ] || exit "${TRAIN_CODE:-0}"
echo "$*" >>calls
case $command in
  prepare)
    out=$(value_of --out "$@")
    mkdir "$out"
    touch "$out/manifest.pb"
    ;;
  train)
    run=$(value_of --run "$@")
    mkdir "$run"
    {
      echo '{"step":0,"val_loss":5.5}'
      for step in 1 2 3; do echo "{\"step\":$step,\"loss\":$((6 - step)),\"tokens_per_s\":${step}000}"; done
      echo "{\"step\":3,\"val_loss\":${VAL_LOSS:-1.5}}"
    } >"$run/metrics.jsonl"
    exit "${TRAIN_CODE:-0}"
    ;;
  eval)
    echo "{\"loss\":${VAL_LOSS:-1.5},\"perplexity\":4.5,\"bigram_loss\":${BIGRAM_LOSS:-2.3}}"
    ;;
  generate) echo "a sample" ;;
  export) exit "${EXPORT_CODE:-0}" ;;
esac
STAND_IN
chmod +x "$work/build/cpu/src/cli/halflife"
cd "$work" || exit 1
printf 'some text\n' >'my text.txt'
quickstart() { launch/quickstart "$@" 'my text.txt' >log 2>&1; }
calls() { cut -d ' ' -f 1 calls | tr '\n' ' '; }

quickstart --set train.steps=3
check "a run that learned: exit 0" 0 $?
check "the commands, in order" "prepare train eval generate report export " "$(calls)"
check "the text arrives whole" 1 "$(grep -c -- "--input $work/my text.txt --tokenizer bytes" calls)"
check "--set arrives" 1 "$(grep -c 'train .*--set train.steps=3' calls)"
check "the summary has the speed" 1 "$(grep -c '^tokens/s  *2000  ' log)"
check "the summary has the losses" 1 "$(grep -c '^validation loss  *5.500 -> 1.500$' log)"

rm calls
quickstart
check "a second time: the dataset is kept" "train eval generate report export " "$(calls)"
check "a second time: a run of its own" yes "$([ -d quickstart/run-002 ] && echo yes)"
printf 'more\n' >>'my text.txt'
rm calls
quickstart
check "a changed text: a new dataset" "prepare train eval generate report export " "$(calls)"

EXPORT_CODE=2 quickstart
check "a model without a Hugging Face form: exit 0" 0 $?
check "and all the same a summary" 1 "$(grep -c '^tokens/s  *2000  ' log)"
check "without a line that loads it" 0 "$(grep -c 'from_pretrained' log)"
EXPORT_CODE=4 quickstart
check "an export that fails: its code" 4 $?

# A folder of links, like a cache of datasets.
mkdir links_a links_b
echo "one text" >one && ln -s ../one links_a/text.txt
echo "another" >two && ln -s ../two links_b/text.txt
rm calls
launch/quickstart links_a >log 2>&1
launch/quickstart links_b >log 2>&1
check "other texts behind links: other datasets" 2 "$(grep -c '^prepare' calls)"

VAL_LOSS=3.4 BIGRAM_LOSS=9 quickstart
check "not below 60 % of the start: exit 1" 1 $?
VAL_LOSS=2.4 quickstart
check "not below the bigram model: exit 1" 1 $?
TRAIN_CODE=3 quickstart
check "a failed training's code is kept" 3 $?
TRAIN_CODE=75 quickstart
check "stopped and saved: exit 75" 75 $?
check "stopped and saved: says how to go on" 1 \
  "$(grep -c '&& launch/mpirun/run.sh .* train .* --run quickstart/run-' log)"

exit $((failures > 0))
