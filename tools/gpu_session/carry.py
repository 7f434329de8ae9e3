"""Packs the files for a machine that has a GPU and LibTorch's Python package, but no compiler or build. A pack contains
the stripped programs, and the libraries that are neither in LibTorch's package nor in every Linux system."""

import dataclasses
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import machine
from items import Item

MIB = 1 << 20
# Libraries of every Linux system with glibc and an NVIDIA driver. All parts of glibc must have the same version.
OF_THE_SYSTEM = re.compile(r"ld-linux|lib(c|m|dl|pthread|rt|util|resolv|anl|nsl|nss_\w+|gcc_s|stdc\+\+|gomp|cuda)\.so")
# Libraries of LibTorch's package and its dependencies. The build may have found them in any folder.
OF_THE_PACKAGE = re.compile(r"(site-packages/|/lib(torch|c10|cudart|nccl|cublas|cudnn|cupti|cusparse|cufft|nvrtc|nvJitLink))")


@dataclasses.dataclass(frozen=True)
class Carried:
    path: pathlib.Path
    place: str  # relative to the pack
    bytes: int  # after stripping


def torch_of(build: pathlib.Path) -> str:
    """Returns the version that the programs were linked with."""
    include = re.search(r"^LibTorch_INCLUDE_DIR:PATH=(.*)$", (build / "CMakeCache.txt").read_text(), re.M)
    version = pathlib.Path(include[1]).parent / "version.py"
    return re.search(r"__version__ = '([0-9.]+)", version.read_text())[1]


def libraries_of(program: pathlib.Path) -> list[pathlib.Path]:
    found = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    paths = re.findall(r"=> (/\S+)", found)
    wanted = [path for path in paths if not OF_THE_PACKAGE.search(path)]
    return [pathlib.Path(path) for path in wanted if not OF_THE_SYSTEM.match(pathlib.Path(path).name)]


def stripped_copy(path: pathlib.Path, copy: pathlib.Path) -> int:
    """Copies a file without symbols. Returns the size of the copy."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, copy)
    copy.chmod(0o755)
    subprocess.run(["strip", "--strip-unneeded", str(copy)], capture_output=True, check=False)
    return copy.stat().st_size


def names_of(wanted: list[Item]) -> list[str]:
    """Returns the programs of the items and the programs that these start, without duplicates."""
    return list(dict.fromkeys(name for item in wanted for name in (item.program, *item.starts)))


def programs_of(wanted: list[Item], build: pathlib.Path) -> list[str]:
    """Returns the programs that exist. A session skips items whose programs are missing."""
    return [name for name in names_of(wanted) if (build / name).exists()]


def collect(names: list[str], build: pathlib.Path, folder: pathlib.Path) -> list[Carried]:
    """Copies programs and the libraries that they load to `folder`."""
    sources = {name: build / name for name in names}
    for name in names:
        sources |= {f"lib/{library.name}": library for library in libraries_of(build / name)}
    return [Carried(path, place, stripped_copy(path, folder / place)) for place, path in sources.items()]


def size_of(names: list[str], loads: dict[str, list[str]], bytes_of: dict[str, int]) -> int:
    """Returns the size of programs and of the libraries that they load, each counted once."""
    return sum(bytes_of[file] for file in {*names, *(library for name in names for library in loads[name])})


def groups(loads: dict[str, list[str]], bytes_of: dict[str, int], most: int) -> list[list[str]]:
    """Splits the programs, in order, into packs of at most `most` bytes. A larger program has its own pack."""
    packs: list[list[str]] = []
    for name in loads:
        if packs and size_of([*packs[-1], name], loads, bytes_of) <= most:
            packs[-1].append(name)
        else:
            packs.append([name])
    return packs


def missing(wanted: list[Item], build: pathlib.Path) -> list[str]:
    return [name for name in names_of(wanted) if not (build / name).exists()]


def list_files(wanted: list[Item], build: pathlib.Path, most_mib: float) -> int:
    names = programs_of(wanted, build)
    with tempfile.TemporaryDirectory() as scratch:
        carried = {one.place: one for one in collect(names, build, pathlib.Path(scratch))}
    bytes_of = {place: one.bytes for place, one in carried.items()}
    libraries = {name: [f"lib/{library.name}" for library in libraries_of(build / name)] for name in names}
    started = {item.program: [name for name in item.starts if name in libraries] for item in wanted}
    loads = {}  # program of an item -> its libraries, the programs it starts and their libraries
    for name in dict.fromkeys(item.program for item in wanted if item.program in libraries):
        with_it = [*libraries[name], *(word for one in started[name] for word in (one, *libraries[one]))]
        loads[name] = list(dict.fromkeys(with_it))
    print("Copy bench/, tools/gpu_session/ and launch/recipes/, too. Sizes in MiB without symbols:")
    for number, programs in enumerate(groups(loads, bytes_of, int(most_mib * MIB)), 1):
        size = size_of(programs, loads, bytes_of) / MIB
        much = f", more than {most_mib:g}" if size > most_mib else ""
        print(f"\npack {number}, {size:.1f}{much}: --pack DIR --only {only_words(wanted, programs)}")
        for place in [*programs, *dict.fromkeys(library for name in programs for library in loads[name])]:
            print(f"{bytes_of[place] / MIB:7.1f}  {carried[place].path}")
    for name in missing(wanted, build):
        print(f"not built: {build / name}", file=sys.stderr)
    return 0


def only_words(wanted: list[Item], programs: list[str]) -> str:
    """Returns the words of --only that select exactly the items of these programs, quoted for a shell."""
    words = []
    for item in wanted:
        if item.program in programs:
            alone = all(other.program in programs for other in wanted if other.group == item.group)
            words.append(f"{item.group}/" if alone else item.name)
    return " ".join(shlex.quote(word) for word in dict.fromkeys(words))


def pack(wanted: list[Item], build: pathlib.Path, folder: pathlib.Path, most_mib: float) -> int:
    """Creates a pack in a new folder, or fails without creating it."""
    if folder.exists():
        raise ValueError(f"{folder} already exists. Use a new folder for --pack.")
    with tempfile.TemporaryDirectory() as scratch:
        made = pathlib.Path(scratch) / "pack"
        carried = collect(programs_of(wanted, build), build, made)
        size = sum(one.bytes for one in carried) / MIB
        if size > most_mib:
            raise ValueError(f"these items need {size:.1f} MiB, more than {most_mib:g}. Use --list-files to split them into packs.")
        about = {"commit": machine.commit_of(build), "torch": torch_of(build)}
        (made / machine.CARRIED).write_text(json.dumps(about) + "\n")
        shutil.copytree(made, folder)
    for one in carried:
        print(f"{one.bytes / MIB:7.1f}  {one.place}")
    print(f"{size:7.1f} MiB in {folder}. On the other machine run: python3 tools/gpu_session/run.py --build {folder} --out DIR")
    return 0
