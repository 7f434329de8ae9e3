#!/usr/bin/env python3
"""Extracts the examples of headers and documents, so that they can be compiled.

    extract_examples.py REPOSITORY OUT

An example is one of:
- a ```cpp block of a document,
- a block of a header's comment that is indented by three spaces or more, is separated from the text before it, and
  has a line that ends like a statement.

The example of src/core/log.h is written to OUT/examples/core/log.h, a second one of the same file to log.h.2, and that
of docs/x.md to docs/x.md. Line numbers are kept. "..." is replaced with an empty body or list. OUT/examples.txt is
rewritten only if an example has changed.
"""

import argparse
import dataclasses
import hashlib
import pathlib
import re

COMMENT = re.compile(r"^ *// {3,}(\S.*)$")
TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|//.*'
                   r'|\{ ?\.\.\. ?\}|, \.\.\. ?\}|\.\.\.$')


@dataclasses.dataclass
class Example:
    name: str  # path below OUT/examples, e.g. core/log.h
    file: str  # path of the source, e.g. src/core/log.h
    line: int  # number of the first line, from 1
    lines: list

    def text(self):
        return f'#line {self.line} "{self.file}"\n' + "\n".join(self.lines) + "\n"


def without_comment(line):
    return TOKEN.sub(lambda match: "" if match[0].startswith("//") else match[0], line).rstrip()


def plain_code(line):
    """Returns a line for the compiler: without comments and prose, and with braces for "..."."""
    if line.startswith("... "):
        return ""

    def replace(match):
        if match[0].startswith(", "):
            return "}"
        return "{}" if match[0].endswith("...") or match[0].startswith("{") else match[0]
    return TOKEN.sub(replace, without_comment(line))


def is_code(lines):
    return any(re.search(r"[;{}]$|\) \.\.\.$", without_comment(line)) for line in lines)


def comment_blocks(text):
    """Returns (line, lines) of each block of indented comment lines that does not continue a text."""
    blocks, begin, lines, text_before = [], 0, [], False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        match = COMMENT.match(line)
        if match and not text_before:
            begin = begin or number
            lines.append(match[1])
        elif not match:
            if lines:
                blocks.append((begin, lines))
                begin, lines = 0, []
            text_before = re.match(r" *// ?\S", line) is not None
    return blocks


def fenced_blocks(text):
    blocks, begin, lines = [], 0, []
    for number, line in enumerate(text.splitlines(), 1):
        if begin and line.startswith("```"):
            blocks.append((begin, lines))
            begin, lines = 0, []
        elif begin:
            lines.append(line)
        elif line.startswith("```cpp"):
            begin = number + 1
    return blocks


def examples_of(name, file, text):
    if file.endswith(".md"):
        blocks = fenced_blocks(text)
    else:
        blocks = [(begin, [plain_code(line) for line in lines])
                  for begin, lines in comment_blocks(text) if is_code(lines)]
    return [Example(name + (f".{index}" if index > 1 else ""), file, begin, lines)
            for index, (begin, lines) in enumerate(blocks, 1)]


def all_examples(repository):
    sources = sorted([*(repository / "src").rglob("*.h"), *(repository / "tools").rglob("*.h")])
    documents = [*sorted((repository / "docs").glob("*.md")), repository / "README.md",
                 *sorted((repository / "src").glob("*/README.md"))]
    examples = []
    for path in sources + documents:
        file = path.relative_to(repository).as_posix()
        examples += examples_of(file.removeprefix("src/"), file, path.read_text(encoding="utf-8"))
    return examples


def write_if_changed(path, text):
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()
    index = []
    for example in all_examples(arguments.repository):
        write_if_changed(arguments.out / "examples" / example.name, example.text())
        index.append(f"{hashlib.sha256(example.text().encode()).hexdigest()}  {example.name}\n")
    write_if_changed(arguments.out / "examples.txt", "".join(index))


if __name__ == "__main__":
    main()
