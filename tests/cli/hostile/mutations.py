"""Damage to files and folders, and obstacles at paths where the program wants to write.

    for target, action in all_mutations(run, PLANTED_IN_RUN): ...
    detail = apply(run, target, action, random.Random(1), outside)

`outside` is a folder next to the damaged one (make_outside). Links lead there, and its contents must never
change.
"""

import os
import pathlib
import shutil
import socket

# Names that the program itself creates or treats specially.
PLANTED_IN_RUN = [
    "DONE.tmp", "abort", "ckpt/.tmp_step_000000000008.0123abcd", "ckpt/.trash", "ckpt/LATEST.tmp",
    "ckpt/step_000000000004/KEEP", "ckpt/step_000000000006.bad",
    "ckpt/step_000000000006/rank_00001.safetensors", "ckpt/step_000000000008",
    "ckpt/step_000000000099", "ckpt/step_99999999999999999999", "config.textproto.tmp",
    "events/events.out.tfevents.9999999999.host.1", "heartbeat.json.tmp", "logs/r00001.log",
    "owner.json.tmp", "samples.jsonl", "tokenizer/tokenizer.json"]
PLANTED_IN_DATASET = ["train-00007.h5", "validation-00001.h5", "tokenizer/tokenizer.json",
                      "tokenizer/special_tokens_map.json", "manifest.pb.tmp"]
# Files that grow during a run. They may have any size, and reading a terabyte takes an hour.
GROWING = ("metrics.jsonl", ".log", "tfevents")


def make_outside(folder):
    """Creates files that do not belong to the program."""
    (folder / "folder" / "inner").mkdir(parents=True)
    (folder / "file.txt").write_bytes(b"unrelated\n" * 600)
    (folder / "folder" / "a.txt").write_bytes(b"another\n")
    (folder / "folder" / "inner" / "b.txt").write_bytes(b"and more\n")


# Changes of a file's bytes: (bytes, rng) -> bytes.


def flip(data, rng):
    data = bytearray(data or b"\0")
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] ^= rng.randint(1, 255)
    return bytes(data)


def zero(data, rng):
    begin = rng.randrange(max(len(data), 1))
    length = min(rng.choice([1, 16, 512, 4096]), len(data) - begin)
    return data[:begin] + bytes(length) + data[begin + length:]


def repeat(data, rng):
    begin = rng.randrange(max(len(data), 1))
    return data[:begin] + data[begin:begin + rng.randint(1, 4096)] + data[begin:]


BYTES = {
    "flip": flip,
    "flip again": flip,
    "flip once more": flip,
    "zero": zero,
    "truncate": lambda data, rng: data[:rng.randrange(max(len(data), 1))],
    "lose the last byte": lambda data, rng: data[:-1],
    "extend": lambda data, rng: data + rng.randbytes(rng.randint(1, 5000)),
    "repeat": repeat,
    "garbage": lambda data, rng: rng.randbytes(max(len(data), 64)),
    "not UTF-8": lambda data, rng: b"\xff\xfe\xc3(\xed\xa0\x80\0 " * 20 + b"\n" + data,
    "deep JSON": lambda data, rng: b"[" * 200000,
    "a huge number": lambda data, rng: b"9" * 100000,
    "empty": lambda data, rng: b"",
}


# Replacements of a file or folder: (path, outside) -> None.


def remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.is_symlink() or path.exists():
        path.unlink()


def make_socket(path):
    # Uses the folder's descriptor, because the name of a socket has at most 107 bytes.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def make_loop(path, _):
    other = path.with_name(path.name + ".loop")
    path.symlink_to(other.name)
    other.symlink_to(path.name)


def make_filled_folder(path, _):
    path.mkdir()
    (path / "something").write_bytes(b"something\n")


def sparse(num_bytes):
    def make(path, _):
        with open(path, "wb") as file:
            file.truncate(num_bytes)
    return make


OTHERS = {
    "an empty file": lambda path, _: path.write_bytes(b""),
    "a folder": lambda path, _: path.mkdir(),
    "a folder with a file": make_filled_folder,
    "a link to itself": lambda path, _: path.symlink_to(path.name),
    "a loop of links": make_loop,
    "a link to nowhere": lambda path, outside: path.symlink_to(outside / "nowhere"),
    "a link to an unrelated file": lambda path, outside: path.symlink_to(outside / "file.txt"),
    "a link to an unrelated folder": lambda path, outside: path.symlink_to(outside / "folder"),
    "a link to /dev/null": lambda path, _: path.symlink_to("/dev/null"),
    "a link to /dev/zero": lambda path, _: path.symlink_to("/dev/zero"),
    "a link to /dev/full": lambda path, _: path.symlink_to("/dev/full"),
    "a pipe": lambda path, _: os.mkfifo(path),
    "a socket": lambda path, _: make_socket(path),
    "300 MiB of zeros": sparse(300 << 20),
    "a terabyte of zeros": sparse(1 << 40),
}


def move_away(path, outside):
    """Moves the file to another folder and creates a link to it, which is not damage."""
    to = outside / "moved" / path.name
    to.parent.mkdir(exist_ok=True)
    shutil.move(path, to)
    path.symlink_to(to)


def litter(path, rng):
    """Creates unexpected entries, some with names that are not UTF-8 or contain a newline."""
    folder = os.fsencode(path)
    for name in (b"\xff\xfe.h5", b"line\nend.safetensors", b"x" * 255):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(rng.randbytes(100))
    os.mkfifo(path / "pipe.jsonl")
    make_socket(path / "socket.textproto")
    make_loop(path / "events.out.tfevents.loop", None)


def partner(path):
    """Returns another file or folder that could be mistaken for this one."""
    siblings = sorted(p for p in path.parent.glob("*") if p != path and p.suffix == path.suffix
                      and p.is_dir() == path.is_dir())
    cousins = sorted(p for p in path.parent.parent.glob("*/" + path.name) if p != path)
    return (cousins or siblings or [None])[0]


def swap(path):
    other = partner(path)
    if other is None:
        return "has no partner"
    aside = path.with_name(path.name + ".aside")
    path.rename(aside)
    other.rename(path)
    aside.rename(other)
    return f"with {other.parent.name}/{other.name}"


def all_mutations(root, planted):
    """Returns [(target, action)] for every file and folder in `root`, in a fixed order."""
    pairs = []
    for path in sorted(root.rglob("*")):
        target = str(path.relative_to(root))
        actions = ["remove", "move away", "swap", *OTHERS]
        actions += ["litter"] if path.is_dir() else list(BYTES)
        if os.geteuid() != 0 and not path.is_dir():  # root ignores permissions
            actions.append("forbid")
        if any(word in path.name for word in GROWING):
            actions.remove("a terabyte of zeros")
        pairs += [(target, action) for action in actions]
    for target in planted:
        pairs += [(target, action) for action in ["garbage", *OTHERS]]
    return pairs


def apply(root, target, action, rng, outside):
    """Applies the action. Returns details of it for the report, or None."""
    path = pathlib.Path(root) / target
    if action == "move away":
        return move_away(path, outside)
    if action == "swap":
        return swap(path)
    if action == "litter":
        return litter(path, rng)
    if action == "forbid":
        return path.chmod(0)
    if action in BYTES:
        data = path.read_bytes() if path.is_file() else b""
        other = BYTES[action](data, rng)
        path.write_bytes(other)
        same = os.path.commonprefix([data, other])
        return f"from byte {len(same)} of {len(data)} on"
    remove(path)
    if action in OTHERS:
        path.parent.mkdir(exist_ok=True)
        OTHERS[action](path, outside)
    return None
