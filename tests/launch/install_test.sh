#!/usr/bin/env bash
# install_test.sh CMAKE BUILD: checks that the result of `cmake --install` works after it was moved:
# both programs, the module for SentencePiece, recipes, scripts and documents.
set -uo pipefail
cmake=$1 build=$2
# shellcheck source=tests/launch/checks.sh
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
shown_log=$work/log

"$cmake" --install "$build" --prefix "$work/first" >"$work/log" 2>&1
check "cmake --install: exit 0" 0 $?
mv "$work/first" "$work/moved" || exit 1
cd "$work" || exit 1
prefix=$work/moved
share=$prefix/share/halflife
# The build tree and PATH must not be used.
halflife=$prefix/bin/halflife
unset HALFLIFE
PATH=$(tr : '\n' <<<"$PATH" | grep -v "^$build" | paste -sd :)
run() { "$@" >"$work/log" 2>&1; }

run "$halflife" --version
check "the program starts" 0 $?
run "$halflife" recipe --config "$share/launch/recipes/quickstart.textproto"
check "a recipe of the prefix resolves" 0 $?
run "$halflife" sweep --config "$share/launch/sweeps/lengths.textproto" --out runs --dry-run
check "a sweep of the prefix finds its recipe" 0 $?
check "documents are installed" yes "$([ -s "$share/README.md" ] && [ -s "$share/docs/data_format.md" ] && echo yes)"
check "bash completes subcommands" 0 "$(grep -q 'complete -F' "$prefix/share/bash-completion/completions/halflife"; echo $?)"
check "the run paths do not contain the build tree" 0 \
  "$(readelf -d "$prefix"/bin/* "$prefix"/lib/halflife/* | grep 'R.*PATH' | grep -cF "$build")"

seq 1 2000 | sed 's/$/ green bottles on the wall/; G' >text.txt
run "$halflife" prepare --input text.txt --documents blank_lines --train-tokenizer --vocab 300 --out data
check "prepare trains a SentencePiece tokenizer" 0 $?

# shellcheck source=launch/common.sh
source "$share/launch/common.sh"
check "the Slurm scripts find the program" "$halflife" "$(find_program)"
if have help2man; then
  check "a man page for the program and each subcommand" yes \
    "$([ -s "$prefix/share/man/man1/halflife.1" ] && [ -s "$prefix/share/man/man1/halflife-train.1" ] && echo yes)"
fi
if have mpirun; then
  run "$share/launch/mpirun/run.sh" --ranks 2 -- halflife train --config "$share/launch/recipes/quickstart.textproto" \
    --set data.path=data --set data.seq_len=64 --set train.steps=1 --set train.global_batch=2 \
    --set train.micro_batch=1 --set eval.windows=2 --set train.threads=1 --run run
  check "run.sh finds the program and trains a step" "0 yes" "$? $([ -e run/DONE ] && echo yes)"
else
  echo "mpirun not found: run.sh was not tested"
fi
exit $((failures > 0))
