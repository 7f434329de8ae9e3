"""The items of a session, in order of importance, so that a session that ends early has the main results.

An item is a command for a GPU and a small variant for a rehearsal on a CPU. In its words, {build} is the folder of the
programs, {file} is a file of the item in the folder of the session, {python} is this interpreter and {repo} is the
repository. The names of tools are replaced by their paths.
"""

import dataclasses
import pathlib
import re
import sys
from collections.abc import Callable

import readers
from machine import REPO

sys.path.insert(1, str(REPO / "bench"))
import compare_fla
import compare_jla


@dataclasses.dataclass(frozen=True)
class Item:
    name: str  # also names its file, with other characters than letters, digits, . and - replaced by _
    program: str  # the required program, relative to {build}
    words: tuple[str, ...]  # the arguments of the program
    read: Callable = readers.read_json
    minutes: float = 1  # time limit: two to ten times the time on an H200, if measured
    rehearsal: tuple[str, ...] | None = None  # replaces `words`; None: the same words
    rehearsed_by: str = ""  # replaces `program` in a rehearsal
    before: tuple[str, ...] = ()  # words before the program
    needs: tuple[str, ...] = ()  # compute-sanitizer, ncu, nsys, mpirun, jla, or a peer of bench/compare_fla.py
    resumes: bool = False  # a repeated command continues with its file
    of_slowest: str = ""  # use the words of the slowest item of this group
    starts: tuple[str, ...] = ()  # programs below {build} that `program` starts

    @property
    def group(self) -> str:
        return self.name.partition("/")[0]

    @property
    def file_name(self) -> str:
        return re.sub(r"[^A-Za-z0-9.-]+", "_", self.name.replace("/", "-"))


# Disables the kernels that need Hopper (docs/running_on_a_cluster.md).
NO_HOPPER = ("env", "HALFLIFE_WARPGROUPS=0")


def _by_warps(item: Item) -> Item:
    """Returns the same item without Hopper's kernels. On other GPUs and for other shapes it equals the original item."""
    return dataclasses.replace(item, name=f"{item.name}, by warps", before=(*NO_HOPPER, *item.before))


def _test(name: str, folder: str, minutes: float, rehearsed_by: str = "") -> Item:
    report = ("--gtest_output=json:{file}",)
    return Item(f"tests/{name}", f"{folder}/{name}", report, readers.read_gtest, minutes, rehearsed_by=rehearsed_by)


def _sanitized(tool: str, name: str, folder: str, tests: str, minutes: float) -> Item:
    before = ("compute-sanitizer", "--tool", tool, "--error-exitcode", "99")
    if tool == "racecheck":  # only kernels of this project: with those of LibTorch it would take too long
        before = (*before, "--kernel-name", "kns=halflife")
    if tool == "memcheck":  # no caching allocator: its blocks are adjacent, which hides overruns
        before = ("env", "PYTORCH_NO_CUDA_MEMORY_CACHING=1", *before)
    return Item(f"{tool}/{name}", f"{folder}/{name}", (f"--gtest_filter={tests}",), readers.read_sanitizer, minutes,
                before=before, needs=("compute-sanitizer",))


def _decay(kind: str, shape: compare_fla.Shape) -> Item:
    sizes = ("--batch", str(shape.batch), "--seq-len", str(shape.seq_len), "--heads", str(shape.heads), "--dim",
             str(shape.dim), "--dim-v", str(shape.dim_v), "--qk-heads", str(shape.qk_heads))
    small = ("--batch", "1", "--seq-len", "64", "--heads", "2", "--dim", str(min(64, shape.dim)), "--dim-v",
             str(min(64, shape.values)), "--qk-heads", str(min(1, shape.qk_heads)), "--rounds", "1", "--skip-eager")
    return Item(f"decay_attention/{kind} {shape}", "bench/bench_decay_attention",
                ("--device", "cuda", "--kind", kind, *sizes), minutes=0.5, rehearsal=("--kind", kind, *small))


def _delta(kind: str) -> Item:
    shape = compare_fla.DELTA_SHAPES[0]
    small = ("--batch", "1", "--seq-len", "64", "--heads", "1", "--dim", "16", "--rounds", "1")
    return Item(f"delta_rule/{kind} {shape}", "bench/bench_delta_rule",
                ("--device", "cuda", *compare_fla.shape_options(kind, shape)), minutes=0.5,
                rehearsal=("--kind", kind, *small))


