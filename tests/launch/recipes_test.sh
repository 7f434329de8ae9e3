#!/usr/bin/env bash
# recipes_test.sh HALFLIFE: every recipe resolves, and has the parameters that its run card claims.
set -uo pipefail
halflife=$1
cd "$(dirname "${BASH_SOURCE[0]}")/../../launch/recipes" || exit 1
failures=0

# parameters RECIPE OVERRIDE...: the exact total that --dry-run prints.
parameters() {
  local recipe=$1
  shift
  "$halflife" train --config "$recipe" --dry-run --set data.path=none "$@" |
    sed -nE 's/^ *total .*\(([0-9]+)\)$/\1/p' | head -n 1
}
check() {
  if [ "$2" = "$3" ]; then
    echo "ok      $1: $2 parameters"
  else
    echo "FAILED  $1: wanted $2 parameters, met '$3'"
    failures=$((failures + 1))
  fi
}

known=(quickstart gla_340m retention_340m softmax_340m)
check quickstart 1889664 "$(parameters quickstart.textproto --set model.vocab_size=259)"
check gla_340m 374475776 "$(parameters gla_340m.textproto --set model.vocab_size=32000)"
check retention_340m 380165120 "$(parameters retention_340m.textproto --set model.vocab_size=32000)"
check softmax_340m 373867520 "$(parameters softmax_340m.textproto --set model.vocab_size=32000)"

for recipe in *.textproto; do
  name=${recipe%.textproto}
  if [[ " ${known[*]} " != *" $name "* ]]; then
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
exit $((failures > 0))
