"""Tests extract_examples.py on small texts, and that every example of the repository is compiled."""

import pathlib
import re
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
import extract_examples

# Examples that are not compiled here, because their headers are for one instruction set, for the device or for the
# emulator.
NOT_COMPILED = {"kernels/common/cpu/block_rows.h", "kernels/common/cpu/chunk_rows.h", "kernels/common/cpu/microkernel.h",
                "kernels/common/cpu/rows_ahead.h", "kernels/focus_pool/cpu/window_scan.h",
                "kernels/common/cuda/device.h", "kernels/common/cuda/device.h.2", "kernels/common/cuda/device90.h",
                "kernels/common/cuda/device.h.3", "tools/cuda_emulator/swizzle.h"}


def lines_of(*text):
    (example,) = extract_examples.examples_of("x.h", "src/x.h", "\n".join(text))
    return example.lines


class ExtractTest(unittest.TestCase):
    def test_a_block_keeps_its_line_number_and_loses_its_comments(self):
        (example,) = extract_examples.examples_of("core/x.h", "src/core/x.h", "\n".join([
            "// What it is for.", "//", "//   const X x;  // made by main",
            '//   x.Say("// no comment", \'"\');', "#pragma once"]))
        self.assertEqual((example.name, example.line), ("core/x.h", 3))
        self.assertEqual(example.text(), '#line 3 "src/core/x.h"\nconst X x;\n'
                         'x.Say("// no comment", \'"\');\n')

    def test_ellipses_become_empty_bodies_and_lists(self):
        self.assertEqual(lines_of("//   for (int i : x) ...   // each"), ["for (int i : x) {}"])
        self.assertEqual(lines_of("//   Run([] { ... }, {...}, {.a = 1, ...});"),
                         ["Run([] {}, {}, {.a = 1});"])
        self.assertEqual(lines_of("//   a.B();", "//   ... bind a ...", '//   C("...");'),
                         ["a.B();", "", 'C("...");'])

    def test_formulas_lists_and_prose_are_ignored(self):
        for text in ("//   S_t = exp(g_t) S_{t-1} + v_t,   o_t = q_t S_t",
                     "//   LATEST    a hint for people; nothing relies on it",
                     "// - an item of a list that goes on\n//   in a second line;",
                     "// Prose that ends in a semicolon;", "int code = 1;"):
            self.assertEqual(extract_examples.examples_of("x.h", "src/x.h", text), [], text)

    def test_second_blocks_and_documents(self):
        header = "//   a;\n//\n// And\n//\n//   b;\n"
        names = [one.name for one in extract_examples.examples_of("x.h", "src/x.h", header)]
        self.assertEqual(names, ["x.h", "x.h.2"])
        document = "Text\n```cpp\nint a;  // kept\n```\n```sh\nls;\n```\n"
        (example,) = extract_examples.examples_of("docs/x.md", "docs/x.md", document)
        self.assertEqual((example.line, example.lines), (3, ["int a;  // kept"]))

    def test_a_file_is_rewritten_only_if_its_example_changes(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "a" / "x.h"
            extract_examples.write_if_changed(path, "a;\n")
            path.chmod(0o444)
            before = path.stat().st_mtime_ns
            extract_examples.write_if_changed(path, "a;\n")
            self.assertEqual(path.stat().st_mtime_ns, before)
            path.chmod(0o644)
            extract_examples.write_if_changed(path, "b;\n")
            self.assertEqual(path.read_text(), "b;\n")


class RepositoryTest(unittest.TestCase):
    def test_every_example_is_compiled_once(self):
        found = {example.name for example in extract_examples.all_examples(HERE.parents[1])}
        self.assertLessEqual(NOT_COMPILED, found)
        expected = found - NOT_COMPILED
        self.assertGreater(len(expected), 50)
        included = []
        for source in HERE.glob("*.cc"):
            included += re.findall(r'^#include "examples/(.+)"$', source.read_text(), re.MULTILINE)
        self.assertEqual(sorted(included), sorted(expected))


if __name__ == "__main__":
    unittest.main()