def _scan(kind: str) -> Item:
    shape = compare_fla.SCAN_SHAPES[0]
    sizes = ("--batch", str(shape.batch), "--seq-len", str(shape.seq_len), "--dim", str(shape.dim))
    small = ("--batch", "1", "--seq-len", "64", "--dim", "8", "--rounds", "1")
    return Item(f"scans/{kind} B{shape.batch} T{shape.seq_len} D{shape.dim}", "bench/bench_scans",
                ("--device", "cuda", "--kind", kind, *sizes), minutes=0.5, rehearsal=("--kind", kind, *small))


def _peer(peer: str, kind: str, shapes: tuple[str, ...] = (), minutes: float = 8) -> Item:
    """Compares with another program. `shapes`: parts of the names of shapes; empty: all."""
    chosen = ("--shapes", *shapes) if shapes else ()
    guard = ("--without-guard",) if peer == "fla" else ()
    words = ("--peer", peer, "--only", kind, *chosen, "--rounds", "2", "--samples", "20", "--tune-ms", "20", *guard,
             "--json", "{file}", "--resume")
    program = f"bench/{compare_fla.program_of(kind)}"
    name = f"{peer}/{kind}" + (f" {', '.join(shapes)}" if shapes else "")
    return Item(name, program, (*words, "--binary", f"{{build}}/{program}"), readers.read_rows, minutes,
                before=("{python}", "{repo}/bench/compare_fla.py"), needs=(peer,), resumes=True)


# Options of Nsight Compute. The program starts the recording after its checks and warm-up (bench/support/measure.h), and
# all kernels of this project are recorded, so that new kernels need no change here. The caches are flushed before each
# kernel, and the clocks are not changed, as in the timed rounds.
NCU = ("ncu", "--profile-from-start", "off", "--kernel-name-base", "demangled", "-k", "regex:halflife::",
       "--clock-control", "none", "--target-processes", "application-only",
       *(word for section in ("SpeedOfLight", "LaunchStats", "Occupancy", "SchedulerStats", "WarpStateStats",
                              "MemoryWorkloadAnalysis") for word in ("--section", section)),
       "--metrics", "dram__bytes_read.sum,dram__bytes_write.sum,smsp__inst_executed.sum,l1tex__data_bank_conflicts_pipe_lsu.sum",
       "--csv", "--page", "details", "--log-file", "{file}")


def _ncu(timed: Item, **more) -> Item:
    return dataclasses.replace(timed, read=readers.read_ncu, minutes=1, before=NCU, needs=("ncu",), **more)


def _ncu_round(timed: Item) -> Item:
    """Profiles the kernels of one round of a benchmark: of a forward, and of a forward and backward."""
    name = timed.name.removeprefix("decay_attention/").replace("/", " ")
    return _ncu(timed, name=f"ncu/{name}", words=(*timed.words, "--rounds", "1"))


def _ncu_step(name: str, *model, **more) -> Item:
    """Profiles the kernels of one step of the model with one layer."""
    return _ncu(_step(name, *model, layers=1, steps=1, profile=False, **more), name=f"ncu/step of {name}")


def _jla(kind: str) -> Item:
    """Compares with jla on the two shapes for which its times are known."""
    words = ("--only", kind, "--shapes", "B2 T16384", "V256", "--rounds", "2", "--json", "{file}")
    return Item(f"jla/{kind}", "bench/bench_decay_attention",
                (*words, "--binary", "{build}/bench/bench_decay_attention"), readers.read_rows, 3,
                before=("{python}", "{repo}/bench/compare_jla.py"), needs=("jla",))


def _step(name: str, mixer: str, dim: int, heads: int, mlp_dim: int = 0, precision: str = "bf16", layers: int = 24,
          steps: int = 10, profile: bool = True, graphs: bool = False) -> Item:
    """Runs a training step with a micro-batch of 8, as in launch/recipes. `mlp_dim` 0: the width of the recipes
    (ratio 4)."""
    flags = (*(("--profile",) if profile else ()), *(("--cuda-graphs",) if graphs else ()))
    words = ("--device", "cuda", "--precision", precision, "--layers", str(layers), "--dim", str(dim), "--mlp-dim", str(mlp_dim),
             "--seq-len", "2048", "--batch", "8", "--vocab", "32000", "--steps", str(steps), "--warmup", "3")
    small = ("--layers", "1", "--dim", "32", "--seq-len", "64", "--batch", "1", "--steps", "1", "--warmup", "1")
    return Item(f"train_step/{name}", "bench/bench_train_step", ("--mixer", mixer, "--heads", str(heads), *flags, *words),
                minutes=1.5, rehearsal=("--mixer", mixer, "--heads", "2", *flags, *small))


