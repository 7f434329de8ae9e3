#!/usr/bin/env bash
# tests/run_python.sh SCRIPT [ARGUMENT...]: with the Python that has the peers (launch/setup --tests); 77 without it.
set -euo pipefail
python=$(dirname "${BASH_SOURCE[0]}")/../.venv-compare/bin/python
if [ ! -x "$python" ]; then
  echo "SKIPPED: $(basename "$1"): no .venv-compare (launch/setup --tests)"
  exit 77
fi
exec "$python" "$@"
