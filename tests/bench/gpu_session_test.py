"""Tests tools/gpu_session without a GPU: results of items, resuming, refusals, tables and packs."""

import contextlib
import dataclasses
import io
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

sys.dont_write_bytecode = True
REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tools/gpu_session"))

import carry
import command
import items
import machine
import ranks_run
import readers
import session
import tables

HERE = machine.Machine("NVIDIA H200", "580.1", "0123456789ab")
LONG = session.Budget(minutes=5, piece_minutes=5)


def ended(code, stdout="", stderr=""):
    return command.Finished(code, 1.0, stdout, stderr)


class InAFolder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)


class ReadersTest(InAFolder):
    def report(self, *results):
        case = lambda name, result: {"name": name, "result": "COMPLETED" if result == "FAILED" else result,
                                     **({"failures": [{}]} if result == "FAILED" else {})}
        path = self.folder / "report.json"
        cases = [case(f"T{i}", result) for i, result in enumerate(results)]
        path.write_text(json.dumps({"testsuites": [{"name": "Suite", "testsuite": cases}]}))
        return path

    def test_gtest(self):
        read = lambda code, *results, stdout="": readers.read_gtest(ended(code, stdout), self.report(*results))
        self.assertEqual(read(0, "COMPLETED", "SKIPPED"),
                         readers.Outcome("done", result={"passed": 1, "failed": [], "skipped": 1}))
        self.assertEqual(read(1, "COMPLETED", "FAILED").reason, "failed: Suite.T1")
        words = "x.cc:3: Skipped\nno CUDA device\n\n"
        self.assertEqual((read(0, "SKIPPED", stdout=words).status, read(0, "SKIPPED", stdout=words).reason),
                         ("skipped", "no CUDA device"))
        self.assertEqual(read(3, "COMPLETED").status, "failed")
        crashed = readers.read_gtest(ended(-11, stderr="boom"), self.folder / "absent")
        self.assertEqual((crashed.status, crashed.reason), ("failed", "no report was written; signal 11: boom"))

    def test_json(self):
        read = lambda finished: readers.read_json(finished, self.folder)
        self.assertEqual(read(ended(0, '{"ms": 2}')), readers.Outcome("done", result={"ms": 2}))
        self.assertEqual(read(ended(4, stderr="skipped: no CUDA device")).status, "skipped")
        self.assertEqual(read(ended(70, stderr="skipped: no")).status, "failed")
        self.assertEqual(read(ended(0, "ms")).status, "failed")
        self.assertEqual(read(ended(1, '{"rows": [1]}', "1 of 2 parts has a problem")),
                         readers.Outcome("failed", "exit code 1: 1 of 2 parts has a problem", {"rows": [1]}))

    def test_the_last_complete_line_of_json_counts(self):
        read = lambda *finished: readers.read_last_json(ended(*finished), self.folder)
        self.assertEqual(read(0, '{"a": 1}\n{"a": 2}\n'), readers.Outcome("done", result={"a": 2}))
        self.assertEqual(read(-9, '{"a": 1}\n{"a": 2').result, {"a": 1})
        self.assertEqual(read(77, "SKIPPED: mpirun not found\n").reason, "mpirun not found")
        self.assertEqual(read(-9, "").status, "failed")

    def test_a_sanitizer_must_print_a_summary_and_run_a_test(self):
        read = lambda *finished: readers.read_sanitizer(ended(*finished), self.folder).status
        ran, summary = "[       OK ] A.B (1 ms)\n", "========= ERROR SUMMARY: 0 errors\n"
        self.assertEqual(read(0, ran + summary), "done")
        self.assertEqual(read(0, ran), "failed")
        self.assertEqual(read(99, ran + "========= ERROR SUMMARY: 2 errors"), "failed")
        self.assertEqual(read(0, "x.cc:3: Skipped\nno CUDA device\n" + summary), "skipped")
        hazards = "========= RACECHECK SUMMARY: {0} hazards displayed (0 errors, {0} warnings)\n"
        self.assertEqual(read(0, ran + hazards.format(0)), "done")
        self.assertEqual(read(0, ran + hazards.format(1)), "failed")
        self.assertEqual(read(0, ran + hazards.format(20)), "failed")

    def test_ncu_reports_the_metrics_of_each_launch(self):
        path = self.folder / "ncu.csv"
        head = '"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value","Rule Name"'
        path.write_text("==PROF== Connected\n" + head + """
"0","void halflife::kernels::decay::<unnamed>::Scan<(int)64>(float *)","GPU Speed Of Light Throughput","Duration","us","185.2",""
"0","void halflife::kernels::decay::<unnamed>::Scan<(int)64>(float *)","Occupancy","Achieved Occupancy","%","12.5",""
"0","void halflife::kernels::decay::<unnamed>::Scan<(int)64>(float *)","Occupancy","","","","AchievedOccupancy"
"1","Gradients(Args)","Launch Statistics","Registers Per Thread","register/thread","128",""
""")
        self.assertEqual(readers.read_ncu(ended(0), path).result, {"launches": [
            {"kernel": "decay::Scan<64>", "metrics": {"Duration": "185.2 us", "Achieved Occupancy": "12.5 %"}},
            {"kernel": "Gradients", "metrics": {"Registers Per Thread": "128 register/thread"}}]})
        path.write_text("==PROF== Connected\n==WARNING== No kernels were profiled.\n")
        self.assertEqual((readers.read_ncu(ended(0), path).status, readers.read_ncu(ended(9), path).status),
                         ("failed", "failed"))

    def test_kernels_have_the_names_of_the_sources(self):
        for signature, name in (
            ("void halflife::kernels::lanes::ForwardKernel<(int)16, (bool)1>(halflife::Args<(int)2>, int)", "lanes::ForwardKernel<16, 1>"),
            ("halflife::kernels::(anonymous namespace)::UpdateSegment(Args)", "UpdateSegment"),
            ("void halflife::kernels::Rows<halflife::Norm, (long)-1>(int)", "Rows<halflife::Norm, -1>")):
            self.assertEqual(readers.kernel_of(signature), name)

    def test_rows_of_an_interrupted_comparison_count(self):
        path = self.folder / "rows.json"
        path.write_text('{"rows": [{"n": 1}]}')
        self.assertEqual(readers.read_rows(ended(-9), path).result, {"rows": [{"n": 1}]})
        self.assertEqual(readers.read_rows(ended(77, "SKIPPED: no GPU was found"), path).reason, "no GPU was found")
        lost = readers.read_rows(ended(75, stderr="much\nall is lost"), path)
        self.assertEqual((lost.status, lost.reason, lost.result), ("interrupted", "all is lost", {"rows": [{"n": 1}]}))
        failed = {"kind": "per_head", "shape": "B1", "failed": "exit 70"}
        path.write_text(json.dumps({"rows": [{"kind": "per_head", "shape": "B2"}, failed]}))
        outcome = readers.read_rows(ended(1, stderr="much"), path)
        self.assertEqual((outcome.status, outcome.reason, len(outcome.result["rows"])),
                         ("failed", "per_head B1: exit 70", 2))


