#!/usr/bin/env python3
"""The slowest files to compile of the last build.

    build_times.py BUILD_DIR [--before LOG] [--files 10]

Reads what ninja notes in BUILD_DIR/.ninja_log: wall-clock time, so files that were compiled beside
others look slower than alone, and hits of ccache fast. The log keeps the entries of earlier builds
and is rewritten now and then; with LOG, a copy of it from before the build, only what is not in
there counts. A build may start ninja several times.
"""

import argparse
import pathlib
import posixpath
import re
import sys

COMPILED = re.compile(r"^(?:(.*)/)?CMakeFiles/([^/]+)\.dir/(.*)\.(?:o|gch)$")


def source_of(output):
    """'src/core/log.cc (hl_core)' of an object file; None of what was not compiled."""
    match = COMPILED.match(output)
    if not match:
        return None
    folder, target, path = match.groups()
    # CMake writes "__" for the ".." of a source that lies elsewhere.
    parts = [".." if part == "__" else part for part in path.split("/")]
    return f"{posixpath.normpath(posixpath.join(folder or '.', *parts))} ({target})"


def entries(log):
    """Lines of a log, each a command that ended: start, end (ms), mtime, output, hash."""
    if not log.exists():
        return []
    lines = log.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#") and line.count("\t") == 4]


def compile_seconds(log, before):
    """Seconds by source, of the entries of `log` that `before` does not have."""
    known = set(before)
    seconds = {}
    for line in log:
        start, end, _, output, _ = line.split("\t")
        source = source_of(output)
        if source and line not in known:
            seconds[source] = (int(end) - int(start)) / 1000  # the last start of ninja counts
    return seconds


def report(seconds, name, files):
    lines = [f"{name}: {len(seconds)} files compiled in {sum(seconds.values()):.1f} s, one after "
             "the other"]
    slowest = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
    lines += [f"{time:8.1f} s  {source}" for source, time in slowest[:files]]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build_dir", type=pathlib.Path)
    parser.add_argument("--before", type=pathlib.Path)
    parser.add_argument("--files", type=int, default=10)
    arguments = parser.parse_args()
    log = arguments.build_dir / ".ninja_log"
    if not log.exists():
        print(f"{log} is not there: nothing was built with ninja", file=sys.stderr)
        return 1
    seconds = compile_seconds(entries(log), entries(arguments.before) if arguments.before else [])
    print(report(seconds, str(arguments.build_dir), arguments.files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
