#!/usr/bin/env bash
# recipes_test.sh HALFLIFE: checks that every recipe resolves and has the number of parameters of
# its run card, and that every sweep resolves to the number of runs of its card.
set -uo pipefail
halflife=$1
# shellcheck source=tests/launch/checks.sh
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/../../launch/recipes" || exit 1

# plan RECIPE RANKS VOCABULARY: prints the output of --dry-run after the config.
plan() {
  OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=$2 "$halflife" train --config "$1.textproto" --dry-run \
    --set data.path=none --set model.vocab_size="$3" | sed -n '/^parameters/,$p'
}
row() { sed -nE "s/^ *$1 +//p" <<<"$plan" | sed -n "${2:-1}p"; }

declare -A vocabulary
# recipe NAME VOCABULARY PARAMETERS: checks that it resolves, with this number of parameters.
recipe() {
  local plan
  vocabulary[$1]=$2
  plan=$(plan "$1" 1 "$2")
  check "$1, parameters" "$3" "$(row total | grep -oE '\([0-9]+\)' | tr -d '()')"
}
# on_gpus NAME RANKS...: checks the FLOPs of the run card for each number of ranks. Checks the
# memory for the first number, which is that of the card ("on 2 nodes" of 8 GPUs).
on_gpus() {
  local name=$1 first=$2 ranks plan memory
  shift
  for ranks in "$@"; do
    plan=$(plan "$name" "$ranks" "${vocabulary[$name]}")
    memory="$(row total 2) per rank on $((ranks / 8)) node"
    if [ "$ranks" = "$first" ]; then
      check "$name on $ranks ranks, memory" \
        "$(sed -nE 's/^#   memory +([0-9.]+ GiB per rank on [0-9]+ node).*/\1/p' "$name.textproto")" "$memory"
    fi
    check "$name on $ranks ranks, PFLOP per step" \
      "$(sed -nE 's/.* ([0-9.]+) PFLOP a step.*/\1/p' "$name.textproto")" \
      "$(row 'FLOPs, full' | awk '{ printf $1 + 0 < 10000 ? "%.2f" : "%.1f", $1 / 1000 }')"
  done
}
recipe quickstart 259 1889664
recipe gla_340m 32000 374475776
recipe retention_340m 32000 380165120
recipe softmax_340m 32000 373867520
recipe gpt2_124m 50257 124439808
recipe d2d_124m 50257 123674880
recipe gla_1.3b 32000 1365508096
recipe gated_delta_net_340m 32000 512272124
recipe gated_delta_net_1.3b 32000 1387348732
recipe kda_1.3b 32000 1390941568
recipe hybrid_gdn_1.3b 32000 1285334708
recipe mamba2_1.3b 32000 1371839488
recipe gla_7b 32000 6741635072
recipe simple_mqar 8192 279776
recipe conv_attention_mqar 8192 1149312
recipe rebased_150m 50280 147548928
recipe based_150m 50280 147542016
recipe mamba_130m 50280 129135360
recipe gau_alpha 12000 96517632
recipe gau_alpha_6l 12000 31042560
recipe gau_bytes 259 1451328
recipe dna_alibi 4096 117060866
on_gpus gla_340m 8 16 32
on_gpus retention_340m 8 16 32
on_gpus softmax_340m 8 16 32
on_gpus gpt2_124m 8 16 32
on_gpus d2d_124m 8 16
on_gpus rebased_150m 8 16 32
on_gpus based_150m 8 16 32
on_gpus mamba_130m 8 16 32
on_gpus gau_alpha 8 16
on_gpus gla_1.3b 16 32 64 128
on_gpus gated_delta_net_340m 8 16 32
on_gpus gated_delta_net_1.3b 16 32 64 128
on_gpus kda_1.3b 16 32 64 128
on_gpus hybrid_gdn_1.3b 16 32 64 128
on_gpus mamba2_1.3b 16 32 64 128
on_gpus gla_7b 64 128

for recipe in *.textproto; do
  name=${recipe%.textproto}
  if [[ -z ${vocabulary[$name]:-} ]]; then
    echo "FAILED  $recipe is not in this test"
    failures=$((failures + 1))
  fi
  for line in parameters tokens hardware memory 'step time' loss; do
    if ! grep -qE "^#   $line  *[^ ]" "$recipe"; then
      echo "FAILED  $recipe: no '$line' in its run card"
      failures=$((failures + 1))
    fi
  done
done

# sweep NAME RUNS: checks that the recipe of every run resolves.
declare -A num_runs
sweep() {
  num_runs[$1]=$2
  check "$1, runs" "$2 pending" \
    "$("$halflife" sweep --config "../sweeps/$1.textproto" --out none --dry-run | head -n 1)"
  check "$1, runs of its card" "$2" "$(sed -nE 's/^#   runs +([0-9,]+),.*/\1/p' "../sweeps/$1.textproto" | tr -d ,)"
}
sweep mqar_figure_1 2000
sweep mqar_ablation 960
sweep mqar_small 64
sweep learning_rate 10
sweep lengths 20
sweep zoo 36
for sweep in ../sweeps/*.textproto; do
  name=$(basename "$sweep" .textproto)
  if [[ -z ${num_runs[$name]:-} ]]; then
    echo "FAILED  $sweep is not in this test"
    failures=$((failures + 1))
  fi
done
exit $((failures > 0))