class ItemsTest(unittest.TestCase):
    def test_names_and_files_are_unique(self):
        for key in ("name", "file_name"):
            self.assertEqual(len({getattr(item, key) for item in items.ITEMS}), len(items.ITEMS))
        for item in items.ITEMS:
            self.assertRegex(item.file_name, r"^[A-Za-z0-9._-]+$")

    def test_every_gpu_test_has_an_item(self):
        programs = {name for path in (REPO / "tests").rglob("CMakeLists.txt")
                    for name in re.findall(r"NAME ((?!fake_)\w+_gpu_test)\b", path.read_text())}
        self.assertGreater(len(programs), 8)
        self.assertEqual(programs - {item.program.rpartition("/")[2] for item in items.ITEMS if item.group == "tests"}, set())

    def test_the_most_informative_items_come_first(self):
        names = [item.name for item in items.ITEMS]
        groups = [name.partition("/")[0] for name in names]
        first = len(groups) - len(list(itertools.dropwhile(lambda group: group == "tests", groups)))
        self.assertGreaterEqual(first, 8)
        kinds = list(items.DECAY_SHAPES)
        self.assertEqual(names[first : first + 2], ["run/quickstart", "train_step/gla 340m"])
        self.assertEqual([name.partition("/")[2].split()[0] for name in names[first + 2 : first + 5]], kinds)
        self.assertEqual([name.partition("/")[0] for name in names[first + 5 : first + 7]], ["row_kernels", "memcheck"])

    def test_kernels_for_all_gpus_are_also_timed_on_hopper(self):
        by_warps = {item.name: item for item in items.ITEMS if items.NO_HOPPER[1] in item.before}
        self.assertEqual({name.partition(" ")[0] for name in by_warps},
                         {"tests/decay_binding_gpu_test,", "tests/delta_rule_gpu_test,", *(f"decay_attention/{kind}" for kind in items.DECAY_KINDS),
                          *(f"delta_rule/{kind}" for kind in items.DELTA)})
        for name, item in by_warps.items():
            original = next(one for one in items.ITEMS if one.name == name.removesuffix(", by warps"))
            self.assertEqual((item.program, item.words), (original.program, original.words))
            words = items.words_of(item, (), pathlib.Path("b"), pathlib.Path("f"), False, {})
            self.assertEqual(words[:3], ["env", "HALFLIFE_WARPGROUPS=0", f"b/{item.program}"])

    def test_benchmarks_use_the_gpu_except_in_a_rehearsal(self):
        for item in items.ITEMS:
            if item.read in (readers.read_json, readers.read_last_json):
                self.assertIn("cuda", item.words)
                self.assertNotIn("cuda", item.rehearsal)

    def test_ncu_profiles_the_timed_round(self):
        """The program starts the recording, so no item depends on the number of launches before it."""
        profiled = [item for item in items.ITEMS if item.group == "ncu"]
        timed = {item.words: item.program for item in items.ITEMS if item.group in ("decay_attention", "delta_rule", "scans")}
        for item in profiled:
            if item.words[-2:] == ("--rounds", "1"):
                self.assertEqual(timed[item.words[:-2]], item.program)
            else:
                self.assertEqual(item.program, "bench/bench_train_step")
                self.assertEqual(item.words[item.words.index("--layers") + 1], "1")
            self.assertNotIn("--profile", item.words, "two profilers cannot run at the same time")
            words = items.words_of(item, (), pathlib.Path("b"), pathlib.Path("f"), False, {"ncu": "/opt/ncu"})
            self.assertEqual(words[:3], ["/opt/ncu", "--profile-from-start", "off"])
            self.assertEqual(words[words.index("--log-file") + 1], "f")
            self.assertEqual(words[words.index("-k") + 1], "regex:halflife::")
            self.assertFalse({"--launch-skip", "--launch-count", "-s", "-c"} & set(item.before))
        kinds = {item.words[item.words.index("--kind") + 1] for item in profiled if "--kind" in item.words}
        self.assertEqual(kinds, {*items.DECAY_KINDS, *items.DELTA, *items.SCANS})
        self.assertEqual({item.words[1] for item in profiled if "--mixer" in item.words}, {"gla", "mamba", "rebased", "softmax"})
        self.assertIn("fp8", [item.words[item.words.index("--precision") + 1] for item in profiled if "--mixer" in item.words])

    def test_each_peer_has_an_item_for_each_of_its_kinds(self):
        for peer in items.compare_fla.INSTALL:
            of_peer = [item for item in items.ITEMS if item.group == peer]
            kinds = {item.words[item.words.index("--only") + 1] for item in of_peer}
            self.assertEqual(kinds, set(items.compare_fla.kinds_of(peer)))
            for item in of_peer:
                self.assertEqual(item.needs, (peer,))
                words = items.words_of(item, (), pathlib.Path("b"), pathlib.Path("f"), False, {})
                self.assertEqual(words[1], f"{items.REPO}/bench/compare_fla.py")
                self.assertNotIn(f"b/{item.program}", words[:3])
        self.assertEqual({*machine.PACKAGES}, {*items.PEERS})
        self.assertEqual(items.compare_fla.INSTALL.keys(), tables.PEER_NAMES.keys())

    def test_nsys_profiles_the_slowest_step_without_a_second_profiler(self):
        item = next(one for one in items.ITEMS if one.of_slowest)
        words = items.words_of(item, ("--mixer", "gla", "--profile", "--steps", "3"), pathlib.Path("b"), pathlib.Path("f"), False, {})
        self.assertEqual(words[-5:], ["b/bench/bench_train_step", "--mixer", "gla", "--steps", "3"])

    def test_racecheck_checks_only_kernels_of_this_project(self):
        for item in items.ITEMS:
            filtered = "kns=halflife" in item.before
            self.assertEqual(filtered, item.group == "racecheck", item.name)

    def test_an_unknown_name_is_rejected_with_the_list_of_groups(self):
        with self.assertRaisesRegex(ValueError, "--only speed.*tests, run, train_step, .*memcheck"):
            items.chosen(["speed"])
        self.assertEqual({item.group for item in items.chosen(["memcheck", "decode/"])}, {"memcheck", "decode"})

    def test_memcheck_runs_without_the_caching_allocator(self):
        for item in items.ITEMS:
            caches = "PYTORCH_NO_CUDA_MEMORY_CACHING=1" not in item.before
            self.assertEqual(caches, item.group != "memcheck", item.name)


