"""A mutation is a planted bug: a piece of source text, and the wrong text that replaces it."""

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Mutation:
    bug: str  # The bug as a short sentence without a full stop.
    source: str  # The file to change, relative to the repository root.
    text: str  # The text to replace, which must match once. White space matches any white space.
    replacement: str
    test: str  # The GoogleTest source that must fail, relative to the root; or PATH:FILTER.
    family: str = ""  # Filled in by the table.
    emulated: bool = False  # Filled in by the table: the test runs CUDA sources in the emulator.

    @property
    def name(self):
        return f"{self.family}: {self.bug}"

    def apply(self, original):
        """Returns the source with the bug. Raises ValueError if the text does not match once."""
        pattern = re.compile(r"\s+".join(map(re.escape, self.text.split())))
        matches = list(pattern.finditer(original))
        if len(matches) != 1:
            raise ValueError(f"the text matches {len(matches)} times in {self.source}")
        begin, end = matches[0].span()
        return original[:begin] + self.replacement + original[end:]


def make_table(families, emulated):
    """Returns the mutations of {family: [Mutation, ...]} with their family's name."""
    return [dataclasses.replace(mutation, family=family, emulated=emulated)
            for family, mutations in families.items() for mutation in mutations]
