#!/usr/bin/env bash
# Tests launch/quickstart in a copy with a fake setup, build, halflife program and nvidia-smi: the
# device that it chooses, the commands that it runs, the files that it keeps, and whether it accepts
# a run. Exit 77: a tool is missing.
set -uo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
for tool in mpirun jq; do
  command -v "$tool" >/dev/null || { echo "SKIPPED: $tool not found"; exit 77; }
done
# shellcheck source=tests/launch/checks.sh
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
shown_log=$work/log

cp -r "$repo/launch" "$work/launch"
printf '#!/bin/sh\necho "setup $*" >>steps\n' >"$work/launch/setup"
cat >>"$work/launch/common.sh" <<'STAND_IN'
build() { echo "build $*" >>steps; }
find_nvcc() { [ "${NVCC:-yes}" = yes ] && echo nvcc; }
STAND_IN
# The fake nvidia-smi reports GPUs if the variable GPU is yes.
mkdir -p "$work/bin" "$work"/build/{cpu,cuda}/src/cli
cat >"$work/bin/nvidia-smi" <<'STAND_IN'
#!/bin/sh
[ "${GPU:-no}" = yes ] || exit 9
echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)"
echo "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)"
STAND_IN
chmod +x "$work/bin/nvidia-smi"
PATH=$work/bin:$PATH
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
echo "$0" >>programs
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
cp "$work"/build/{cpu,cuda}/src/cli/halflife
cd "$work" || exit 1
printf 'some text\n' >'my text.txt'
quickstart() { launch/quickstart "$@" 'my text.txt' >log 2>&1; }
calls() { cut -d ' ' -f 1 calls | tr '\n' ' '; }

quickstart --set train.steps=3
check "a run that learned: exit 0" 0 $?
check "the commands, in order" "prepare train eval generate report export " "$(calls)"
check "the path of the text is passed as one argument" 1 "$(grep -c -- "--input $work/my text.txt --tokenizer bytes" calls)"
check "--set is passed on" 1 "$(grep -c 'train .*--set train.steps=3' calls)"
check "the summary has the speed" 1 "$(grep -c '^tokens/s  *2000  ' log)"
check "the summary has the losses" 1 "$(grep -c '^validation loss  *5.500 -> 1.500$' log)"

check "without a GPU: a message says so" 1 "$(grep -c 'found no NVIDIA GPU: training on the CPU' log)"
check "without a GPU: the build for the CPU" "setup --cpu build cpu halflife" \
  "$(tr '\n' ' ' <steps | sed 's/ -- .*//; s/ $//')"
check "without a GPU: the recipe's device, on 2 ranks" "0 1" \
  "$(grep -c train.device calls) $(grep -c '^== training on 2 ranks' log)"

rm calls
quickstart
check "a second time: the dataset is kept" "train eval generate report export " "$(calls)"
check "a second time: a new run" yes "$([ -d quickstart/run-002 ] && echo yes)"
printf 'more\n' >>'my text.txt'
rm calls
quickstart
check "a changed text: a new dataset" "prepare train eval generate report export " "$(calls)"

EXPORT_CODE=2 quickstart
check "a model without a Hugging Face form: exit 0" 0 $?
check "a model without a Hugging Face form: the summary is printed" 1 "$(grep -c '^tokens/s  *2000  ' log)"
check "a model without a Hugging Face form: no command loads it" 0 "$(grep -c 'from_pretrained' log)"
EXPORT_CODE=4 quickstart
check "a failed export: its exit code" 4 $?

# A GPU is used if nvcc is found, too.
rm calls programs steps
GPU=yes quickstart --set train.precision=fp32
check "a GPU: exit 0" 0 $?
check "a GPU: a message says so" 1 "$(grep -c 'found a GPU (NVIDIA H100 80GB HBM3): training on it in bf16' log)"
check "a GPU: the CUDA build" "setup --cuda build cuda halflife" \
  "$(tr '\n' ' ' <steps | sed 's/ -- .*//; s/ $//')"
check "a GPU: all commands use the CUDA build" build/cuda/src/cli/halflife \
  "$(grep -o 'build/.*' programs | sort -u)"
check "a GPU: bf16 on one rank, before the user's settings" "1 1" \
  "$(grep -c 'train .*--set train.device=cuda --set train.precision=bf16 --set train.precision=fp32' calls) $(grep -c '^== training on 1 rank:' log)"
check "a GPU: the summary" 1 "$(grep -c '^tokens/s .*(median over steps, 1 rank)$' log)"
rm calls steps
GPU=yes quickstart --cpu
check "--cpu: training on the CPU" "1 0" "$(grep -c '^setup --cpu$' steps) $(grep -c train.device calls)"
rm calls
GPU=yes NVCC=no quickstart
check "a GPU without nvcc: training on the CPU, and the fix" "0 1" \
  "$(grep -c train.device calls) $(grep -c 'install the CUDA toolkit 13.0, or set CUDA_HOME' log)"

# A folder of links, as in a cache of datasets.
mkdir links_a links_b
echo "one text" >one && ln -s ../one links_a/text.txt
echo "another" >two && ln -s ../two links_b/text.txt
rm calls
launch/quickstart links_a >log 2>&1
launch/quickstart links_b >log 2>&1
check "links to different texts: different datasets" 2 "$(grep -c '^prepare' calls)"

VAL_LOSS=3.4 BIGRAM_LOSS=9 quickstart
check "not below 60 % of the start: exit 1" 1 $?
VAL_LOSS=2.4 quickstart
check "not below the bigram model: exit 1" 1 $?
TRAIN_CODE=3 quickstart
check "failed training: its exit code" 3 $?
TRAIN_CODE=75 quickstart
check "stopped and saved: exit 75" 75 $?
check "stopped and saved: the command that continues is printed" 1 \
  "$(grep -c '&& launch/mpirun/run.sh .* train .* --run quickstart/run-' log)"

exit $((failures > 0))