class SessionTest(InAFolder):
    def setUp(self):
        super().setUp()
        self.build = self.folder / "build"
        self.build.mkdir()

    def item(self, name, script, **more):
        program = self.build / name
        program.write_text(f'#!/bin/sh\necho run >>"{self.folder}/{name}.runs"\n{script}\n')
        program.chmod(0o755)
        return items.Item(f"group/{name}", name, (), **more)

    def runs(self, name):
        path = self.folder / f"{name}.runs"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def run_items(self, wanted, budget=LONG, again=False, jobs=1):
        """Runs the items in one call. Returns status and reason by name."""
        with session.Folder(self.folder / "out") as folder, contextlib.redirect_stdout(io.StringIO()):
            folder.claim(HERE)
            session.Session(folder, self.build, HERE, rehearse=False).run(wanted, budget, again, jobs)
            records = {item.program: folder.record_of(item) for item in wanted}
        return {name: (record.get("status"), record.get("reason")) for name, record in records.items()}

    # A fake ncu: runs the program after the options, and writes the table of one kernel to the file of --log-file.
    NCU = """
echo "$*" >"FOLDER/ncu.words"
while [ $# -gt 0 ]; do case "$1" in --log-file) log="$2"; shift 2 ;; FOLDER/*) break ;; *) shift ;; esac; done
"$@" >/dev/null
cat >"$log" <<END
==PROF== Connected
"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","void halflife::kernels::decay::WarpgroupStatesKernel<(int)128>(Args)","GPU Speed Of Light","Duration","us","150.5"
END"""

    def test_kernels_under_ncu_are_in_the_table(self):
        tools = self.folder / "tools"
        tools.mkdir()
        (tools / "ncu").write_text("#!/bin/sh" + self.NCU.replace("FOLDER", str(self.folder)))
        (tools / "ncu").chmod(0o755)
        item = items._ncu(self.item("timed", "echo \'{}\'"))
        with mock.patch.dict(os.environ, {"PATH": f"{tools}:{os.environ['PATH']}"}):
            self.assertEqual(self.run_items([item])["timed"], ("done", ""))
        self.assertEqual(self.runs("timed"), 1)
        self.assertIn("--profile-from-start off", (self.folder / "ncu.words").read_text())
        with session.Folder(self.folder / "out") as folder:
            text = tables.ncu([{**folder.record_of(item), "item": "ncu/timed"}])
        self.assertIn("| timed | `decay::WarpgroupStatesKernel<128>` | 150.5 us |", text)
        others = text.partition("Kernels without a row")[2]
        self.assertIn("`decay::WarpgroupScanKernel`", others)
        self.assertNotIn("WarpgroupStatesKernel", others)

    def test_a_failed_item_does_not_stop_others_and_a_finished_item_does_not_run_again(self):
        garbled = self.item("garbled", f'echo "{{" >"{self.folder}/out/logs/group-garbled.file"', read=readers.read_gtest)
        broken = self.item("broken", "")
        (self.build / "broken").write_bytes(b"\x7fELF of no machine")
        wanted = [garbled, broken, self.item("bad", "echo worse >&2; exit 70"), self.item("good", "echo '{\"ms\": 1}'"),
                  dataclasses.replace(self.item("absent", ""), program="nowhere"),
                  self.item("tool", "", needs=("no-such-tool",))]
        for _ in range(2):
            ends = self.run_items(wanted)
            self.assertEqual(ends["bad"], ("failed", "exit code 70: worse"))
            self.assertRegex(ends["garbled"][1], "its output cannot be read")
            self.assertRegex(ends["broken"][1], "it cannot be started: .*Exec format error")
            self.assertEqual(ends["good"], ("done", ""))
            self.assertEqual(ends["nowhere"], ("skipped", "build has no nowhere. Build the targets halflife, gpu_tests and bench."))
            self.assertRegex(ends["tool"][1], "no-such-tool was not found in PATH or /usr/local/cuda/bin")
        self.assertEqual((self.runs("bad"), self.runs("good"), self.runs("tool")), (1, 1, 0))
        self.run_items(wanted, again=True)
        self.assertEqual((self.runs("bad"), self.runs("good")), (2, 1))
        (self.build / "bad").unlink()
        self.assertEqual(self.run_items(wanted, again=True)["bad"][0], "failed", "the record of the failure was lost")

    def test_tests_run_in_parallel_and_timed_items_one_at_a_time(self):
        # The two tests wait for each other. A third item, which is not a test, must not run at the same time.
        meet = lambda mine, other: f'touch "{self.folder}/{mine}.here"; until [ -e "{self.folder}/{other}.here" ]; do sleep 0.01; done'
        both = [dataclasses.replace(self.item(mine, f"{meet(mine, other)}; rm '{self.folder}/{other}.here'; echo '{{}}'"),
                                    name=f"tests/{mine}")
                for mine, other in (("left", "right"), ("right", "left"))]
        timed = self.item("timed", f"ls {self.folder}/*.here && exit 70; echo '{{}}'")
        for again in (False, True):
            ends = self.run_items([both[0], timed, both[1]], again=again, jobs=2)
            self.assertEqual({name: end[0] for name, end in ends.items()}, dict.fromkeys(("left", "timed", "right"), "done"))
        self.assertEqual([self.runs(name) for name in ("left", "right", "timed")], [1, 1, 1])
        bad = dataclasses.replace(self.item("bad", "exit 3"), name="tests/bad")
        for again in (False, True):
            self.assertEqual(self.run_items([bad], again=again, jobs=2)["bad"][0], "failed")
        self.assertEqual(self.runs("bad"), 2)

    def test_an_item_that_times_out_is_ended_with_its_child_processes(self):
        slow = self.item("slow", "sleep 60 & wait", minutes=0.01)
        self.assertEqual(self.run_items([slow])["slow"][0], "timed out")
        listed = subprocess.run(["pgrep", "-f", f"{self.build}/slow"], capture_output=True, check=False)
        self.assertEqual(listed.stdout, b"")

    def test_an_item_that_times_out_keeps_its_partial_results(self):
        slow = dataclasses.replace(self.item("slow", """echo '{"done": ["first"]}'; sleep 60 & wait""", minutes=0.01),
                                   read=readers.read_last_json)
        self.assertEqual(self.run_items([slow])["slow"][0], "timed out")
        with session.Folder(self.folder / "out") as folder:
            self.assertEqual(folder.record_of(slow)["result"], {"done": ["first"]})

    def test_an_item_that_exceeds_the_call_runs_again_in_the_next_call(self):
        first = self.item("first", "echo '{}'")
        second = self.item("second", "sleep 2.9; echo '{}'", minutes=3.6 / 60)
        third = self.item("third", "echo '{}'", minutes=1)
        ends = self.run_items([first, second, third], session.Budget(5, 2.5 / 60))
        self.assertEqual([ends[name][0] for name in ("first", "second", "third")], ["done", "interrupted", None])
        ends = self.run_items([first, second, third])
        self.assertEqual({status for status, _ in ends.values()}, {"done"})
        self.assertEqual((self.runs("first"), self.runs("second")), (1, 2))

    def test_shorter_items_run_if_a_long_one_does_not_fit(self):
        first = self.item("first", "echo '{}'")
        long = self.item("long", "echo '{}'", minutes=5)
        short = self.item("short", "echo '{}'", minutes=2 / 60)
        ends = self.run_items([first, long, short], session.Budget(5, 4 / 60))
        self.assertEqual([ends[name][0] for name in ("first", "long", "short")], ["done", None, "done"])
        self.assertEqual(self.run_items([first, long, short], session.Budget(5, 4 / 60))["long"][0], "done")

    def test_the_total_time_of_all_calls_is_limited(self):
        item = self.item("item", "sleep 0.3; echo '{}'")
        self.run_items([item])
        later = self.item("later", "echo '{}'")
        self.assertEqual(self.run_items([later], session.Budget(0.2 / 60, 5))["later"], (None, None))

    def test_a_comparison_that_made_progress_is_continued(self):
        script = f'f="{self.folder}/out/logs/group-rows.file"; n=$(grep -o 1 "$f" 2>/dev/null | wc -l)\n'
        script += 'if [ "$n" = 0 ]; then echo \'{"rows": [{"n": 1}]}\' >"$f"; sleep 60; fi; echo \'{"rows": [{"n": 1}, {"n": 1}]}\' >"$f"'
        item = self.item("rows", script, read=readers.read_rows, resumes=True, minutes=0.01)
        self.assertEqual(self.run_items([item])["rows"][0], "interrupted")
        self.assertEqual(self.run_items([item])["rows"][0], "done")

    def test_a_fault_of_the_device_is_repeated_with_launch_checks(self):
        script = 'echo "CUDA error: an illegal memory access" >&2\n'
        script += 'if [ "$HALFLIFE_CHECK_LAUNCHES" = 1 ]; then echo "rotary encoding: the kernel failed" >&2; fi; exit 70'
        status, reason = self.run_items([self.item("fault", script)])["fault"]
        self.assertEqual(status, "failed")
        self.assertRegex(reason, r"(?s)illegal memory access\nlaunches checked: .*rotary encoding: the kernel failed")

    # A program with cases A.Good, A.Bad, B.Late, B.None and B.Wrong. A fault at A.Bad ends its process.
    FAULTY = """
ran() { echo "[ RUN      ] $1"; echo "[       OK ] $1 (1 ms)"; }
case "$*" in
*--gtest_list_tests*) printf 'Running main()\\nA.\\n  Good\\n  Bad/0  # GetParam() = 3\\n  DISABLED_Old\\nB.\\n'
                      printf '  Late\\n  None\\n  Wrong\\n' ;;
*filter=A.Good*) echo "run twice" >&2; exit 9 ;;
*filter=B.Late*) ran B.Late ;;
*filter=B.None*) echo "[ RUN      ] B.None"; echo "[  SKIPPED ] B.None (0 ms)" ;;
*filter=B.Wrong*) echo "off by 3" >&2; exit 1 ;;
*) [ "$HALFLIFE_CHECK_LAUNCHES" = 1 ] && echo "only $*: the kernel failed"
   ran A.Good; echo "[ RUN      ] A.Bad/0"; echo "CUDA error: an illegal memory access" >&2
   END ;;
esac"""

    def test_after_a_fault_each_other_case_runs_in_its_own_process(self):
        aborts = self.item("aborts", self.FAULTY.replace("END", "kill -ABRT $$"), read=readers.read_gtest)
        ends = self.FAULTY.replace("END", 'echo "[  FAILED  ] A.Bad/0, where GetParam() = 3 (1 ms)"; ran B.Late; exit 1')
        reports = self.item("reports", ends, read=readers.read_gtest)
        for item in (aborts, reports):
            status, reason = self.run_items([item])[item.program]
            self.assertEqual(status, "failed")
            self.assertRegex(reason, r"^failed: A.Bad/0, B.Wrong\nB.Wrong: off by 3\nlaunches checked: ")
            with session.Folder(self.folder / "out") as folder:
                result = folder.record_of(item)["result"]
            self.assertEqual(result, {"passed": 2, "failed": ["A.Bad/0", "B.Wrong"], "skipped": 1})
        checked = (self.folder / "out/logs/group-aborts.checked.out").read_text()
        self.assertIn("only --gtest_filter=A.Bad/0: the kernel failed", checked)

    def test_cases_that_did_not_run_are_counted(self):
        slow = self.FAULTY.replace("ran B.Late ;;", "sleep 60 ;;").replace("END", "exit 1")
        item = self.item("slow", slow, read=readers.read_gtest, minutes=1.5 / 60)
        self.assertRegex(self.run_items([item])["slow"][1], "^failed: A.Bad/0, B.Late; 2 did not run\nB.Late: timed out")

    def test_another_machine_and_a_second_call_are_refused(self):
        self.run_items([self.item("item", "echo '{}'")])
        with session.Folder(self.folder / "out") as folder:
            for key in ("gpu", "driver", "commit"):
                with self.assertRaisesRegex(session.Refused, "holds results of NVIDIA H200, .*and this is .*another --out"):
                    folder.claim(dataclasses.replace(HERE, **{key: "other"}))
            with self.assertRaisesRegex(session.Refused, "another call works on"):
                session.Folder(self.folder / "out")


