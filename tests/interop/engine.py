"""Runs commands of halflife without loading LibTorch for each, which takes 0.4 s.

    class Scores(EngineTest):
        def test_one(self):
            halflife("score", "--model", self.dir / "run", ...)

    if __name__ == "__main__":
        engine.main()
"""

import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest


class Engine:
    """A process of engine_server, which forks a process for each command."""

    def __init__(self, engine_server):
        self._server = subprocess.Popen([engine_server], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._holder = tempfile.TemporaryDirectory(prefix="halflife_engine_")
        self._files = [pathlib.Path(self._holder.name) / name for name in ("output", "errors")]

    def run(self, *arguments):
        words = [str(argument) for argument in arguments]
        output, errors = self._files
        command = {"arguments": words, "output": str(output), "errors": str(errors)}
        self._server.stdin.write(json.dumps(command) + "\n")
        self._server.stdin.flush()
        code = int(self._server.stdout.readline())
        return subprocess.CompletedProcess(words, code, output.read_bytes(), errors.read_bytes())

    def close(self):
        self._server.communicate()
        self._holder.cleanup()


_engine = None


def run(*arguments):
    """Returns the exit code, standard output and standard error of a command, as subprocess.run does."""
    return _engine.run(*arguments)


def halflife(*arguments, code=0):
    """Returns standard output and standard error of a command, whose exit code must be `code`."""
    done = run(*arguments)
    text = (done.stdout + done.stderr).decode()
    assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{text}"
    return text


class EngineTest(unittest.TestCase):
    def setUp(self):
        self._holder = tempfile.TemporaryDirectory(prefix="halflife_test_")
        self.dir = pathlib.Path(self._holder.name)

    def tearDown(self):
        self._holder.cleanup()

    @contextlib.contextmanager
    def fresh(self, name):
        """Runs a sub-test with an empty folder."""
        with self.subTest(name):
            self.tearDown()
            self.setUp()
            yield


def main():
    """Runs the tests of the program. Its first argument is the path of engine_server."""
    global _engine
    _engine = Engine(sys.argv.pop(1))
    try:
        unittest.main()
    finally:
        _engine.close()