def _launches(name: str, *more: str) -> Item:
    """Runs a training step of a model so small that its launches take longer than its kernels."""
    fixed = ("--mixer", "retention", "--profile", *more)
    sizes = ("--heads", "4", "--layers", "4", "--dim", "128", "--seq-len", "256", "--batch", "8")
    small = ("--heads", "2", "--layers", "1", "--dim", "32", "--seq-len", "64", "--batch", "1")
    return Item(f"train_step/{name}", "bench/bench_train_step",
                (*fixed, *sizes, "--device", "cuda", "--precision", "bf16", "--steps", "50", "--warmup", "5"), minutes=1,
                rehearsal=(*fixed, *small, "--steps", "2", "--warmup", "2"))


def _rows(size: str, rehearsed: str) -> Item:
    return Item(f"row_kernels/{size}", "bench/bench_row_kernels", ("--device", "cuda", "--size", size), minutes=1,
                rehearsal=("--size", "step", "--only", rehearsed, "--rounds", "1"))


def _adamw() -> Item:
    only = ("--only", "adamw")
    return Item("row_kernels/adamw", "bench/bench_row_kernels", ("--device", "cuda", *only), minutes=0.5,
                rehearsal=("--size", "step", *only, "--rounds", "1"))


def _softmax(batch: int, dim: int) -> Item:
    sizes = ("--batch", str(batch), "--seq-len", str(16384 // batch), "--heads", str(1024 // dim), "--dim", str(dim))
    small = ("--batch", "1", "--seq-len", "64", "--heads", "1", "--dim", "8", "--long", "128", "--rounds", "1")
    return Item(f"softmax_attention/B{batch} T{16384 // batch} d{dim}", "bench/bench_softmax_attention",
                ("--device", "cuda", *sizes, "--long", "32768", "--rounds", "20"), minutes=1.5, rehearsal=small)


def _cross_entropy(rows: int, dim: int, vocab: int) -> Item:
    sizes = ("--rows", str(rows), "--dim", str(dim), "--vocab", str(vocab))
    small = ("--rows", "64", "--dim", "32", "--vocab", "300", "--pairs", "1")
    return Item(f"cross_entropy/{rows} x {dim}, vocabulary {vocab}", "bench/bench_cross_entropy",
                ("--device", "cuda", *sizes, "--pairs", "20"), minutes=1, rehearsal=small)


def _decode(name: str, *more: str) -> Item:
    recipe = lambda recipe: ("--config", f"{{repo}}/launch/recipes/{recipe}.textproto", "--set")
    return Item(f"decode/{name}", "bench/bench_decode",
                ("--device", "cuda", *recipe("gla_340m"), "data.path=none", "--early", "1000", "--tokens", "3000", *more),
                minutes=1.5, rehearsal=(*recipe("quickstart"), "model.num_layers=1", "--early", "500", "--tokens", "1000", *more))


# Trains a run, resumes it, and trains it with CUDA graphs (whole_run.py).
WHOLE_RUN = Item("run/quickstart", "src/cli/halflife", ("--device", "cuda", "--steps", "60"), minutes=3,
                 rehearsal=("--device", "cpu", "--steps", "6", "--small"),
                 before=("{python}", "{repo}/tools/gpu_session/whole_run.py"), starts=("src/cli/halflife-engine",))

# Trains the same model on several ranks that share the GPU (ranks_run.py).
MPIRUN = ("env", "HALFLIFE_SHARE_GPU=1", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "mpirun",
          "--oversubscribe", "--bind-to", "none", "-n", "4")
_RANKS_TEST = _test("nccl_ranks_gpu_test", "tests/dist", 2)
NCCL_RANKS = dataclasses.replace(_RANKS_TEST, words=("--ranks=4", *_RANKS_TEST.words), before=MPIRUN, needs=("mpirun",))
RANKS_RUN = Item("ranks/quickstart", "src/cli/halflife", ("--device", "cuda"), readers.read_last_json, minutes=6,
                 rehearsal=("--device", "cpu", "--small"),
                 before=("{python}", "{repo}/tools/gpu_session/ranks_run.py"), needs=("mpirun",),
                 starts=("src/cli/halflife-engine",))

DECAY_KINDS = ("per_head", "per_token", "per_channel")
DECAY_SHAPES = {kind: compare_fla.shapes_of(kind) for kind in DECAY_KINDS}
# Each kind of decay with documents, in fp32 and in bf16: tests/ops/decay_attention/binding_gpu_test.cc.
DECAY_TESTS = ":".join(f"*.EqualsTheCpu/{number}" for number in (1, 3, 5, 7, 9, 11))
WRAPPERS, OPS = "tests/tools/cuda_emulator/device", "tests/ops"

BINDING = _test("decay_binding_gpu_test", OPS, 1)
DELTA_TEST = _test("delta_rule_gpu_test", OPS, 1)
# Each kind of decay in bf16: tests/ops/delta_rule/delta_rule_gpu_test.cc.
DELTA_TESTS = ":".join(f"*.GradientsEqualTheCpu/{number}" for number in (1, 3, 5))
FIRST_SHAPES = {kind: _decay(kind, shapes[0]) for kind, shapes in DECAY_SHAPES.items()}
SHAPES_A_AND_B = ("B2 T16384", "V256")  # parts of their names
DELTA = {kind: _delta(kind) for kind in compare_fla.DELTA_KINDS}
SCANS = {kind: _scan(kind) for kind in (compare_fla.SCAN, "wkv4")}
PEERS = ("jla", *compare_fla.INSTALL)  # groups whose program is a comparison

ITEMS = (
    # Correctness.
    _test("wrappers_gpu_test", WRAPPERS, 1, rehearsed_by="tests/tools/cuda_emulator/wrappers_emulated_test_plain"),
    _test("step_kernels_gpu_test", OPS, 1),
    BINDING,
    _test("decay_routes_gpu_test", OPS, 1),
    DELTA_TEST,
    _test("float8_linear_gpu_test", OPS, 1),
    _test("softmax_attention_gpu_test", OPS, 1),
    _test("polynomial_attention_gpu_test", OPS, 1),
    _test("step_gpu_test", "tests/train", 1.5),
    _test("decoder_gpu_test", "tests/infer", 1),
    _test("eval_gpu_test", "tests/eval", 1),
    _test("launch_check_gpu_test", WRAPPERS, 1),
    WHOLE_RUN,
    # One figure per claim, the first run of a sanitizer, and several ranks on the GPU.
    _step("gla 340m", "gla", 1024, 4),
    *FIRST_SHAPES.values(),
    _adamw(),
    _sanitized("memcheck", "wrappers_gpu_test", WRAPPERS, "*", 1),
    NCCL_RANKS,
    RANKS_RUN,
    # What each kernel costs, at the shapes of the recipes.
    *(_decay(kind, shape) for kind, shapes in DECAY_SHAPES.items() for shape in shapes[1:3]),
    *DELTA.values(),
    *SCANS.values(),
    *(_by_warps(item) for item in (*FIRST_SHAPES.values(), *DELTA.values())),
    *(_ncu_round(item) for item in FIRST_SHAPES.values()),
    # Steps of the recipes' models.
    _step("retention 340m", "retention", 1024, 8, mlp_dim=1536),
    _step("gla 340m, fp8", "gla", 1024, 4, precision="fp8"),
    _step("gla 340m, one graph a micro-batch", "gla", 1024, 4, graphs=True),
    _step("gla 1.3b", "gla", 2048, 8),
    _step("gla 1.3b, fp8", "gla", 2048, 8, precision="fp8"),
    _step("gated_delta_net 340m", "gated_delta_net", 1024, 6),
    _step("kda 24 x 1024", "kda", 1024, 8),
    _step("mamba 24 x 1024", "mamba", 1024, 4),
    _step("mamba2 24 x 1024", "mamba2", 1024, 4),
    # The other programs at the first shapes. Triton compiles for minutes.
    *(_peer("fla", kind, SHAPES_A_AND_B, 3) for kind in DECAY_KINDS),
    *(_jla(kind) for kind in compare_jla.KINDS),
    _peer("flash_qla", "gated_delta_net", minutes=3),
    *(_peer("fla", kind, minutes=3) for kind in compare_fla.DELTA_KINDS),
    _peer("mamba_ssm", compare_fla.SCAN, minutes=2),
    # The kernels of the other mixers, and those of a step.
    *(_ncu_round(item) for item in (*DELTA.values(), *SCANS.values())),
    _ncu_step("gla, fp8", "gla", 2048, 8, precision="fp8"),
    _ncu_step("mamba", "mamba", 1024, 4),
    _ncu_step("rebased", "rebased", 1024, 16),
    _ncu_step("softmax", "softmax", 1024, 16),
    # The remaining items of each group.
    _step("rebased 24 x 1024", "rebased", 1024, 16),
    _step("softmax 340m", "softmax", 1024, 16),
    _decode("gla 340m, one graph a token"),
    _decode("gla 340m, one graph a token, fp32", "--precision", "fp32"),
    _decode("gla 340m, kernel by kernel", "--no-cuda-graph"),
    _by_warps(BINDING),
    _by_warps(DELTA_TEST),
    _test("nccl_gpu_test", "tests/dist", 1),
    *(_decay(kind, shape) for kind, shapes in DECAY_SHAPES.items() for shape in shapes[3:]),
    _softmax(1, 64),
    _softmax(8, 64),
    _softmax(8, 128),
    _rows("step", "sum_of_squares"),
    _rows("large", "swiglu"),
    _cross_entropy(16384, 1024, 32000),
    _cross_entropy(16384, 2048, 32000),
    _launches("retention 4 x 128, one graph a micro-batch", "--cuda-graphs"),
    _launches("retention 4 x 128, kernel by kernel"),
    _launches("retention 4 x 128 packed, one graph a micro-batch", "--documents", "4", "--cuda-graphs"),
    _launches("retention 4 x 128 packed, kernel by kernel", "--documents", "4"),
    *(_peer("fla", kind) for kind in DECAY_KINDS),
    _peer("helion", "per_token", SHAPES_A_AND_B),
    _sanitized("memcheck", "decay_binding_gpu_test", OPS, DECAY_TESTS, 3),
    _sanitized("racecheck", "decay_binding_gpu_test", OPS, DECAY_TESTS, 12),
    _sanitized("memcheck", "delta_rule_gpu_test", OPS, DELTA_TESTS, 1.5),
    _sanitized("racecheck", "delta_rule_gpu_test", OPS, DELTA_TESTS, 6),
    _sanitized("memcheck", "step_kernels_gpu_test", OPS, "*", 3),
    _sanitized("memcheck", "softmax_attention_gpu_test", OPS, "*EqualsTheCpu*", 1.5),
    _sanitized("racecheck", "softmax_attention_gpu_test", OPS, "*EqualsTheCpu/*ias*", 4),
    Item("profile/slowest step", "bench/bench_train_step", (), readers.read_text, 4,
         before=("nsys", "profile", "--stats=true", "--force-overwrite=true", "--trace=cuda", "--output={file}"),
         needs=("nsys",), of_slowest="train_step"),
)


def chosen(only: list[str]) -> list[Item]:
    """Returns the items whose names contain one of the words, or all items if there are no words."""
    found = [item for item in ITEMS if not only or any(word in item.name for word in only)]
    if not found:
        groups = ", ".join(dict.fromkeys(item.group for item in ITEMS))
        raise ValueError(f"--only {' '.join(only)}: no item's name contains that; groups are {groups}")
    return found


def program_of(item: Item, rehearse: bool) -> str:
    return item.rehearsed_by if rehearse and item.rehearsed_by else item.program


def words_of(item: Item, slowest: tuple[str, ...], build: pathlib.Path, file: pathlib.Path, rehearse: bool,
             tools: dict[str, str]) -> list[str]:
    """Returns the complete command of an item."""
    behind = item.rehearsal if rehearse and item.rehearsal is not None else item.words
    if item.of_slowest:  # one profiler at a time
        behind = tuple(word for word in slowest if word != "--profile")
    program = () if item.group in PEERS else (f"{build}/{program_of(item, rehearse)}",)
    places = {"{build}": str(build), "{file}": str(file), "{python}": sys.executable, "{repo}": str(REPO)}
    words = []
    for word in (*item.before, *program, *behind):
        for place, value in places.items():
            word = word.replace(place, value)
        words.append(tools.get(word, word))
    return words