class CommandLineTest(InAFolder):
    def run_program(self, *words):
        command = [sys.executable, REPO / "tools/gpu_session/run.py", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_wrong_usage_is_rejected_with_the_alternatives(self):
        self.assertEqual(self.run_program().returncode, 2)
        unknown = self.run_program("--out", self.folder / "out", "--rehearse", "--only", "speed")
        self.assertEqual(unknown.returncode, 2)
        self.assertIn("groups are tests", unknown.stderr)
        self.assertFalse((self.folder / "out").exists())

    def test_a_stopped_call_leaves_no_process_and_the_next_call_continues(self):
        program = self.folder / "build/tests/tools/cuda_emulator/wrappers_emulated_test_plain"
        program.parent.mkdir(parents=True)
        report = json.dumps({"testsuites": [{"name": "A", "testsuite": [{"name": "B", "result": "COMPLETED"}]}]})
        (self.folder / "report").write_text(report)

        def write(script):
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)

        write(f'echo $$ >"{self.folder}/pid"; sleep 60')
        words = ["--rehearse", "--build", self.folder / "build", "--out", self.folder / "out", "--only", "tests/wrappers"]
        signals = ((signal.SIGTERM, 130), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL))
        for (number, code), jobs in itertools.product(signals, ("1", "2")):
            (self.folder / "pid").unlink(missing_ok=True)
            command = [sys.executable, REPO / "tools/gpu_session/run.py", *map(str, words), "--jobs", jobs]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while not (self.folder / "pid").exists() or not (self.folder / "pid").read_text():
                time.sleep(0.01)
            process.send_signal(number)
            self.assertEqual(process.wait(timeout=20), code)
            self.assertFalse(self.keeps_running(int((self.folder / "pid").read_text())))
            self.assertFalse(list((self.folder / "out/items").iterdir()), (number, jobs))
        write(f'cp "{self.folder}/report" "${{1#--gtest_output=json:}}"')
        self.assertEqual(self.run_program(*words).returncode, 0)

    @staticmethod
    def keeps_running(pid):
        """Returns whether the process still runs after a second. A zombie does not run."""
        for _ in range(100):
            try:
                state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except FileNotFoundError:
                return False
            if state in "ZX":
                return False
            time.sleep(0.01)
        return True

    @unittest.skipIf(machine.first_gpu(), "this machine has a GPU")
    def test_a_missing_gpu_is_reported(self):
        done = self.run_program("--out", self.folder / "out")
        self.assertEqual(done.returncode, 4)
        self.assertIn("no GPU was found", done.stderr)
        self.assertFalse((self.folder / "out").exists())


