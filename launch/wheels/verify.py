"""Prints each pinned wheel of the given files that is absent, has another version, or is damaged in
this Python environment.

    python verify.py cpu.txt [cuda.txt ...]

After an interrupted installation, files may be missing or truncated although pip considers the wheel
installed. The size of every file is therefore compared with the wheel's RECORD. One line per wheel:
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
