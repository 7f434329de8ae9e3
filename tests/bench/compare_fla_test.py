"""Tests the parts of bench/compare_fla.py that need no GPU, and, if fla is installed, the signatures of its
operations."""

import contextlib
import importlib.util
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from types import SimpleNamespace

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "compare_fla.py"
spec = importlib.util.spec_from_file_location("compare_fla", SCRIPT)
fla = importlib.util.module_from_spec(spec)
sys.modules["compare_fla"] = fla
spec.loader.exec_module(fla)


def our_round(forward, both, error=1e-3, late=0.0):
    one = lambda ms: {"ms": ms, "share_of_memory_roofline": 0.6, "late_share": late}
    return {"max_error": error, "forward": one(forward), "forward_backward": one(both)}


def times(*all_ms, late=0.0):
    return [fla.Time(ms, late) for ms in all_ms]


class FakeCuda:
    """A simulated device and host: a call takes `host_ms` on the host and `device_ms` on the device."""

    def __init__(self, host_ms, device_ms):
        self.cuda = self
        self.host_ms, self.device_ms = host_ms, device_ms
        self.host = self.device = 0.0  # the current time of each, in ms

    def Event(self, enable_timing):  # the name that torch uses
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
        self.device = max(self.device, self.host) + cycles / fla.Timer.CYCLES_PER_MS

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
                self.assertIn(shape.dim, (2048,) if kind == fla.SCAN else (64, 128, 256))
                self.assertTrue(any(operation.suits(shape) for operation in operations))

    def test_shared_heads_and_other_widths_are_in_the_name(self):
        self.assertEqual(
            str(fla.shapes_of("per_token")[-1]), "B4 T4096 H64 K128 V64 1 of q and k"
        )

    def test_recurrent_operations_are_used_only_for_short_sequences(self):
        recurrent = fla.KINDS["per_token"][1]
        self.assertTrue(recurrent.suits(fla.Shape(1, 2048, 1, 64)))
        self.assertFalse(recurrent.suits(fla.Shape(1, 4096, 1, 64)))

    def test_a_peer_has_its_own_kinds_and_operations(self):
        self.assertEqual(fla.kinds_of("fla"), ["per_head", "per_token", "per_channel", *fla.DELTA_KINDS])
        self.assertEqual(fla.kinds_of("flash_qla"), ["gated_delta_net"])
        self.assertEqual(fla.kinds_of("mamba_ssm"), [fla.SCAN])
        self.assertEqual(fla.kinds_of("helion"), ["per_token"])
        self.assertEqual([one.name for one in fla.operations_of("per_token", "helion")], ["chunk_simple_gla"])
        parameters = fla.operations_of("gated_delta_net", "flash_qla")[0].parameters()
        self.assertEqual(parameters, ["q", "k", "v", "scale", "g", "beta"])
        done = subprocess.run([sys.executable, SCRIPT, "--peer", "flash_qla", "--only", "kda"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--peer flash_qla has no kda. Use gated_delta_net.", done.stderr)

    def test_each_kind_has_its_own_program_and_options(self):
        scan = fla.shape_options(fla.SCAN, fla.Shape(8, 2048, 1, 2048))
        self.assertEqual(" ".join(scan), "--kind selective_scan --batch 8 --seq-len 2048 --dim 2048 --states 16")
        delta = fla.shape_options("kda", fla.Shape(1, 64, 2, 128))
        self.assertEqual(" ".join(delta), "--kind kda --batch 1 --seq-len 64 --dim 128 --heads 2")
        self.assertEqual([fla.program_of(kind) for kind in (fla.SCAN, "kda", "per_head")],
                         ["bench_scans", "bench_delta_rule", "bench_decay_attention"])

    def test_the_fastest_operation_of_fla_is_used(self):
        rounds = {"chunk": [3.0, 1.0, 2.0], "recurrent": [1.9, 9.0, 1.0]}
        self.assertEqual(fla.fastest(rounds), ("recurrent", 1.9))

    def test_a_row_has_medians_over_rounds(self):
        theirs = {"forward": {"chunk": times(4.0, 2.0, 3.0)}, "forward_backward": {"chunk": times(12.0)}}
        ours = [our_round(1, 4), our_round(9, 5, 2e-3), our_round(2, 6)]
        row = fla.summarise("per_head", fla.Shape(1, 64, 2, 64), ours, theirs)
        self.assertEqual(row["forward"]["halflife_ms"], 2)
        self.assertEqual(row["forward"]["speed"], 1.5)
        self.assertEqual(row["forward_backward"]["speed"], 12 / 5)
        self.assertEqual(row["max_error"], 2e-3)
        self.assertEqual(row["shape"], "B1 T64 H2 D64")

    def test_only_device_time_counts_once_the_spin_is_long_enough(self):
        device = FakeCuda(host_ms=3, device_ms=1)
        timer = fla.Timer(device)
        taken = [timer.ms(device.call) for _ in range(fla.WARM_UPS)]
        self.assertGreater(taken[0], 3)
        self.assertGreater(timer.late_share(), 0)
        timer.start_counting()
        for _ in range(5):
            self.assertAlmostEqual(timer.ms(device.call), 1)
        self.assertEqual(timer.late_share(), 0)
        self.assertLess(timer.spin_ms, 7)

    def test_input_sets_exceed_the_cache(self):
        cache = 50 << 20
        for shape in fla.SHAPES:
            count = fla.num_input_sets(cache, shape)
            one = 4 * shape.batch * shape.seq_len * shape.heads * (shape.dim + shape.values)
            self.assertGreaterEqual(count, 2)
            self.assertGreaterEqual(count * one, 2 * cache)

    def test_the_table_has_a_line_per_row(self):
        theirs = {"forward": {"chunk": times(3.0)}, "forward_backward": {"chunk": times(12.0)}}
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

    def test_a_ratio_of_late_calls_is_marked(self):
        theirs = {"forward": {"chunk": times(3.0, late=0.2)}, "forward_backward": {"chunk": times(12.0)}}
        shape = fla.Shape(2, 128, 4, 64)
        table = fla.markdown([fla.summarise("per_token", shape, [our_round(2, 5)], theirs)], "GPU:")
        self.assertIn("| 1.50 x (late) / 2.40 x |", table)
        self.assertIn(f"\n{fla.LATE_MEANS}\n", table)
        theirs["forward"]["chunk"] = times(3.0)
        late = fla.summarise("per_token", shape, [our_round(2, 5), our_round(2, 5, late=0.3)], theirs)
        self.assertIn("| 1.50 x (late) / 2.40 x (late) |", fla.markdown([late], "GPU:"))

    def test_unsupported_passes_are_listed_below_the_table(self):
        theirs = {"forward": {"chunk": times(3.0)}, "forward_backward": {}}
        problem = "chunk, forward + backward: RuntimeError: Triton | on Hopper"
        row = fla.summarise("per_token", fla.Shape(2, 128, 4, 64), [our_round(2, 5)], theirs, [problem])
        table = fla.markdown([row], "GPU, bf16:")
        self.assertIn("| 3.000 / none | 2.000 / 5.000 | 1.50 x / none | 60% / 60% |", table)
        self.assertTrue(table.endswith("- chunk, forward + backward: RuntimeError: Triton / on Hopper\n"))

    def test_the_worst_error_is_nan_if_any_is(self):
        nan = float("nan")
        for values in ((nan, 1e-3), (1e-3, nan)):
            self.assertNotEqual(fla.worst(values), fla.worst(values))
        self.assertEqual(fla.worst([1, 3, 2]), 3)
        theirs = {"forward": {"chunk": times(3.0)}, "forward_backward": {"chunk": times(12.0)}}
        ours = [our_round(1, 4), our_round(1, 4, nan)]
        error = fla.summarise("per_head", fla.Shape(1, 64, 2, 64), ours, theirs)["max_error"]
        self.assertNotEqual(error, error)

    def test_shapes_are_chosen_by_parts_of_their_names(self):
        self.assertEqual(list(map(str, fla.chosen_shapes("per_head", ["B2 T16384", "V256"]))),
                         ["B2 T16384 H16 D128", "B8 T2048 H8 K128 V256"])
        self.assertEqual(fla.chosen_shapes("per_token", None), list(fla.shapes_of("per_token")))
        done = subprocess.run([sys.executable, SCRIPT, "--shapes", "H99"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--shapes H99: no name of a shape contains this. Use a part of one of these names: B2 T16384 H16",
                      done.stderr)

    def test_the_guard_of_fla_is_disabled(self):
        module = SimpleNamespace(__name__="fla.ops.common.chunk_o", IS_NVIDIA_HOPPER=True)
        with unittest.mock.patch.object(fla.importlib, "import_module", return_value=module):
            fla.disable_guard()
            self.assertFalse(module.IS_NVIDIA_HOPPER)
            del module.IS_NVIDIA_HOPPER
            with self.assertRaisesRegex(SystemExit, "has no IS_NVIDIA_HOPPER.*remove --without-guard"):
                fla.disable_guard()

    def test_missing_parameters(self):
        self.assertEqual(fla.missing_parameters(lambda q, k: None, ["q", "gate"]), ["gate"])

    def test_rows_of_an_earlier_call_are_kept_on_the_same_gpu(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "fla.json"
            self.assertEqual(fla.results_so_far(path, "H100", "2.11.0"), {})
            rows = [{"kind": "per_head", "shape": "B1 T64 H2 D64"}]
            fla.write_json(path, {"device": "H100", "torch": "2.11.0", "rows": rows})
            self.assertEqual(fla.results_so_far(path, "H100", "2.11.0")["rows"], rows)
            for other in (("H200", "2.11.0"), ("H100", "2.10.0")):
                with self.assertRaisesRegex(SystemExit, "has results of H100 with torch 2.11.0.*Use another file"):
                    fla.results_so_far(path, *other)
            self.assertEqual(list(path.parent.iterdir()), [path])

    def test_is_skipped_without_torch_or_a_gpu(self):
        try:
            import torch

            if torch.cuda.is_available():
                self.skipTest("this machine has a GPU")
        except ImportError:
            pass
        done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertRegex(done.stdout, "^SKIPPED: (torch is not installed|no GPU was found)")

    def test_signatures_of_fla(self):
        for operation in sum((fla.operations_of(kind, "fla") for kind in fla.KINDS), []):
            try:
                function = operation.load()
            except ImportError as error:
                self.skipTest(f"fla cannot be imported: {error}")
            self.assertEqual(fla.missing_parameters(function, operation.parameters()), [])


class FailuresTest(unittest.TestCase):
    """Tests that failures do not stop the other measurements. The GPU and fla are simulated."""

    SHAPES = (fla.Shape(1, 64, 2, 64), fla.Shape(2, 64, 2, 64), fla.Shape(3, 64, 2, 64))

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.json = pathlib.Path(folder.name) / "fla.json"
        self.ours_fails_at, self.order, self.checked = set(), [], []
        self.context_lost_at = self.shapes = None
        simulated = {"SHAPES": self.SHAPES, "error_of": self.error_of, "time_fla": self.time_fla,
                     "time_ours": self.time_ours}
        for name, value in simulated.items():
            patch = unittest.mock.patch.object(fla, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        self.torch = unittest.mock.MagicMock(__version__="2.11.0")
        self.torch.cuda.get_device_name.return_value = "H100"
        self.torch.cuda.synchronize.side_effect = self.synchronize

    def synchronize(self):
        if self.order and self.order[-1] == self.context_lost_at:
            raise RuntimeError("CUDA error: an illegal memory access")

    def error_of(self, torch, kind, operation, name, shape):
        self.checked.append((operation.name, name, shape.batch))
        if operation.name == "chunk_retention" and name == "forward_backward":
            raise RuntimeError("Triton >= 3.4.0 and < 3.7.1\non Hopper")
        return float("nan") if operation.name == "fused_recurrent_retention" else 1e-3

    def time_fla(self, torch, kind, operation, name, shape, samples):
        if shape.batch == 2:
            raise MemoryError("out of shared memory")
        return fla.Time(3.0)

    def time_ours(self, binary, kind, shape, samples):
        self.order.append(shape.batch)
        if shape.batch in self.ours_fails_at:
            raise fla.Failed("exit 70 of bench: the kernel is off by nan")
        return our_round(1, 2)

    def compare(self):
        options = SimpleNamespace(peer="fla", only=["per_head"], rounds=2, samples=1, json=self.json, resume=True,
                                  markdown=None, binary="bench", shapes=self.shapes)
        self.order.clear()
        quiet = io.StringIO()
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            code = fla.compare(self.torch, options)
        return code, json.loads(self.json.read_text())["rows"]

    def test_a_pass_that_raises_or_is_wrong_is_dropped(self):
        code, rows = self.compare()
        self.assertEqual((code, [row["batch"] for row in rows]), (0, [1, 2, 3]))
        first, second, third = rows
        self.assertEqual(first["forward"]["speed"], 3)
        self.assertNotIn("speed", first["forward_backward"])
        self.assertEqual(first["problems"], [
            "chunk_retention, forward + backward: RuntimeError: Triton >= 3.4.0 and < 3.7.1 on Hopper",
            "fused_recurrent_retention, forward: differs from the recurrence by nan",
            "fused_recurrent_retention, forward + backward: differs from the recurrence by nan"])
        self.assertNotIn("speed", second["forward"])
        self.assertEqual(second["problems"][-1],
                         "chunk_retention, forward: at B2 T64 H2 D64: MemoryError: out of shared memory")
        self.assertEqual(third["forward"]["speed"], 3)

    def test_each_shape_is_checked_once_before_it_is_timed(self):
        self.shapes = ["B3", "B1"]
        self.assertEqual([row["batch"] for row in self.compare()[1]], [1, 3])
        both = [(operation.name, name, batch) for batch in (1, 3) for operation in fla.KINDS["per_head"]
                for name in fla.PASSES]
        self.assertEqual(self.checked, both)
        self.shapes = None
        self.assertEqual([row["batch"] for row in self.compare()[1]], [1, 3, 2])
        self.assertEqual({batch for *_, batch in self.checked[len(both) :]}, {2})

    def test_a_failed_shape_does_not_stop_others_and_is_repeated_last(self):
        self.ours_fails_at = {1}
        code, rows = self.compare()
        self.assertEqual((code, [row["batch"] for row in rows]), (1, [1, 2, 3]))
        self.assertIn("| failed: exit 70 of bench: the kernel is off by nan |", fla.markdown(rows, "GPU:"))
        fla.write_json(self.json, {"device": "H100", "torch": "2.11.0", "trials": {}, "rows": rows[:1]})
        self.ours_fails_at = set()
        code, rows = self.compare()
        self.assertEqual((code, [row["batch"] for row in rows]), (0, [1, 2, 3]))
        self.assertEqual(list(dict.fromkeys(self.order)), [2, 3, 1])

    def test_a_lost_context_ends_the_call_and_the_next_call_continues(self):
        self.context_lost_at = 2
        with self.assertRaises(SystemExit) as ended:
            self.compare()
        self.assertEqual(ended.exception.code, 75)
        code, rows = self.compare()
        self.assertEqual((code, [row["batch"] for row in rows], set(self.order)), (0, [1, 2, 3], {3}))


if __name__ == "__main__":
    unittest.main()