def of_passes(**values):
    return {"forward": values, "forward_backward": values}


# The results of each kind of item, as its program prints them.
FIGURES = {
    "tests/wrappers_gpu_test": {"passed": 30, "failed": [], "skipped": 2},
    "memcheck/wrappers_gpu_test": {"passed": 30, "summary": "ERROR SUMMARY: 0 errors"},
    "decay_attention/per_head B2 T64 H2 D64": {
        "max_error": 2e-3, **of_passes(ms=0.5, share_of_memory_roofline=0.61, share_of_matmul=0.3, late_share=0)},
    "fla/per_head": {"rows": [{"kind": "per_head", "shape": "B2 T64 H2 D64", **of_passes(
        fla_ms=3.0, halflife_ms=1.5, speed=2.0, share_of_memory_roofline=0.6)}]},
    "flash_qla/gated_delta_net": {"rows": [{"kind": "gated_delta_net", "shape": "B2 T64 H2 D64", **of_passes(
        fla_ms=1.0, halflife_ms=2.0, speed=0.5, share_of_memory_roofline=0.4)}]},
    "delta_rule/kda B2 T64 H2 D64": {"max_error": 4e-3, **of_passes(ms=2.5, share_of_memory_roofline=0.2, late_share=0)},
    "jla/per_token": {"rows": [{"kind": "per_token", "shape": "B2 T64 H2 D64", **of_passes(
        jla_ms=3.0, halflife_ms=1.5, speed=2.0)}]},
    "softmax_attention/B2 T64 d64": {"device": "NVIDIA H200", "batch": 2, "forward": [
        {"form": "window", "ms": 0.25, "late_share": 0, "causal_ms": 0.5, "causal_late_share": 0, "over_causal": 0.5},
        {"form": "blocks", "problem": "CUDA error:\na | b"}], "problem": "off by 0.3"},
    "row_kernels/step": {"rows": [{"family": "rotary", "pass": "forward", "shape": "[8]", "ms": 0.02, "speed_ratio": 3.0,
                                   "late_share": 0, "eager_late_share": 0.11, "share_of_ceiling": 0.8},
                                  {"family": "weight_gradient", "pass": "backward", "shape": "[8]", "ms": 0.04,
                                   "speed_ratio": 1.5, "late_share": 0.1, "eager_late_share": 0},
                                  {"family": "swiglu", "pass": "forward", "shape": "[9]", "problem": "off by nan"}]},
    "cross_entropy/8 x 4, vocabulary 9": {"plain_ms": 4.0, "fused_ms": 2.0, "speed_ratio": 2.0, "plain_peak_mib": 900.0,
                                          "fused_peak_mib": 90.0, "plain_late_share": 0, "fused_late_share": 0},
    "train_step/gla 340m": {"parameters": 374_000_000, "batch": 8, "seq_len": 2048, "median_ms": 200.0,
                            "share_of_peak": 0.41, "peak": "H200 bf16 dense", "peak_memory_mib": 20480.0,
                            "first_loss": 10.58, "last_loss": 6.25,
                            "profile": {"launches": 900, "copies": 4, "synchronisations": 3, "wall_ms": 210.0,
                                        "top": [{"name": "gemm<a|b>", "calls": 12, "ms": 90.0}]}},
    "ncu/per_head B2 T64 H2 D64": {"launches": [{"kernel": "decay::Scan<64>", "metrics": {
        "Duration": "185.2 us", "DRAM Throughput": "44 %", "Registers Per Thread": "128 register/thread"}}]},
    "decode/gla 340m": {"precision": "bf16", "early": 1000, "tokens": 10000, "early_ms_per_token": 2.0,
                        "late_ms_per_token": 2.1, "ratio": 1.05},
}


