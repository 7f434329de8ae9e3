"""Runs one command of a session with a time limit. Its output goes to files, and it never outlives the session."""

import ctypes
import dataclasses
import os
import pathlib
import signal
import subprocess
import threading
import time

PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True)
class Finished:
    code: int | None  # None: timed out; negative: ended by that signal
    seconds: float
    stdout: str
    stderr: str

    def last_words(self, count: int = 15) -> str:
        lines = [line for line in (self.stderr + "\n" + self.stdout).splitlines() if line.strip()]
        return "\n".join(lines[-count:] if not self.stderr.strip() else self.stderr.splitlines()[-count:])


def _die_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


_running: set[subprocess.Popen] = set()
_ending = threading.Event()


def end_all() -> None:
    """Ends the commands that other threads have started or are about to start."""
    _ending.set()
    for process in list(_running):
        _kill(process)


def _kill(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _end(process: subprocess.Popen) -> None:
    """Ends the process and its children, which share its process group."""
    _kill(process)
    process.wait()
    _running.discard(process)


def run(words: list[str], seconds: float, log: pathlib.Path, cwd: pathlib.Path, env: dict[str, str]) -> Finished:
    """Runs the command. Its output is written to `log`.out and `log`.err while it runs."""
    begin = time.monotonic()
    out, err = log.with_name(log.name + ".out"), log.with_name(log.name + ".err")
    with open(out, "wb") as stdout, open(err, "wb") as stderr:
        process = subprocess.Popen(words, stdout=stdout, stderr=stderr, stdin=subprocess.DEVNULL, cwd=cwd, env=env,
                                   start_new_session=True, preexec_fn=_die_with_parent)
        _running.add(process)
        if _ending.is_set():  # end_all() may have run before this process was in the set
            _kill(process)
        try:
            code = process.wait(timeout=max(seconds, 0.1))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    text = lambda path: path.read_bytes().decode(errors="replace")
    return Finished(code, time.monotonic() - begin, text(out), text(err))
