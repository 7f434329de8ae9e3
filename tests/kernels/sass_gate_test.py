"""Tests sass_gate.py on good and bad output of cuobjdump."""

import io
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import sass_gate

SCAN = "_ZN8halflife7kernels5decay15ChunkScanKernelINS1_15ChunkScanConfigILi64ELi64EEEEEvNS1_15ChunkScanParamsE"
TILES = "_ZN8halflife7kernels5decay17ChannelScanKernelINS1_13ChannelConfigILi64ELi64ELb0EEEEEvNS1_15ChunkScanParamsE"
DELTA = ("_ZN8halflife7kernels5delta19WarpgroupScanKernelINS1_10RingConfigILi64ELb1EEEEEvNS1_10ScanParamsE"
         "NS1_17WarpgroupScanMapsE")
WARPGROUPS = ("_ZN8halflife7kernels5decay19WarpgroupScanKernelINS1_19WarpgroupScanConfigILi64ELi64EEEEEvNS1_15ChunkScanParamsE"
              "NS1_13WarpgroupMapsE")
STEP = "_ZN8halflife7kernels5decay10StepKernelIfEEvNS0_22DecayAttentionStepArgsE"


def listing(symbol, instructions, arch="sm_90a"):
    lines = [f"\tcode for {arch}", f"\t\tFunction : {symbol}", "\t.headerflags    @\"EF_CUDA_SM90\""]
    for i, one in enumerate(instructions):
        lines.append(f"        /*{16 * i:04x}*/                   {one} ;   /* 0x000000ff */")
        lines.append("                                                  /* 0x000fc000 */")
    return lines


GOOD = ["LDC R1, c[0x0][0x28]", "@!P0 LDGSTS.E.BYPASS.LTC128B.128 [R2], desc[UR4][R8.64]",
        "LDSM.16.M88.4 R4, [R3]", "HMMA.16816.F32.BF16 R4, R8, R2, R4", "@UP0 UMOV UR4, URZ",
        "EXIT"]


class SassGateTest(unittest.TestCase):
    def problems(self, symbol, instructions):
        kernels = sass_gate.parse(listing(symbol, instructions))
        names = sass_gate.demangle([symbol])
        ((key, counts),) = kernels.items()
        self.assertEqual(key, (symbol, "sm_90a"))
        return sass_gate.problems_of(names[symbol], "sm_90a", counts)

    def test_good_code_passes(self):
        self.assertEqual(self.problems(SCAN, GOOD), [])
        self.assertEqual(self.problems(STEP, ["LDG.E R2, desc[UR4][R2.64]", "EXIT"]), [])

    def test_the_architecture_keeps_its_suffix(self):
        lines = ["arch = sm_90a", *listing(SCAN, GOOD, "sm_90"), "arch = sm_100", *listing(STEP, GOOD, "sm_100")]
        self.assertEqual(list(sass_gate.parse(lines)), [(SCAN, "sm_90a"), (STEP, "sm_100")])

    def test_predicated_instructions_count(self):
        counts = sass_gate.parse(listing(SCAN, GOOD))[SCAN, "sm_90a"]
        self.assertEqual(counts["LDGSTS"], 1)
        self.assertEqual(counts["UMOV"], 1)
        self.assertEqual(sum(counts.values()), len(GOOD))

    def test_local_memory_fails_in_any_kernel(self):
        for one in ("STL [R1+0x4], R5", "@P1 LDL.LU R5, [R1+0x4]"):
            self.assertEqual(len(self.problems(STEP, [one, "EXIT"])), 1)

    def test_a_scan_without_its_instructions_fails(self):
        for dropped in (1, 2, 3):
            rest = GOOD[:dropped] + GOOD[dropped + 1:]
            self.assertEqual(len(self.problems(SCAN, rest)), 1, GOOD[dropped])

    def test_a_missing_setmaxnreg_fails(self):
        units = ["LDSM.16.MT88.4 R4, [R3]", "HGMMA.64x64x16.F32.BF16 R24, R4, gdesc[UR8], R24", "UTMALDG.2D [UR8], [UR4]"]
        self.assertEqual(self.problems(WARPGROUPS, ["USETMAXREG.DEALLOC.CTAPOOL 0x58", *units]), [])
        (problem,) = self.problems(WARPGROUPS, units)
        self.assertIn("no USETMAXREG", problem)

    def test_additional_synchronous_loads_in_the_loop_over_tiles_fail(self):
        load, copy = "@P1 LDG.E R3, desc[UR6][R4.64]", GOOD[1]
        tile = ["BAR.SYNC.DEFER_BLOCKING 0x0", *GOOD[2:4]]

        def loops(before, inside, outside):  # a loop over chunks that contains a loop over tiles
            start = 16 * len(before)
            tiles = start + 16 * len(outside)
            return [*before, *outside, *inside, f"@!P0 BRA {tiles:#x}", f"@P2 BRA {start:#x}", "EXIT"]

        self.assertEqual(self.problems(TILES, loops([load], [copy, *tile], [load, *tile])), [])
        self.assertEqual(self.problems(TILES, loops([load], [copy, *[load] * 4, *tile], [])), [])
        (problem,) = self.problems(TILES, loops([load], [copy, *[load] * 5, *tile], []))
        self.assertIn("5 LDG in the loop over tiles", problem)
        (problem,) = self.problems(TILES, [copy, *tile, "EXIT"])
        self.assertIn("no loop over tiles", problem)

    def test_a_synchronous_load_in_the_loop_of_warpgroups_fails(self):
        units = ["LDSM.16.MT88.4 R4, [R3]", "HGMMA.64x64x16.F32.BF16 R24, R4, gdesc[UR8], R24",
                 "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R2], R3"]
        copies = ["UTMALDG.2D [UR8], [UR4]", "UBLKCP.S.G [UR8], [UR4], UR6"]
        load = "LDG.E R2, desc[UR4][R2.64]"
        self.assertEqual(self.problems(DELTA, [load, *copies, *units, "@P0 BRA 0x30", "EXIT"]), [])
        (problem,) = self.problems(DELTA, [*copies, *units, load, "@P0 BRA 0x20", "EXIT"])
        self.assertIn("1 LDG in the loop over tiles", problem)

    def test_a_rule_without_its_kernel_fails(self):
        out = io.StringIO()
        self.assertEqual(sass_gate.report(sass_gate.parse(listing(SCAN, GOOD)), out),
                         len(sass_gate.RULES) - 1)
        self.assertIn("ReverseScanKernel: no such kernel", out.getvalue())
        self.assertIn("ChunkScanKernel<ChunkScanConfig<64, 64> >", out.getvalue())

    def test_architectures_are_kept_apart(self):
        lines = listing(SCAN, GOOD, "sm_80") + listing(SCAN, ["EXIT"], "sm_100")
        kernels = sass_gate.parse(lines)
        self.assertEqual(kernels[SCAN, "sm_80"]["HMMA"], 1)
        self.assertEqual(kernels[SCAN, "sm_100"]["HMMA"], 0)

    def test_exit_codes(self):
        gate = pathlib.Path(sass_gate.__file__)
        for text, code in (("\n".join(listing(SCAN, ["STL [R1], R5"])), 1), ("nothing", 2)):
            done = subprocess.run([sys.executable, gate, "-"], input=text, text=True,
                                  capture_output=True, check=False)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
