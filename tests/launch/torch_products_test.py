"""Tests that CMake rejects a LibTorch that cannot add products of bf16 matrices to fp32 sums in a CUDA build."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

MODULE = pathlib.Path(__file__).resolve().parents[2] / "cmake/FindLibTorch.cmake"
DECLARED = "struct TORCH_API {}_dtype_out {{\n"


@unittest.skipUnless(shutil.which("cmake"), "cmake was not found")
class TorchProductsTest(unittest.TestCase):
    def configure(self, products, cuda="ON", version="2.11.0"):
        """Runs FindLibTorch.cmake on a fake LibTorch that declares these products."""
        with tempfile.TemporaryDirectory() as folder:
            torch = pathlib.Path(folder) / "torch"
            ops = torch / "include/ATen/ops"
            ops.mkdir(parents=True)
            (torch / "include/ATen/core").mkdir()
            (torch / "include/ATen/core/Tensor.h").touch()
            (torch / "version.py").write_text(f"__version__ = '{version}+cu130'\n")
            for product in ("mm", "addmm"):
                text = DECLARED.format(product) if product in products else "struct TORCH_API mm_out {\n"
                (ops / f"{product}_ops.h").write_text(text)
            command = ["cmake", f"-DHALFLIFE_WITH_CUDA={cuda}", f"-DHALFLIFE_TORCH_DIR={torch}"]
            command += ["-P", str(MODULE)]
            return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)

    def test_an_old_libtorch_is_rejected_with_the_fix(self):
        both = ("mm", "addmm")
        for products, version, missing in ((("mm",), "2.11.0", "addmm"), (("addmm",), "2.11.0", "mm"),
                                           ((), "2.3.1", "mm"), (both, "2.10.0", "mm")):
            done = self.configure(products, version=version)
            words = " ".join(done.stderr.split())
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(f"LibTorch {version} in ", words)
            self.assertIn(f"is too old for a CUDA build, which adds products of bf16 matrices to fp32 sums "
                          f"(at::{missing}_out with an output dtype)", words)
            self.assertIn("Run launch/setup to install LibTorch 2.11.0", words)

    def test_a_suitable_libtorch_and_a_cpu_build_are_accepted(self):
        for products, cuda in ((("mm", "addmm"), "ON"), ((), "OFF")):
            self.assertNotIn("too old", self.configure(products, cuda).stderr)


if __name__ == "__main__":
    unittest.main()
