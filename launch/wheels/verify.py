"""Prints each pinned wheel of the given files that is absent, of another version, or damaged in
this Python environment.

    python verify.py cpu.txt [cuda.txt ...]

An install that was cut short leaves files missing or short while pip already counts the wheel as
installed, so every file is compared with the size in the wheel's own RECORD. One line a wheel:
"torch==2.11.0 damaged: torch/lib/libtorch_cpu.so".
"""

import importlib.metadata
import sys


def problem(name: str, version: str) -> str | None:
    try:
        wheel = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
    if wheel.version != version:
        return f"is {wheel.version}"
    if wheel.files is None:
        return "damaged: no RECORD"
    for file in wheel.files:
        path = file.locate()
        if file.size is not None and (not path.exists() or path.stat().st_size != file.size):
            return f"damaged: {file}"
    return None


def main() -> None:
    for requirements in sys.argv[1:]:
        with open(requirements, encoding="utf-8") as lines:
            for line in lines:
                pin = line.partition("#")[0].strip()
                name, _, version = pin.partition("==")
                found = problem(name, version) if pin else None
                if found:
                    print(pin, found)


if __name__ == "__main__":
    main()
