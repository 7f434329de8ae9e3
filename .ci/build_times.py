#!/usr/bin/env python3
"""Prints the files that took longest to compile in the last build.

    build_times.py BUILD_DIR [--before LOG] [--files 10]

Reads BUILD_DIR/.ninja_log, in which Ninja records when each command started and ended. The times
are wall-clock times: parallel compilations slow each other down, and a ccache hit looks fast.

The log also has entries of earlier builds. LOG is a copy of it from before the build; entries that
are in LOG are ignored. Ninja may run several times in one build, and may reorder the log.
"""

import argparse
import pathlib
import posixpath
import re
import sys

COMPILED = re.compile(r"^(?:(.*)/)?CMakeFiles/([^/]+)\.dir/(.*)\.(?:o|gch)$")


def source_of(output):
    """Returns the source and target of an object file, as 'src/core/log.cc (hl_core)'. Returns None
    for other outputs, such as libraries and programs."""
    match = COMPILED.match(output)
    if not match:
        return None
    folder, target, path = match.groups()
    # In the path of an object, CMake replaces the ".." of a source outside the folder with "__".
    parts = [".." if part == "__" else part for part in path.split("/")]
    return f"{posixpath.normpath(posixpath.join(folder or '.', *parts))} ({target})"


def entries(log):
    """Returns the lines of a log that describe a finished command: start and end in ms, mtime,
    output, hash."""
    if not log.exists():
        return []
    lines = log.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#") and line.count("\t") == 4]


def compile_seconds(log, before):
    """Returns {source: seconds} for the entries of `log` that are not in `before`."""
    known = set(before)
    seconds = {}
    for line in log:
        start, end, _, output, _ = line.split("\t")
        source = source_of(output)
        if source and line not in known:
            # A later run of Ninja in the same build replaces the time of an earlier one.
            seconds[source] = (int(end) - int(start)) / 1000
    return seconds


def report(seconds, name, files):
    lines = [f"{name}: {len(seconds)} files compiled in {sum(seconds.values()):.1f} s in total"]
    slowest = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
    lines += [f"{time:8.1f} s  {source}" for source, time in slowest[:files]]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build_dir", type=pathlib.Path)
    parser.add_argument("--before", type=pathlib.Path, metavar="LOG",
                        help="copy of .ninja_log from before the build (default: use all entries)")
    parser.add_argument("--files", type=int, default=10,
                        help="number of files to list (default: 10)")
    arguments = parser.parse_args()
    log = arguments.build_dir / ".ninja_log"
    if not log.exists():
        print(f"{log} does not exist. Build with Ninja first.", file=sys.stderr)
        return 1
    seconds = compile_seconds(entries(log), entries(arguments.before) if arguments.before else [])
    print(report(seconds, str(arguments.build_dir), arguments.files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
