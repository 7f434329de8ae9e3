"""Tests .ci/build_times.py on small Ninja logs."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / ".ci" / "build_times.py"
HEADER = "# ninja log v5\n"
CORE = "src/core/CMakeFiles/hl_core.dir/"
OLD = f"0\t9000\t17\t{CORE}slow_before.cc.o\tab\n0\t2000\t17\t{CORE}log.cc.o\tac\n"


def entry(start, end, output, mtime=18):
    return f"{start}\t{end}\t{mtime}\t{output}\t5f\n"


class BuildTimesTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.build = pathlib.Path(self.folder.name)

    def run_script(self, *arguments):
        done = subprocess.run([sys.executable, SCRIPT, self.build, *map(str, arguments)],
                              capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.splitlines(), done.stderr

    def write(self, log, before=None):
        (self.build / ".ninja_log").write_text(HEADER + log)
        if before is None:
            return []
        path = self.build / "before.log"
        path.write_text(HEADER + before)
        return ["--before", path]

    def test_entries_of_earlier_builds_are_ignored(self):
        arguments = self.write(OLD + entry(0, 1500, CORE + "log.cc.o"), before=OLD)
        code, lines, _ = self.run_script(*arguments)
        self.assertEqual(code, 0)
        self.assertIn(": 1 files compiled in 1.5 s", lines[0])
        self.assertEqual(lines[1:], ["     1.5 s  src/core/log.cc (hl_core)"])

    def test_several_runs_of_ninja_and_a_reordered_log(self):
        # The new entries precede the old ones. Both runs compiled log.cc.
        first = entry(0, 4000, CORE + "error.cc.o") + entry(4000, 7000, CORE + "log.cc.o")
        second = entry(5, 1005, CORE + "log.cc.o", mtime=19)
        _, lines, _ = self.run_script(*self.write(first + second + OLD, before=OLD))
        self.assertIn(": 2 files compiled in 5.0 s", lines[0])
        self.assertEqual(lines[1:], ["     4.0 s  src/core/error.cc (hl_core)",
                                     "     1.0 s  src/core/log.cc (hl_core)"])

    def test_the_slowest_files_are_listed_first_up_to_the_limit(self):
        log = "".join(entry(0, 1000 * i, f"{CORE}file{i}.cc.o") for i in range(1, 21))
        _, lines, _ = self.run_script(*self.write(log))
        self.assertIn(": 20 files compiled in 210.0 s", lines[0])
        self.assertEqual(len(lines), 11)
        self.assertEqual(lines[1], "    20.0 s  src/core/file20.cc (hl_core)")
        _, lines, _ = self.run_script(*self.write(log), "--files", 3)
        self.assertEqual(len(lines), 4)

    def test_only_objects_and_precompiled_headers_are_listed(self):
        log = (entry(0, 3000, "tests/kernels/CMakeFiles/adamw_test.dir/__/__/src/kernels/a.cu.o") +
               entry(0, 2000, "src/model/CMakeFiles/hl_model.dir/cmake_pch.hxx.gch") +
               entry(0, 9000, "src/cli/halflife") + entry(0, 9000, "src/core/libhl_core.a") +
               "0\t5\ttorn")
        _, lines, _ = self.run_script(*self.write(log))
        self.assertIn(": 2 files compiled in 5.0 s", lines[0])
        self.assertEqual(lines[1:], ["     3.0 s  src/kernels/a.cu (adamw_test)",
                                     "     2.0 s  src/model/cmake_pch.hxx (hl_model)"])

    def test_an_unchanged_log_and_a_missing_log(self):
        _, lines, _ = self.run_script(*self.write(OLD, before=OLD))
        self.assertEqual(len(lines), 1)
        self.assertIn(": 0 files compiled in 0.0 s", lines[0])
        (self.build / ".ninja_log").unlink()
        code, lines, error = self.run_script()
        self.assertEqual((code, lines), (1, []))
        self.assertIn("does not exist", error)


if __name__ == "__main__":
    unittest.main()
