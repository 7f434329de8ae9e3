"""Tests the parts of bench/compare_jla.py that need no GPU. JAX, jla and halflife's program are simulated."""

import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from types import SimpleNamespace

sys.dont_write_bytecode = True
BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
import compare_fla
import compare_jla


def our_round(forward, both):
    return {"max_error": 1e-3, "forward": {"ms": forward}, "forward_backward": {"ms": both}}


class FakeJla:
    """Times of 3 and 12 ms, a wrong backward per channel, and a forward that raises at batch 4."""

    def __init__(self, kind):
        self.kind = kind

    def error(self, name, shape):
        return float("nan") if (self.kind, name) == ("per_channel", "forward_backward") else 1e-3

    def ms(self, name, shape, samples):
        if shape.batch == 4:
            raise ValueError("no kernel\nfor this | shape")
        return {"forward": 3.0, "forward_backward": 12.0}[name]


class CompareJlaTest(unittest.TestCase):
    SHAPES = (compare_fla.Shape(2, 64, 2, 64), compare_fla.Shape(4, 64, 2, 64, qk_heads=1), compare_fla.Shape(4, 64, 2, 64))

    def compare(self, fails_at=()):
        def time_ours(binary, kind, shape, samples):
            if shape.batch in fails_at:
                raise compare_fla.Failed("exit 70 of bench")
            return our_round(2, 6)

        with (tempfile.TemporaryDirectory() as folder, unittest.mock.patch.object(compare_fla, "SHAPES", self.SHAPES),
              unittest.mock.patch.object(compare_fla, "SHAPES_OF_KIND", {}),
              unittest.mock.patch.object(compare_fla, "time_ours", time_ours),
              contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO())):
            path = pathlib.Path(folder) / "jla.json"
            options = SimpleNamespace(only=None, shapes=None, rounds=2, samples=1, json=path, markdown=None, binary="bench")
            code = compare_jla.compare("H100", FakeJla, options)
            return code, json.loads(path.read_text())["rows"], out.getvalue()

    def test_rows_have_medians_and_ratios_of_correct_passes(self):
        code, rows, text = self.compare()
        self.assertEqual(code, 0)
        self.assertEqual([(row["kind"], row["batch"]) for row in rows],
                         [("per_token", 2), ("per_token", 4), ("per_channel", 2), ("per_channel", 4)])
        self.assertEqual(rows[0]["forward"], {"halflife_ms": 2, "jla_ms": 3.0, "speed": 1.5})
        self.assertNotIn("speed", rows[1]["forward"])
        self.assertEqual(rows[2]["problems"], ["forward + backward: differs from the recurrence by nan"])
        self.assertIn("| per_token | B2 T64 H2 D64 | 3.000 / 12.000 | 2.000 / 6.000 | 1.50 x / 2.00 x |", text)
        self.assertIn("| per_channel | B2 T64 H2 D64 | 3.000 / none | 2.000 / 6.000 | 1.50 x / none |", text)
        self.assertIn("- forward, at B4 T64 H2 D64: ValueError: no kernel for this / shape", text)

    def test_a_failure_of_halflife_is_reported_in_its_row_and_the_exit_code(self):
        code, rows, text = self.compare(fails_at=(2,))
        self.assertEqual((code, len(rows)), (1, 4))
        self.assertIn("| per_token | B2 T64 H2 D64 | failed: exit 70 of bench |", text)

    def test_is_skipped_without_jla_or_a_gpu(self):
        done = subprocess.run([sys.executable, BENCH / "compare_jla.py"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertRegex(done.stdout, "^SKIPPED: (jla is not installed|no GPU was found|/.* does not exist)")


if __name__ == "__main__":
    unittest.main()
