"""The machine of a session: the GPU, its driver, the commit of the programs and the available tools."""

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parents[2]
CARRIED = "carried.json"  # in a folder that --pack made (carry.py)
VERSION = "src/core/version.cc"  # in a build folder: contains the commit of the build
WITH_CHANGES = " with changes"
REHEARSAL = "none (rehearsal)"
# The module of each peer, and how to install it.
PACKAGES = {
    "fla": ("fla", "pip install flash-linear-attention==0.6.0"),
    "jla": ("jla", "pip install 'jax-linear-attention[cuda]==0.1.0'"),
    "flash_qla": ("flash_qla", "pip install flash-qla==0.1.3"),
    "mamba_ssm": ("mamba_ssm", "pip install mamba_ssm"),
    "helion": ("helion", "pip install helion (its kernels are in its repository)"),
}
TOOL_FOLDERS = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-systems/bin")


@dataclasses.dataclass(frozen=True)
class Machine:
    """A machine and the commit of its programs. A table contains only results of one such pair."""

    gpu: str
    driver: str
    commit: str

    def __str__(self) -> str:
        return f"{self.gpu}, driver {self.driver}, commit {self.commit}"


def first_gpu() -> tuple[str, str] | None:
    """Returns the name and the driver that nvidia-smi reports, or None if there is no GPU."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    name, _, driver = lines[0].rpartition(", ") if lines else ("", "", "")
    return (name, driver) if name else None


def commit_of(build: pathlib.Path) -> str:
    """Returns the commit that the programs were built from, and whether the tree had changes. If the build does not
    record it, returns the commit of the repository of this file."""
    carried, version = build / CARRIED, build / VERSION
    if carried.exists():
        return json.loads(carried.read_text())["commit"]
    built = re.search(r'"([0-9a-f]+)", (true|false)\}', version.read_text()) if version.exists() else None
    if built:
        return built[1] + (WITH_CHANGES if built[2] == "true" else "")

    def git(*words: str) -> subprocess.CompletedProcess:
        return subprocess.run(["git", "-C", str(REPO), *words], capture_output=True, text=True, check=False)

    head = git("rev-parse", "--short=12", "HEAD")
    if head.returncode != 0:
        return "unknown"
    return head.stdout.strip() + (WITH_CHANGES if git("status", "--porcelain", "-uno").stdout else "")


def torch_folder() -> pathlib.Path | None:
    """Returns the folder of the Python package without importing it."""
    found = importlib.util.find_spec("torch")
    return pathlib.Path(found.origin).parent if found and found.origin else None


def torch_version() -> str:
    return importlib.metadata.version("torch").partition("+")[0]


def wrong_torch(build: pathlib.Path) -> str:
    """Returns why packed programs cannot use the installed LibTorch; empty if they can."""
    carried = build / CARRIED
    if not carried.exists():
        return ""
    wanted = json.loads(carried.read_text())["torch"]
    if torch_folder() is None:
        return f"{sys.executable} has no torch. The programs need {wanted}."
    found = torch_version()
    return "" if found == wanted else f"{sys.executable} has torch {found}. The programs need {wanted}."


def environment(build: pathlib.Path) -> dict[str, str]:
    """Returns the environment in which packed programs find their own libraries and those of the installed LibTorch."""
    # On a machine with packed programs, tests use several threads for their reference values on the CPU.
    threads = str(min(8, os.cpu_count() or 1)) if (build / CARRIED).exists() else "1"
    variables = dict(os.environ, OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", threads))
    torch = torch_folder()
    if not (build / CARRIED).exists() or torch is None:
        return variables
    folders = [build / "lib", torch / "lib", *sorted(torch.parent.glob("nvidia/*/lib"))]
    earlier = variables.get("LD_LIBRARY_PATH")
    variables["LD_LIBRARY_PATH"] = ":".join([*map(str, folders), *([earlier] if earlier else [])])
    return variables


def find_tool(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=":".join(TOOL_FOLDERS))


def why_missing(need: str) -> str:
    """Returns why an item that needs this tool cannot run; empty if it can."""
    if need in PACKAGES:
        module, how = PACKAGES[need]
        missing = importlib.util.find_spec(module) is None
        return f"{need} is not installed. Run {how}, or add its folder to PYTHONPATH." if missing else ""
    return "" if find_tool(need) else f"{need} was not found in PATH or {' or '.join(TOOL_FOLDERS)}"
