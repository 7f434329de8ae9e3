"""Every planted bug of mutations/ still finds the text that it replaces, once."""

import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "mutations"))

import linked  # noqa: E402
import run  # noqa: E402
from family import ROOT  # noqa: E402


class MutationTexts(unittest.TestCase):
    def check(self, folder, mutations):
        for name, source, text, *_ in mutations:
            with self.subTest(name):
                self.assertEqual((folder / source).read_text().count(text), 1, source)

    def test_of_cuda_kernels(self):
        for family in run.FAMILIES:
            self.check(ROOT / family.folder, family.mutations)

    def test_of_what_is_linked(self):
        self.check(ROOT, linked.MUTATIONS)


if __name__ == "__main__":
    unittest.main()
