"""The parts of bench/compare_fla.py that need no GPU; the signatures of fla's operations where fla is installed."""

import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "compare_fla.py"
spec = importlib.util.spec_from_file_location("compare_fla", SCRIPT)
fla = importlib.util.module_from_spec(spec)
sys.modules["compare_fla"] = fla
spec.loader.exec_module(fla)


def our_round(forward, both, error=1e-3):
    one = lambda ms: {"ms": ms, "share_of_memory_roofline": 0.6}
    return {"max_error": error, "forward": one(forward), "forward_backward": one(both)}


class FakeCuda:
    """A device and a host that take their time: a call costs the host `host_ms`, and the device as much as `device_ms`."""

    def __init__(self, host_ms, device_ms):
        self.cuda = self
        self.host_ms, self.device_ms = host_ms, device_ms
        self.host = self.device = 0.0  # how far each has come, in ms

    def Event(self, enable_timing):  # noqa: N802, torch's name
        outer = self

        class Event:
            def record(self):
                self.at = outer.device = max(outer.device, outer.host)

            def query(self):
                return self.at <= outer.host

            def synchronize(self):
                outer.host = max(outer.host, self.at)

            def elapsed_time(self, later):
                return later.at - self.at

        return Event()

    def _sleep(self, cycles):
        self.device = max(self.device, self.host) + cycles / fla.Timer.CYCLES_A_MS

    def call(self):
        self.host += self.host_ms
        self.device = max(self.device, self.host) + self.device_ms


class CompareFlaTest(unittest.TestCase):
    def test_shapes_are_whole_chunks_and_differ(self):
        for kind, operations in fla.KINDS.items():
            shapes = fla.shapes_of(kind)
            self.assertEqual(len(set(map(str, shapes))), len(shapes))
            for shape in shapes:
                self.assertEqual(shape.seq_len % 64, 0)
                self.assertIn(shape.dim, (64, 128, 256))
                self.assertTrue(any(operation.suits(shape) for operation in operations))

    def test_shared_heads_and_other_widths_are_in_the_name(self):
        self.assertEqual(
            str(fla.shapes_of("per_token")[-1]), "B4 T4096 H64 K128 V64 1 of q and k"
        )

    def test_recurrent_operations_stay_with_short_sequences(self):
        recurrent = fla.KINDS["per_token"][1]
        self.assertTrue(recurrent.suits(fla.Shape(1, 2048, 1, 64)))
        self.assertFalse(recurrent.suits(fla.Shape(1, 4096, 1, 64)))

    def test_fla_counts_with_its_fastest(self):
        times = {"chunk": [3.0, 1.0, 2.0], "recurrent": [1.9, 9.0, 1.0]}
        self.assertEqual(fla.fastest(times), ("recurrent", 1.9))

    def test_summary_is_of_medians_over_rounds(self):
        theirs = {"forward": {"chunk": [4.0, 2.0, 3.0]}, "forward_backward": {"chunk": [12.0]}}
        ours = [our_round(1, 4), our_round(9, 5, 2e-3), our_round(2, 6)]
        row = fla.summarise("per_head", fla.Shape(1, 64, 2, 64), ours, theirs)
        self.assertEqual(row["forward"]["halflife_ms"], 2)
        self.assertEqual(row["forward"]["speed"], 1.5)
        self.assertEqual(row["forward_backward"]["speed"], 12 / 5)
        self.assertEqual(row["max_error"], 2e-3)
        self.assertEqual(row["shape"], "B1 T64 H2 D64")

    def test_times_are_the_devices_once_the_spin_is_long_enough(self):
        device = FakeCuda(host_ms=3, device_ms=1)
        timer = fla.Timer(device)
        times = [timer.ms(device.call) for _ in range(fla.WARM_UPS + 5)]
        self.assertGreater(times[0], 3)
        for ms in times[fla.WARM_UPS :]:
            self.assertAlmostEqual(ms, 1)
        self.assertLess(timer.spin_ms, 7)

    def test_table_has_a_line_a_row(self):
        theirs = {"forward": {"chunk": [3.0]}, "forward_backward": {"chunk": [12.0]}}
        row = fla.summarise("per_token", fla.Shape(2, 128, 4, 64), [our_round(2, 5)], theirs)
        lines = fla.markdown([row, row], "GPU, bf16:").splitlines()
        self.assertEqual(lines[0], "GPU, bf16:")
        self.assertEqual(
            lines[4],
            "| per_token | B2 T128 H4 D64 | 3.000 / 12.000 | 2.000 / 5.000 "
            "| 1.50 x / 2.40 x | 60% / 60% |",
        )
        self.assertEqual(len(lines), 6)
        self.assertEqual({line.count("|") for line in lines[2:]}, {7})

    def test_missing_parameters(self):
        self.assertEqual(fla.missing_parameters(lambda q, k: None, ["q", "gate"]), ["gate"])

    def test_rows_of_an_earlier_call_are_kept_on_the_same_gpu(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "fla.json"
            self.assertEqual(fla.rows_so_far(path, "H100", "2.11.0"), [])
            rows = [{"kind": "per_head", "shape": "B1 T64 H2 D64"}]
            fla.write_json(path, {"device": "H100", "torch": "2.11.0", "rows": rows})
            self.assertEqual(fla.rows_so_far(path, "H100", "2.11.0"), rows)
            for other in (("H200", "2.11.0"), ("H100", "2.10.0")):
                with self.assertRaisesRegex(SystemExit, "is of H100, torch 2.11.0.*another --json"):
                    fla.rows_so_far(path, *other)
            self.assertEqual(list(path.parent.iterdir()), [path])

    def test_without_a_gpu_it_says_so(self):
        try:
            import torch

            if torch.cuda.is_available():
                self.skipTest("a GPU is here")
        except ImportError:
            pass
        done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertRegex(done.stdout, "^SKIPPED: no (torch here|GPU was found)")

    def test_signatures_of_fla(self):
        for operation in sum(fla.KINDS.values(), ()):
            try:
                function = operation.load()
            except ImportError as error:
                self.skipTest(f"fla does not import here: {error}")
            self.assertEqual(fla.missing_parameters(function, operation.parameters()), [])


if __name__ == "__main__":
    unittest.main()
