"""Runs a whole GPU session on the CPU, kills it halfway and continues it.

    python3 tests/bench/gpu_session_rehearsal_test.py BUILD

Every item must be done, or skipped for a reason that is true on a machine without a GPU.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tools/gpu_session"))

import items
import machine

BUILD = pathlib.Path(sys.argv.pop()).resolve()
BEFORE_THE_KILL = 8  # number of records after which the session is killed
# Group -> allowed reasons for skipping. Benchmarks must not be skipped, because they run on a CPU.
REASONS = {
    "tests": r"this build has no CUDA parts|no CUDA device|no GPU is visible"
             r"|has no tests/(tools/cuda_emulator/device/launch_check|dist/nccl(?:_ranks)?)_gpu_test\. Only CUDA builds make it",
    "memcheck": r"compute-sanitizer was not found|has no tests/\S+/wrappers_gpu_test|this build has no CUDA parts"
                r"|no CUDA device",
    "racecheck": r"compute-sanitizer was not found|this build has no CUDA parts|no CUDA device",
    "ncu": r"ncu was not found",
    "jla": r"jla is not installed|no GPU was found",
    **{peer: rf"({peer}|torch) is not installed|no GPU was found"
       for peer in ("fla", "flash_qla", "mamba_ssm", "helion")},
    "profile": r"nsys was not found",
}


class RehearsalTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name) / "out"
        self.command = [sys.executable, str(REPO / "tools/gpu_session/run.py"), "--rehearse", "--build", str(BUILD),
                        "--out", str(self.out)]

    def records(self):
        return {path.name: json.loads(path.read_text()) for path in (self.out / "items").glob("*.json")}

    def kill_halfway(self):
        with open(self.out.parent / "killed.log", "wb") as log:
            process = subprocess.Popen(self.command, stdout=log, stderr=log)
            while len(self.records()) < BEFORE_THE_KILL and process.poll() is None:
                time.sleep(0.02)
            self.assertIsNone(process.poll(), (self.out.parent / "killed.log").read_text())
            os.kill(process.pid, signal.SIGKILL)
            process.wait()

    def test_every_item_is_done_or_skipped_for_an_expected_reason(self):
        self.kill_halfway()
        earlier = {name: record for name, record in self.records().items() if record["status"] == "done"}
        self.assertLess(len(self.records()), len(items.ITEMS))
        done = subprocess.run(self.command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        records = self.records()
        self.assertEqual({record["item"] for record in records.values()}, {item.name for item in items.ITEMS})
        for name, record in earlier.items():
            self.assertEqual(records[name], record, "an item that was done ran again")
        for record in records.values():
            with self.subTest(record["item"]):
                self.assertEqual(record["machine"]["gpu"], machine.REHEARSAL)
                if record["status"] == "done":
                    self.assertTrue(record["result"])
                    continue
                self.assertEqual(record["status"], "skipped", record["reason"])
                group = record["item"].partition("/")[0]
                self.assertIn(group, REASONS, record["reason"])
                self.assertRegex(record["reason"], re.compile(REASONS[group]))
        self.check_figures(records.values())
        again = subprocess.run(self.command, capture_output=True, text=True, check=False)
        self.assertEqual(again.returncode, 0)
        self.assertNotIn("--kind", again.stdout, "a finished session ran an item again")
        refused = subprocess.run([*self.command, "--tables"], capture_output=True, text=True, check=False)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("is a rehearsal's", refused.stderr)

    def test_a_failed_form_is_reported_and_the_others_are_measured(self):
        """--block 0 makes the far keys start at distance 0, which the kernel rejects."""
        sizes = "--batch 1 --seq-len 64 --heads 1 --dim 8 --long 128 --rounds 1 --block 0".split()
        done = subprocess.run([str(BUILD / "bench/bench_softmax_attention"), *sizes], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "^3 of 31 parts have a problem, the first: .*far_q")
        for part, forms in json.loads(done.stdout).items():
            if not part.startswith("forward"):
                continue
            failed = [form for form in forms if "problem" in form]
            self.assertEqual([form["form"] for form in failed], ["far pairs (ReRoPE)"])
            self.assertTrue(all(form["ms"] > 0 for form in forms if form not in failed))

    def check_figures(self, records):
        """Checks that every step ran and was profiled."""
        steps = [record["result"] for record in records if record["item"].startswith("train_step/")]
        self.assertTrue(steps)
        for step in steps:
            self.assertGreater(step["median_ms"], 0)
            self.assertLessEqual(step["last_loss"], step["first_loss"])
            self.assertGreater(step["profile"]["wall_ms"], 0)
            self.assertIn("aten::", " ".join(entry["name"] for entry in step["profile"]["top"]))


if __name__ == "__main__":
    unittest.main()
