#!/usr/bin/env bash
# compare.sh PYTHON SCRIPT ARGUMENT...: runs a comparison with other programs. Exit 77: they are not
# installed.
set -euo pipefail

if ! "$1" -c 'import sentencepiece, tokenizers, transformers' 2>/dev/null; then
  echo "SKIPPED: $(basename "$2"): $1 has no transformers, tokenizers or sentencepiece. Run launch/setup --compare."
  exit 77
fi
exec "$@"
