#!/usr/bin/env python3
"""Everything that a GPU is wanted for, in order of worth, within the time that there is.

    cmake --preset cuda && cmake --build --preset cuda --target halflife gpu_tests bench
    python3 tools/gpu_session/run.py --out h200                          # 40 minutes, in pieces of 9, one a call
    python3 tools/gpu_session/run.py --out h200 --only decay_attention   # of these items alone
    python3 tools/gpu_session/run.py --out h200 --tables                 # into bench/RESULTS.md
    python3 tools/gpu_session/run.py --out /tmp/r --rehearse             # the same way on a CPU, tiny
    python3 tools/gpu_session/run.py --list-files; ... --pack build/carry    # for a machine without a compiler

A call ends before its piece is over, and the next one on the same folder goes on; so does one after Ctrl-C or a kill.
README.md beside this file says what is measured and what to carry. Exit codes: 0 every item that ran is done, 1 some
failed or took too long, 2 usage, 4 no GPU or the wrong LibTorch, 75 there is more to do, 130 stopped by Ctrl-C.
"""

import argparse
import os
import pathlib
import signal
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import carry  # noqa: E402
import items  # noqa: E402
import machine  # noqa: E402
import tables  # noqa: E402
from readers import DONE, FAILED, INTERRUPTED, SKIPPED, TIMED_OUT  # noqa: E402
from session import Budget, Folder, Refused, Session  # noqa: E402


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, help="the session's folder; made, or gone on with")
    parser.add_argument("--minutes", type=float, default=40, help="of all calls on the folder (40)")
    parser.add_argument("--piece-minutes", type=float, default=9, help="this call ends before (9)")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="items whose names hold one of the words")
    parser.add_argument("--again", action="store_true", help="also what failed or took too long")
    parser.add_argument("--jobs", type=int, default=min(8, max(1, (os.cpu_count() or 1) // 2)),
                        help="tests at once; nothing else runs beside another (half of the cores, 8 at most)")  # fmt: skip
    parser.add_argument("--build", type=pathlib.Path, help="build/cuda; build/cpu for a rehearsal")
    parser.add_argument("--rehearse", action="store_true", help="the same way on a CPU, with tiny shapes")
    parser.add_argument("--tables", action="store_true", help="write what --out holds into bench/RESULTS.md")
    parser.add_argument("--list-files", action="store_true", help="what to carry to a machine without a build, and sizes")
    parser.add_argument("--pack", type=pathlib.Path, metavar="DIR", help="copy that there, stripped")
    parser.add_argument("--pack-mib", type=float, default=64, help="the most that --pack may copy (64)")
    options = parser.parse_args(words)
    options.build = (options.build or machine.REPO / "build" / ("cpu" if options.rehearse else "cuda")).resolve()
    if not (options.out or options.list_files or options.pack):
        parser.error("--out FOLDER is wanted, unless with --list-files or --pack")
    if options.minutes <= 0 or options.piece_minutes <= 0 or options.jobs <= 0:
        parser.error("--minutes, --piece-minutes and --jobs want more than 0")
    return options


def find_machine(options: argparse.Namespace) -> machine.Machine:
    commit = machine.commit_of(options.build)
    if options.rehearse:
        return machine.Machine(machine.REHEARSAL, "none", commit)
    gpu = machine.first_gpu()
    if gpu is None:
        raise Refused(4, "no GPU was found: nvidia-smi would name it; --rehearse goes the same way on a CPU")
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
        print("stopped; the same call goes on with the item that was running", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
