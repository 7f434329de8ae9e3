#!/usr/bin/env bash
# tests/support/summarise_skipped.sh BUILD
#
# Summarises the tests that the last ctest in the folder BUILD skipped. Writes every test with its
# reason to BUILD/skipped.txt, and prints each reason with the number of its tests and the first of
# them. A test that ctest runs several times, as in the three orders of the emulator, counts once.
set -euo pipefail
build=$1

# One line per skipped test: REASON <tab> NAME <tab> CTEST TEST. NAME is Suite.Test of a skipped
# GoogleTest, or the script that exited with 77.
list_skipped() {
  awk '
    { sub(/\r$/, "") }
    /^[0-9]+\/[0-9]+ Testing: / { test = $3; reason = ""; reading = 0 }
    /^SKIPPED: / { print substr($0, 10) "\t" test "\t" test }
    # "file:line: Skipped", then the reason in one or more lines, and an empty line.
    /: Skipped$/ { reason = ""; reading = 1; next }
    # Parameters follow the name: "[  SKIPPED ] A/B.C/0, where GetParam() = 1 (0 ms)".
    /^\[  SKIPPED \] .* \([0-9]+ ms\)$/ {
      name = $4
      sub(/,$/, "", name)
      print (reason == "" ? "no reason given" : reason) "\t" name "\t" test
      reason = ""
      reading = 0
    }
    reading && $0 == "" { reading = 0 }
    reading { reason = reason (reason == "" ? "" : " ") $0 }
  ' "$build/Testing/Temporary/LastTest.log"
}

skipped=$(list_skipped)
if [ -z "$skipped" ]; then
  : >"$build/skipped.txt"
  echo "skipped: nothing"
  exit 0
fi
awk -F '\t' '{ print $2 ": " $1 ($3 == $2 ? "" : " (" $3 ")") }' <<<"$skipped" |
  sort -u >"$build/skipped.txt"
echo "skipped (every test: $build/skipped.txt):"
cut -f 1,2 <<<"$skipped" | sort -u | awk -F '\t' '
  { if (!num[$1]++) first[$1] = $2 }
  END {
    for (reason in num) {
      printf "%5d  %s (%s%s)\n", num[reason], reason, num[reason] == 1 ? "" : "e.g. ", first[reason]
    }
  }
' | sort -k 1,1nr -k 2
