#!/usr/bin/env bash
# setup_check_test.sh HALFLIFE: checks that launch/setup --check and halflife doctor print the same
# result, name and version for everything that both check. Exit 77: a tool is missing.
set -uo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
halflife=$1
for tool in pkg-config mpirun; do
  command -v "$tool" >/dev/null || { echo "SKIPPED: $tool not found"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() {
  echo "FAILED  $*"
  failures=$((failures + 1))
}

"$repo/launch/setup" --check --cpu >"$work/setup" 2>&1
code=$?
num_failed=$(grep -c '^FAIL  ' "$work/setup")
if [ "$code" -ne $((num_failed > 0 ? 4 : 0)) ]; then fail "setup: exit $code with $num_failed FAIL"; fi
"$halflife" doctor --quick --run "$work/runs" >"$work/doctor" 2>"$work/err"
code=$?
num_failed=$(grep -c '^FAIL  ' "$work/doctor")
if [ "$code" -ne $((num_failed > 0 ? 4 : 0)) ]; then fail "doctor: exit $code with $num_failed FAIL"; fi

# Prints the line with the name $2 in file $1, e.g. "OK    HDF5             1.10.8", without a comma
# and the path after it.
line_of() { grep -E "^(OK|WARN|FAIL) +$2  +" "$1" | sed 's/, .*//'; }
names=("LibTorch" "MPI library" "mpirun" "HDF5" "PCRE2" "utf8proc" "zstd" "zlib" "sentencepiece"
  "protobuf" "spdlog" "fmt" "xxHash" "nlohmann-json" "CLI11")
if ! grep -q 'NVIDIA driver' "$work/setup"; then names+=("GPU"); fi
for name in "${names[@]}"; do
  setup=$(line_of "$work/setup" "$name")
  doctor=$(line_of "$work/doctor" "$name")
  if [ -n "$setup" ] && [ "$setup" = "$doctor" ]; then
    echo "ok      $setup"
  else
    fail "$name: setup says '$setup', doctor '$doctor'"
  fi
done

"$repo/launch/setup" --help | grep -q 'halflife doctor' || fail "setup --help does not name doctor"
"$halflife" doctor --help | grep -q 'launch/setup --check' || fail "doctor --help does not name setup"
if [ "$failures" -gt 0 ]; then cat "$work/setup" "$work/doctor" "$work/err"; fi
exit $((failures > 0))
