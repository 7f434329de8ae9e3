#!/usr/bin/env bash
# Checks that tests/support/compile_database.sh writes a separate command for every source, with the
# generated headers of build/cpu.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
# shellcheck source=tests/launch/checks.sh
source tests/launch/checks.sh

tests/support/compile_database.sh "$work/database" >"$work/out" 2>&1
shown_log=$work/out
check "exit code" 0 $?
database=$work/database/compile_commands.json
jq -r '.[].file' "$database" | sort -u >"$work/files"
# NCCL sources are compiled only with CUDA.
find "$PWD/src" -name '*.cc' ! -name 'nccl_*' | sort >"$work/sources"
check "sources without a command" "" "$(comm -23 "$work/sources" "$work/files")"
check "folders as one" "" "$(grep -F unity "$work/files")"
check "precompiled headers" "" "$(jq -r '.[].command' "$database" | grep -F cmake_pch)"
check "headers generated elsewhere" "" "$(grep -F "$work" "$database")"
exit $((failures > 0))
