#!/usr/bin/env python3
"""Runs everything that needs a GPU, in order of importance, within a time limit.

    cmake --preset cuda && cmake --build --preset cuda --target halflife gpu_tests bench
    python3 tools/gpu_session/run.py --out h200                          # 40 minutes in all, 9 per call
    python3 tools/gpu_session/run.py --out h200 --only decay_attention   # only these items
    python3 tools/gpu_session/run.py --out h200 --tables                 # write bench/RESULTS.md
    python3 tools/gpu_session/run.py --out /tmp/r --rehearse             # tiny, on a CPU
    python3 tools/gpu_session/run.py --list-files; ... --pack build/carry    # for a machine without a compiler

A call ends within its time limit. The next call with the same folder continues, also after Ctrl-C or a kill. README.md
in this folder describes the items and how to use a machine without a compiler. Exit codes: 0 all items that ran are
done, 1 some items failed or timed out, 2 wrong usage, 4 no GPU or the wrong version of LibTorch, 75 call again to
continue, 130 stopped by Ctrl-C.
"""

import argparse
import os
import pathlib
import signal
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import carry
import items
import machine
import tables
from readers import DONE, FAILED, INTERRUPTED, SKIPPED, TIMED_OUT
from session import Budget, Folder, Refused, Session


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, help="the folder of the session; an existing session is continued")
    parser.add_argument("--minutes", type=float, default=40, help="time limit for all calls on the folder, in minutes (default: 40)")
    parser.add_argument("--piece-minutes", type=float, default=9, help="time limit for this call, in minutes (default: 9)")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="run the items whose names contain one of the words (default: all)")
    parser.add_argument("--again", action="store_true", help="also repeat items that failed or timed out")
    parser.add_argument("--jobs", type=int, default=min(8, max(1, (os.cpu_count() or 1) // 2)),
                        help="number of parallel tests; other items run one at a time (default: half of the cores, at most 8)")
    parser.add_argument("--build", type=pathlib.Path, help="the build folder (default: build/cuda, or build/cpu with --rehearse)")
    parser.add_argument("--rehearse", action="store_true", help="run the items on a CPU with tiny shapes")
    parser.add_argument("--tables", action="store_true", help="write the results in --out to bench/RESULTS.md")
    parser.add_argument("--list-files", action="store_true", help="list the files and sizes that a machine without a build needs")
    parser.add_argument("--pack", type=pathlib.Path, metavar="DIR", help="copy these files to the new folder DIR, without symbols")
    parser.add_argument("--pack-mib", type=float, default=64, help="size limit of a pack, in MiB (default: 64)")
    options = parser.parse_args(words)
    options.build = (options.build or machine.REPO / "build" / ("cpu" if options.rehearse else "cuda")).resolve()
    if not (options.out or options.list_files or options.pack):
        parser.error("--out is missing. Add --out FOLDER, --list-files or --pack DIR.")
    if options.minutes <= 0 or options.piece_minutes <= 0 or options.jobs <= 0:
        parser.error("--minutes, --piece-minutes and --jobs must be greater than 0.")
    return options


def find_machine(options: argparse.Namespace) -> machine.Machine:
    commit = machine.commit_of(options.build)
    if options.rehearse:
        return machine.Machine(machine.REHEARSAL, "none", commit)
    gpu = machine.first_gpu()
    if gpu is None:
        raise Refused(4, "no GPU was found (nvidia-smi lists none). Use --rehearse to run the items on a CPU.")
    wrong = machine.wrong_torch(options.build)
    if wrong:
        raise Refused(4, wrong)
    return machine.Machine(*gpu, commit)


def verdict(folder: Folder, wanted: list[items.Item]) -> int:
    statuses = [folder.record_of(item).get("status") for item in wanted]
    counts = {status: statuses.count(status) for status in (DONE, SKIPPED, FAILED, TIMED_OUT, INTERRUPTED, None)}
    print(", ".join(f"{count} {status or 'to do'}" for status, count in counts.items() if count))
    if counts[INTERRUPTED] or counts[None]:
        return 75
    return 1 if counts[FAILED] or counts[TIMED_OUT] else 0


def stop(*_) -> None:
    raise KeyboardInterrupt


def work(options: argparse.Namespace) -> int:
    wanted = items.chosen(options.only)
    if options.list_files:
        return carry.list_files(wanted, options.build, options.pack_mib)
    if options.pack:
        return carry.pack(wanted, options.build, options.pack, options.pack_mib)
    if options.tables:
        return tables.publish(options.out)
    here = find_machine(options)
    with Folder(options.out) as folder:
        folder.claim(here)
        session = Session(folder, options.build, here, options.rehearse)
        session.run(wanted, Budget(options.minutes, options.piece_minutes), options.again, options.jobs)
        return verdict(folder, wanted)


def main() -> int:
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, stop)
    options = parse()
    try:
        return work(options)
    except Refused as refused:
        print(refused, file=sys.stderr)
        return refused.code
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped. Repeat the call to continue with the interrupted item.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
