"""A CUDA build with a LibTorch that has no products of bf16 matrices with fp32 results: said when it is configured."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

MODULE = pathlib.Path(__file__).resolve().parents[2] / "cmake/FindLibTorch.cmake"
DECLARED = "struct TORCH_API {}_dtype_out {{\n"


@unittest.skipUnless(shutil.which("cmake"), "no cmake here")
class TorchProductsTest(unittest.TestCase):
    def configure(self, products, cuda="ON"):
        """With a LibTorch that declares these products."""
        with tempfile.TemporaryDirectory() as folder:
            torch = pathlib.Path(folder) / "torch"
            ops = torch / "include/ATen/ops"
            ops.mkdir(parents=True)
            (torch / "include/ATen/core").mkdir()
            (torch / "include/ATen/core/Tensor.h").touch()
            (torch / "version.py").write_text("__version__ = '2.3.1+cu121'\n")
            for product in ("mm", "addmm"):
                text = DECLARED.format(product) if product in products else "struct TORCH_API mm_out {\n"
                (ops / f"{product}_ops.h").write_text(text)
            command = ["cmake", f"-DHALFLIFE_WITH_CUDA={cuda}", f"-DHALFLIFE_TORCH_DIR={torch}"]
            command += ["-P", str(MODULE)]
            return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)

    def test_says_what_lacks_and_what_would_work(self):
        for products, missing in ((("mm",), "addmm"), (("addmm",), "mm"), ((), "mm")):
            done = self.configure(products)
            words = " ".join(done.stderr.split())
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("LibTorch 2.3.1 in ", words)
            self.assertIn(f"has no at::{missing}_out with a type of its result", words)
            self.assertIn("LibTorch 2.11.0 has it: run launch/setup", words)

    def test_no_word_where_both_are_there_or_no_gpu_is_asked_for(self):
        for products, cuda in ((("mm", "addmm"), "ON"), ((), "OFF")):
            self.assertNotIn("with a type of its result", self.configure(products, cuda).stderr)


if __name__ == "__main__":
    unittest.main()
