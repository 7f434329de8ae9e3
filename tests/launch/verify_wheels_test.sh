#!/usr/bin/env bash
# Tests launch/wheels/verify.py on a fake wheel that is complete, absent, of another version, or
# truncated by an interrupted installation.
set -uo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/launch/checks.sh
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"

verify() {
  printf '# a comment\n%s\n' "$1" >"$work/pins.txt"
  PYTHONPATH=$work/site python3 "$repo/launch/wheels/verify.py" "$work/pins.txt"
}

info=$work/site/hlfakewheel-1.2.dist-info
mkdir -p "$info" "$work/site/hlfakewheel"
printf 'Metadata-Version: 2.1\nName: hlfakewheel\nVersion: 1.2\n' >"$info/METADATA"
printf 'twelve bytes' >"$work/site/hlfakewheel/library.so"
printf 'hlfakewheel/library.so,,12\nhlfakewheel-1.2.dist-info/METADATA,,\n' >"$info/RECORD"

check "a whole wheel is no problem" "" "$(verify hlfakewheel==1.2)"
check "an absent wheel" "hlfakewheel-other==1.0 absent" "$(verify hlfakewheel-other==1.0)"
check "another version" "hlfakewheel==1.3 is 1.2" "$(verify hlfakewheel==1.3)"
printf 'short' >"$work/site/hlfakewheel/library.so"
check "a file cut short" "hlfakewheel==1.2 damaged: hlfakewheel/library.so" "$(verify hlfakewheel==1.2)"
rm "$work/site/hlfakewheel/library.so"
check "a file missing" "hlfakewheel==1.2 damaged: hlfakewheel/library.so" "$(verify hlfakewheel==1.2)"
rm "$info/RECORD"
check "no RECORD" "hlfakewheel==1.2 damaged: no RECORD" "$(verify hlfakewheel==1.2)"

exit $((failures > 0))
