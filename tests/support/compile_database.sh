#!/usr/bin/env bash
# tests/support/compile_database.sh [FOLDER]
#
# Writes FOLDER/compile_commands.json (default: build/tidy) with a separate command for each source,
# for clang-tidy and clangd. The database of build/cpu cannot be used, because it has unity sources
# and gcc's precompiled headers. Nothing is built; the commands use the generated headers of
# build/cpu.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=$(realpath -m "${1:-build/tidy}")
cmake --preset cpu -B "$folder" --log-level=WARNING -DBUILD_TESTING=ON \
  -DHALFLIFE_UNITY_BUILD=OFF -DHALFLIFE_PRECOMPILED_HEADERS=OFF >/dev/null
sed -i "s|$folder|$PWD/build/cpu|g" "$folder/compile_commands.json"
