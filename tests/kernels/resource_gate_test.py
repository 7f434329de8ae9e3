#!/usr/bin/env python3
"""Tests resource_gate.py on good and bad output of ptxas."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import resource_gate

SYMBOL = "_ZN8halflife7kernels5decay10StepKernelIfEEvNS0_22DecayAttentionStepArgsE"
NAME = "StepKernel<float>"


def log(registers=40, frame=0, spills=0):
    return [f"ptxas info    : Compiling entry function '{SYMBOL}' for 'sm_90a'",
            f"ptxas info    : Function properties for {SYMBOL}",
            f"    {frame} bytes stack frame, {spills} bytes spill stores, {spills} bytes spill loads",
            f"ptxas info    : Used {registers} registers, used 1 barriers, 1024 bytes smem"]


class ResourceGateTest(unittest.TestCase):
    def run_gate(self, lines):
        """Returns the exit code, and the lines that begin with FAILS."""
        with tempfile.TemporaryDirectory() as folder:
            budget = pathlib.Path(folder) / "budget.json"
            budget.write_text(json.dumps({NAME: {"sm_90a": 40}}))
            (pathlib.Path(folder) / "log").write_text("\n".join(lines))
            out = io.StringIO()
            with mock.patch("sys.argv", ["gate", "--budget", str(budget), f"{folder}/log"]), contextlib.redirect_stdout(out):
                code = resource_gate.main()
        return code, [line for line in out.getvalue().splitlines() if line.startswith("FAILS")]

    def test_a_kernel_within_its_budget_passes(self):
        self.assertEqual(self.run_gate(log(registers=44)), (0, []))

    def test_registers_frames_and_spills_fail(self):
        for lines in (log(registers=45), log(frame=8), log(spills=4)):
            code, failures = self.run_gate(lines)
            self.assertEqual((code, len(failures)), (1, 1))

    def test_serialized_wgmma_fails(self):
        message = ("ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
                   f"insufficient register resources for the function '{SYMBOL}'")
        code, failures = self.run_gate([message, *log()])
        self.assertEqual(code, 1)
        self.assertIn(f"{NAME} for sm_90a: C7512, Potential Performance Loss: wgmma", failures[0])

    def test_an_ignored_setmaxnreg_fails(self):
        for message in ("(C7507) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum register requirements.",
                        "(C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry."):
            code, failures = self.run_gate([f"ptxas info    : {message}", *log()])
            self.assertEqual((code, len(failures)), (1, 1))


if __name__ == "__main__":
    unittest.main()
