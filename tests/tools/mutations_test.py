"""Checks that every mutation in tools/mutations applies to the current sources."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/mutations"))
import run


def main():
    reasons = [(mutation.name, run.find_stale(mutation)) for mutation in run.MUTATIONS]
    stale = [f"{name}: {reason}" for name, reason in reasons if reason]
    names = [name for name, _ in reasons]
    stale += [f"{name}: two rows have this name" for name in set(names) if names.count(name) > 1]
    if stale:
        sys.exit("\n".join([*stale, "Update these rows of tools/mutations, as its README explains."]))
    print(f"{len(names)} mutations apply")


if __name__ == "__main__":
    main()
