"""Sources and tests that are built and mutated together."""

import dataclasses
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[3]


@dataclasses.dataclass
class Family:
    name: str
    folder: str  # below ROOT; a mutation names its source from here
    sources: list  # patterns below `folder`
    tests: dict  # short name -> gtest source below ROOT
    mutations: list
    # header -> test -> beginnings of the CUDA sources that see the header without naming it
    instances: dict = dataclasses.field(default_factory=dict)

    def find(self, pattern):
        return sorted((ROOT / self.folder).glob(pattern))