def record(name, status="done", reason="", result=None, where=HERE):
    return {"item": name, "status": status, "reason": reason, "seconds": 1, "words": [], "result": result or {},
            "machine": dataclasses.asdict(where)}


class TablesTest(InAFolder):
    def write_records(self, *records):
        out = self.folder / "out"
        (out / "items").mkdir(parents=True, exist_ok=True)
        for i, one in enumerate(records):
            (out / "items" / f"{i}.json").write_text(json.dumps(one))
        return out

    def text(self, *extra):
        out = self.write_records(*(record(name, result=result) for name, result in FIGURES.items()), *extra)
        return tables.session_text(tables.merged(out))

    def test_every_figure_is_in_a_well_formed_table(self):
        text = self.text()
        for words in ("### NVIDIA H200, driver 580.1, commit 0123456789ab", "| `wrappers_gpu_test` | 30 | 0 | 2 |",
                      "| per_head | B2 T64 H2 D64 | 0.500 / 0.500 | 61% / 61% | 30% / 30% | 0% / 0% | 2.0e-03 |",
                      "| 2.00 x / 2.00 x | 60% / 60% |", "| per_token | B2 T64 H2 D64 | 3.000 / 3.000 | 1.500 / 1.500 | 2.00 x / 2.00 x |", "| rotary | forward | [8] | 0.0200 | 3.00 x (late) | 80% |",
                      "| swiglu | forward | [9] | problem: off by nan |  |  |",
                      "| B2 T64 d64 | forward | window | 0.250 | 0.50 x |",
                      "| B2 T64 d64 | forward | blocks | problem: CUDA error: a / b |  |", "\nB2 T64 d64, problem: off by 0.3",
                      "| weight_gradient | backward | [8] | 0.0400 | 1.50 x |  |",
                      "| 8 x 4, vocabulary 9 | 4.00 | 2.00 | 2.00 x | 900 | 90 |",
                      "| gla 340m | 374,000,000 | 8 x 2048 | 200.0 | 81,920 | 41.0% | 20.0 | 900 | 4 | 3 | 10.58 / 6.25 |",
                      "| `gemm<a/b>` | 12 | 90.00 |", "| gla 340m | bf16 | 1,000 / 10,000 | 2.000 | 2.100 | 1.05 |",
                      "Against FlashQLA, bf16:", "| gated_delta_net | B2 T64 H2 D64 | 1.000 / 1.000 | 2.000 / 2.000 | 0.50 x / 0.50 x |",
                      "| kda B2 T64 H2 D64 | 2.500 / 2.500 | 20% / 20% | 0% / 0% | 4.0e-03 |",
                      "| per_head B2 T64 H2 D64 | `decay::Scan<64>` | 185.2 us | 44 % |  |  | 128 register/thread |"):
            self.assertIn(words, text)
        self.assertNotIn("Not done", text)
        for block in text.split("\n\n"):
            widths = {line.count("|") for line in block.splitlines() if line.startswith("|")}
            self.assertLessEqual(len(widths), 1, block)

    def test_tables_show_figures_that_are_not_finite(self):
        def without_numbers(value, key=""):
            if isinstance(value, dict):
                return {key: without_numbers(inner, key) for key, inner in value.items()}
            if isinstance(value, list):
                return [without_numbers(inner, key) for inner in value]
            return None if isinstance(value, float) else value

        measured = {name: result for name, result in FIGURES.items() if not name.startswith(("fla", "flash", "jla"))}
        out = self.write_records(*(record(name, result=without_numbers(result)) for name, result in measured.items()))
        text = tables.session_text(tables.merged(out))
        self.assertIn("| per_head | B2 T64 H2 D64 | not finite / not finite |", text)
        self.assertIn("| gla 340m | 374,000,000 | 8 x 2048 | not finite | not finite | not finite | not finite |", text)

    def test_items_that_are_not_done_are_listed(self):
        text = self.text(record("fla/per_token", "skipped", "fla is not installed"), record("tests/step_gpu_test", "failed", "a\nb",
                         {"passed": 3, "failed": ["S.T"], "skipped": 0}))
        self.assertIn("| fla/per_token | skipped | fla is not installed |", text)
        self.assertIn("| tests/step_gpu_test | failed | a b |", text)
        self.assertIn("| `step_gpu_test` | 3 | S.T | 0 |", text)

    def test_publishing_is_idempotent_and_changes_only_the_tables(self):
        out = self.write_records(record("decode/gla 340m", result=FIGURES["decode/gla 340m"]))
        document, measured = self.folder / "RESULTS.md", self.folder / "measured"
        document.write_text(f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n")
        for _ in range(2):
            with contextlib.redirect_stdout(io.StringIO()):
                tables.publish(out, measured, document)
            text = document.read_text()
            self.assertTrue(text.startswith(f"before\n{tables.BEGIN}\n### NVIDIA H200"))
            self.assertTrue(text.endswith(f"|\n{tables.END}\nafter\n"))
            self.assertEqual(tables.with_tables(text, tables.gpu_text(measured)), text)
        self.assertEqual([path.name for path in measured.iterdir()],
                         ["nvidia_h200_driver_580_1_commit_0123456789ab.json"])

    def test_results_of_several_drivers_and_commits_are_kept(self):
        document, measured = self.folder / "RESULTS.md", self.folder / "measured"
        document.write_text(f"{tables.BEGIN}\n{tables.END}\n")
        for i, where in enumerate((HERE, dataclasses.replace(HERE, driver="590.2"), dataclasses.replace(HERE, commit="fedcba987654"))):
            out = self.folder / f"out{i}"
            (out / "items").mkdir(parents=True)
            one = record("decode/gla 340m", result=FIGURES["decode/gla 340m"], where=where)
            (out / "items/0.json").write_text(json.dumps(one))
            with contextlib.redirect_stdout(io.StringIO()):
                tables.publish(out, measured, document)
        self.assertEqual(len(list(measured.iterdir())), 3)
        self.assertEqual(len(re.findall("^### NVIDIA H200, ", document.read_text(), re.M)), 3)

    def test_kernels_are_found_in_the_sources(self):
        self.assertGreaterEqual(tables.kernels_in_sources(), {
            "decay::WarpgroupStatesKernel", "decay::ChannelChunkOperandsKernel", "decay::ChannelWarpgroupScanKernel",
            "lanes::BackwardKernel", "delta::AdjointScanKernel", "ConvertToFloat8Kernel", "UpdateSegment"})
        (self.folder / "k.cuh").write_text("namespace halflife::kernels {\nnamespace a {\ntemplate <int kN>\n__global__ void\n"
            "HL_LAUNCH_BOUNDS(128) OneKernel(Args a) {\n}\n}  // namespace a\n__global__ void TwoKernel(int n) {}\n}\n")
        self.assertEqual(tables.kernels_in_sources(self.folder), {"a::OneKernel", "TwoKernel"})

    def test_mixed_results_and_rehearsals_are_refused(self):
        one = record("decode/gla 340m", result=FIGURES["decode/gla 340m"])
        other = record("decode/b", where=dataclasses.replace(HERE, gpu="NVIDIA H100"))
        with self.assertRaisesRegex(ValueError, "mixes results of .*H200.*H100|mixes results of .*H100.*H200"):
            tables.merged(self.write_records(one, other))
        rehearsed = record("decode/gla 340m", where=machine.Machine(machine.REHEARSAL, "none", "c"))
        with self.assertRaisesRegex(ValueError, "is a rehearsal's"):
            tables.merged(self.write_records(rehearsed, rehearsed))
        with self.assertRaisesRegex(ValueError, "has no results"):
            tables.merged(self.folder / "nothing")

    def test_the_tables_in_results_match_the_measured_files(self):
        document = tables.RESULTS.read_text()
        self.assertEqual(tables.with_tables(document, tables.gpu_text()), document)


class CarryTest(InAFolder):
    def test_a_pack_has_the_programs_that_a_program_starts(self):
        names = [items.WHOLE_RUN.program, *items.WHOLE_RUN.starts]
        with tempfile.TemporaryDirectory() as scratch:
            build = pathlib.Path(scratch)
            self.assertEqual(carry.missing([items.WHOLE_RUN], build), names)
            for name in names:
                (build / name).parent.mkdir(parents=True, exist_ok=True)
                (build / name).touch()
            self.assertEqual(carry.programs_of([items.WHOLE_RUN], build), names)

    def test_packs_keep_the_order_and_the_limit(self):
        bytes_of = {"a": 20, "b": 25, "c": 30, "d": 5, "e": 90, "x": 15, "y": 8}
        loads = {"a": ["x"], "b": ["x"], "c": ["x", "y"], "d": ["y"], "e": []}
        self.assertEqual(carry.size_of(["a", "b"], loads, bytes_of), 60)
        self.assertEqual(carry.groups(loads, bytes_of, most=60), [["a", "b"], ["c", "d"], ["e"]])
        self.assertEqual(carry.groups(loads, bytes_of, most=59), [["a"], ["b"], ["c", "d"], ["e"]])

    def test_words_for_only_select_exactly_the_items_of_a_pack(self):
        wanted = list(items.ITEMS)
        for names in (["bench/bench_decode"], ["tests/train/step_gpu_test", "bench/bench_train_step"],
                      ["tests/ops/step_kernels_gpu_test"]):
            words = shlex.split(carry.only_words(wanted, names))
            self.assertEqual({i.name for i in wanted if i.program in names}, {i.name for i in items.chosen(words)})

    @unittest.skipUnless(shutil.which("strip") and shutil.which("ldd"), "strip or ldd was not found")
    def test_a_pack_has_only_programs_and_their_libraries(self):
        build = self.folder / "build"
        (build / "bench").mkdir(parents=True)
        shutil.copy("/bin/sh", build / "bench/bench_decode")
        (build / "CMakeCache.txt").write_text(f"LibTorch_INCLUDE_DIR:PATH={self.folder}/torch/include\n")
        (self.folder / "torch").mkdir()
        (self.folder / "torch/version.py").write_text("__version__ = '2.11.0+cu130'\n")
        made = self.folder / "pack"
        with contextlib.redirect_stdout(io.StringIO()):
            carry.pack(items.chosen(["decode/"]), build, made, most_mib=64)
        self.assertEqual(json.loads((made / machine.CARRIED).read_text())["torch"], "2.11.0")
        names = {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()}
        self.assertLessEqual({machine.CARRIED, "bench/bench_decode"}, names)
        self.assertFalse([name for name in names if re.search(r"libc\.so|libtorch", name)])
        self.assertEqual(subprocess.run([made / "bench/bench_decode", "-c", "exit 3"], check=False).returncode, 3)
        with self.assertRaisesRegex(ValueError, "already exists"):
            carry.pack(items.chosen(["decode/"]), build, made, most_mib=64)
        with self.assertRaisesRegex(ValueError, "Use --list-files to split them"):
            carry.pack(items.chosen(["decode/"]), build, self.folder / "more", most_mib=1e-3)
        self.assertFalse((self.folder / "more").exists())

    def test_the_commit_is_that_of_the_build(self):
        self.assertRegex(machine.commit_of(self.folder), "^[0-9a-f]{12}( with changes)?$|^unknown$")
        version = self.folder / machine.VERSION
        version.parent.mkdir(parents=True)
        text = (REPO / "src/core/version.cc.in").read_text()
        for dirty, word in (("false", ""), ("true", machine.WITH_CHANGES)):
            version.write_text(text.replace("@HALFLIFE_VERSION@", "0.1.0").replace("@GIT_HASH@", "0123456789ab").replace("@GIT_DIRTY@", dirty))
            self.assertEqual(machine.commit_of(self.folder), "0123456789ab" + word)
        version.write_text(text.replace("@GIT_HASH@", ""))
        self.assertNotIn("0123456789ab", machine.commit_of(self.folder))

    def test_carried_programs_find_the_installed_package(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("OMP_NUM_THREADS", None)
            self.assertEqual(machine.environment(self.folder)["OMP_NUM_THREADS"], "1")
            (self.folder / machine.CARRIED).write_text('{"commit": "c", "torch": "1.0.0"}')
            self.assertEqual(machine.environment(self.folder)["OMP_NUM_THREADS"], str(min(8, os.cpu_count())))
        self.assertEqual(machine.commit_of(self.folder), "c")
        if machine.torch_folder() is None:
            self.assertIn("has no torch", machine.wrong_torch(self.folder))
            self.assertNotIn(str(self.folder), machine.environment(self.folder).get("LD_LIBRARY_PATH", ""))
            return
        self.assertIn("need 1.0.0", machine.wrong_torch(self.folder))
        folders = machine.environment(self.folder)["LD_LIBRARY_PATH"].split(":")
        self.assertEqual(folders[:2], [str(self.folder / "lib"), str(machine.torch_folder() / "lib")])


class RanksRunTest(InAFolder):
    def measure(self, codes):
        """Measures simulated runs. That of the n-th mesh fails with the n-th exit code, unless it is 0. Returns the result
        and the printed lines."""
        codes = dict(zip((mesh.name for mesh in ranks_run.MESHES), codes))

        def losses(_, name, mesh, share="1"):
            if codes.get(name, 0) != 0:
                raise ranks_run.Failed("no reason", codes[name])
            return [1.0] * ranks_run.STEPS

        options = mock.Mock(program=pathlib.Path("halflife"), device="cpu", small=False)
        out = io.StringIO()
        with mock.patch.multiple(ranks_run.Runs, prepare=lambda _: None, losses=losses, is_equal=lambda *_: True):
            with contextlib.redirect_stdout(out):
                result = ranks_run.measure(options, self.folder)
        return result, [json.loads(line) for line in out.getvalue().splitlines()]

    def test_each_mesh_adds_a_line(self):
        result, lines = self.measure([0] * len(ranks_run.MESHES))
        self.assertEqual((len(lines), lines[0]["differences"]), (len(ranks_run.MESHES), {"ranks_2_zero_0": 0.0}))
        self.assertEqual((lines[-1]["differences"], result["problems"]), (result["differences"], []))

    def test_only_hangs_end_the_measurement(self):
        for codes, meshes in (((71, 1, 0, 72), 3), ((None, 71), 1), ((1, 1, 1), len(ranks_run.MESHES)),
                              ((0, 72, 0), len(ranks_run.MESHES))):
            result, lines = self.measure(codes)
            self.assertEqual(len(lines), meshes, codes)
            self.assertEqual(len(result["problems"]), sum(code != 0 for code in codes), codes)


if __name__ == "__main__":
    unittest.main()
