#!/usr/bin/env bash
# setup_install_test.sh: runs launch/setup in a copy with a fake pip and a fake apt: the remedies of
# --check, an installation that fails next to one in the background, and a lock that is held.
# Nothing is installed.
set -uo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/launch/checks.sh
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
shown_log=$work/log

copy=$work/repo
mkdir -p "$copy/.venv/bin" "$copy/build" "$work/bin"
cp -r "$repo/launch" "$copy/launch"
for tool in apt-get dpkg-query; do
  printf '#!/bin/sh\necho installed\n' >"$work/bin/$tool"
done
# All wheels are absent. The installation of cuda.txt does not end, and that of cpu.txt fails once
# it has begun.
cat >"$copy/.venv/bin/python" <<'EOF'
#!/usr/bin/env bash
work=$(cd "$(dirname "$0")/../../.." && pwd)
case "$*" in
  *verify.py*) echo "wheel==1.0 absent" ;;
  *"pip install"*cuda.txt*) exec 8>"$work/cuda.lock" && flock 8 && touch "$work/cuda" && exec sleep 300 ;;
  *"pip install"*cpu.txt*) until [ -e "$work/cuda" ]; do sleep 0.05; done && exit 1 ;;
esac
EOF
chmod +x "$work"/bin/* "$copy/.venv/bin/python"
setup() { PATH=$work/bin:$PATH "$copy/launch/setup" "$@" >"$work/log" 2>&1; }

setup --check --cpu --compare --text
check "--check with missing wheels: exit 4" 4 $?
check "the remedy of .venv-compare has its option" "      fix: launch/setup --cpu --compare --text" \
  "$(grep -A 1 '^FAIL  .venv-compare ' "$work/log" | tail -n 1)"
check "the last line has the same remedy" 1 \
  "$(grep -c 'Run launch/setup --cpu --compare --text to install them' "$work/log")"

touch "$work/cuda.lock"
setup --cuda
check "a wheel that pip cannot install: exit 4" 4 $?
wait_until "the pip in the background is ended" flock -n "$work/cuda.lock" true
check "no process holds the lock" 0 "$(flock -n "$copy/build/.setup.lock" true; echo $?)"

exec 7>"$copy/build/.setup.lock"
flock 7
setup --cpu 7>&- &
wait_until "a setup that waits says so" grep -q 'waiting until another launch/setup has ended' "$work/log"
exec 7>&-
wait $!
check "it continues once the lock is free" 1 "$(grep -c 'pip could not install' "$work/log")"
exit $((failures > 0))
