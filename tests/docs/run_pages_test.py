#!/usr/bin/env python3
"""Runs the commands of README.md and docs/*.md. The ```sh blocks of a page run in order, in one shell and in an empty
folder, with a copy of launch/ whose recipes train for only a few steps.

    python3 tests/docs/run_pages_test.py build/cpu/src/cli/halflife [PAGE ...]

HTML comments of a page, which readers do not see, control this:

    <!-- not run: REASON -->     The next block is not run. It needs a GPU, a cluster, a network or much time.
    <!-- file: NAME -->          The text of the next block, of any language, is written to the file NAME.
    <!-- run: COMMANDS -->       The commands are run, but not shown. They create the files that the next block reads.

COMMANDS may use the functions of page_functions.sh.
"""

import concurrent.futures
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md"))]
LIMIT_S = 900  # time limit of a page, in case a command hangs
COMMENT = re.compile(r"<!-- (not run|file|run):(.*?)-->", re.DOTALL)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def pieces_of(text):
    """Yields (line, kind, content) of a page: "not run" and "file" refer to the next block."""
    found = [(match.start(), match[1], match[2].strip()) for match in COMMENT.finditer(text)]
    found += [(match.start(), "```" + match[1], match[2]) for match in FENCE.finditer(text)]
    for start, kind, content in sorted(found):
        yield text.count("\n", 0, start) + 1, kind, content


def script_of(page, text):
    """Returns the commands of a page as one script."""
    lines, pending = [], None
    for line, kind, content in pieces_of(text):
        if kind in ("not run", "file"):
            if pending is not None:
                raise ValueError(f"{page}:{line}: two comments for one block")
            pending = (kind, content)
            continue
        place = shlex.quote(f"{page}:{line}")
        if kind == "run" or (kind == "```sh" and pending is None):
            lines += [f"place={place}", content.rstrip()]
        elif kind.startswith("```") and pending is not None and pending[0] == "file":
            lines += [f"place={place}", f"cat > {shlex.quote(pending[1])} <<'END_OF_FILE'", content + "END_OF_FILE"]
        if kind.startswith("```"):
            pending = None
    if pending is not None:
        raise ValueError(f"{page}: no block follows the comment '{pending[0]}: {pending[1]}'")
    return "\n".join(lines)


def run_page(page, halflife):
    """Returns the output of a page that failed, or an empty text."""
    script = script_of(page, (REPOSITORY / page).read_text(encoding="utf-8"))
    if not script:
        return ""
    with tempfile.TemporaryDirectory(prefix="halflife_page_") as folder:
        environment = {**os.environ, "REPOSITORY": str(REPOSITORY), "OMP_NUM_THREADS": "1",
                       "PATH": f"{halflife.parent}:{os.environ['PATH']}",
                       "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        prologue = ("set -euo pipefail\ntrap 'echo \"FAILED: the commands at $place\"' ERR\n"
                    f". {shlex.quote(str(HERE / 'page_functions.sh'))}\n")
        done = subprocess.run(["bash", "-c", prologue + script], cwd=folder, env=environment, check=False,
                              timeout=LIMIT_S, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    return "" if done.returncode == 0 else f"{page}: exit {done.returncode}\n{done.stdout[-4000:]}"


class Scripts(unittest.TestCase):
    PAGE = ("<!-- run: prepare -->\nText\n```sh\nhalflife a\n```\n<!-- not run: a GPU -->\n```sh\nhalflife b\n```\n"
            "<!-- file: c.txt -->\n```\nc\n```\n```cpp\nint d;\n```\n")

    def test_comments_control_the_blocks(self):
        self.assertEqual(script_of("x.md", self.PAGE).splitlines(),
                         ["place=x.md:1", "prepare", "place=x.md:3", "halflife a",
                          "place=x.md:11", "cat > c.txt <<'END_OF_FILE'", "c", "END_OF_FILE"])

    def test_a_comment_belongs_to_a_block(self):
        with self.assertRaisesRegex(ValueError, "no block follows the comment 'not run: a GPU'"):
            script_of("x.md", "<!-- not run: a GPU -->\n")
        with self.assertRaisesRegex(ValueError, "x.md:2: two comments for one block"):
            script_of("x.md", "<!-- not run: a GPU -->\n<!-- file: b -->\n```sh\n```\n")

    def test_commands_are_in_sh_blocks(self):
        for page in PAGES:
            for line, kind, content in pieces_of((REPOSITORY / page).read_text(encoding="utf-8")):
                if kind == "```":
                    self.assertNotRegex(content, r"(?m)^(halflife|launch/\S+|cmake) \S", f"{page}:{line} is not ```sh")


class Pages(unittest.TestCase):
    halflife = pathlib.Path()
    pages = PAGES

    def test_every_page_runs(self):
        with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
            failures = [text for text in pool.map(lambda page: run_page(page, self.halflife), self.pages) if text]
        if failures:
            self.fail("\n".join(failures))


if __name__ == "__main__":
    Pages.halflife = pathlib.Path(sys.argv[1]).resolve()
    Pages.pages = sys.argv[2:] or PAGES
    unittest.main(argv=sys.argv[:1])
