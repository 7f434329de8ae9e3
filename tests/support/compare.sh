#!/usr/bin/env bash
# compare.sh PYTHON SCRIPT ARGUMENT...: runs a comparison with other programs. Exit 77: these
# programs are not installed.
set -euo pipefail

if ! "$1" -c 'import sentencepiece, tokenizers, transformers' 2>/dev/null; then
  echo "SKIPPED: $(basename "$2"): transformers is not in $1; launch/setup --compare installs it"
  exit 77
fi
exec "$@"
