"""Writes the GPU tables of bench/RESULTS.md from the files in measured/, one per session."""

import json
import pathlib
import re

import machine
from items import ITEMS, compare_fla, compare_jla
from readers import DONE, SKIPPED

HERE = pathlib.Path(__file__).resolve().parent
MEASURED = HERE / "measured"
RESULTS = machine.REPO / "bench/RESULTS.md"
BEGIN, END = "<!-- tools/gpu_session: begin -->", "<!-- tools/gpu_session: end -->"
NOTHING = "No whole session has run yet; `tools/gpu_session/run.py --tables` writes its tables here."


PEER_NAMES = {"fla": "flash-linear-attention", "flash_qla": "FlashQLA", "mamba_ssm": "mamba_ssm", "helion": "Helion"}


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def of_group(records: list[dict], group: str) -> list[dict]:
    """Returns the records of a group that have figures, also those of items that were interrupted."""
    return [r for r in records if r["item"].startswith(group + "/") and r["result"] and r["status"] != SKIPPED]


def name_of(record: dict) -> str:
    return record["item"].partition("/")[2]


def show(value: float | None, form: str) -> str:
    """Formats a figure. A figure that was NaN or infinite is null in the JSON."""
    return "not finite" if value is None else form.format(value)


def over(value: float | None, divisor: float | None) -> float | None:
    return None if value is None or divisor is None else value / divisor


def both(result: dict, key: str, form: str) -> str:
    return " / ".join(show(result[name][key], form) for name in ("forward", "forward_backward"))


def late(*shares: float | None) -> str:
    """Returns the mark of an unreliable ratio, or an empty text. `shares` are the shares of calls of each side in which
    the GPU waited for the host."""
    return "" if all(share is not None and share <= compare_fla.MANY_LATE for share in shares) else compare_fla.LATE


def explained(text: str) -> str:
    """Appends the explanation of the marks to a table that has any."""
    return f"{text}\n\n{compare_fla.LATE_MEANS}" if compare_fla.LATE in text else text


def problem(row: dict) -> str:
    """Returns the text that replaces the figures of a failed row."""
    return f"problem: {compare_fla.cell_text(row['problem'])}"


def tests(records: list[dict]) -> str:
    rows = []
    for record in of_group(records, "tests"):
        result = record["result"]
        failed = ", ".join(result["failed"]) or "0"
        rows.append([f"`{name_of(record)}`", str(result["passed"]), failed, str(result["skipped"])])
    for tool in ("memcheck", "racecheck"):
        rows += [[f"`{name_of(r)}` under {tool}", str(r["result"]["passed"]), r["result"]["summary"], ""]
                 for r in of_group(records, tool)]
    return table(["test", "passed", "failed", "skipped"], rows) if rows else ""


def whole_run(records: list[dict]) -> str:
    rows = []
    verdicts = {True: "bitwise equal", False: "**differs**", None: ""}
    for record in of_group(records, "run"):
        r = record["result"]
        rows.append([name_of(record), str(r["steps"]), show(r.get("tokens_per_s"), "{:,.0f}"),
                     verdicts[r.get("resumed_equal")], verdicts[r.get("graphs_equal")],
                     "; ".join(r.get("waits", []))])
    head = ["recipe", "steps", "tokens/s", "resumed run", "run with CUDA graphs", "host waits per step"]
    return "A whole run, bf16:\n\n" + table(head, rows) if rows else ""


def decay_attention(records: list[dict]) -> str:
    rows = []
    for record in of_group(records, "decay_attention"):
        result = record["result"]
        kind, _, shape = name_of(record).partition(" ")
        rows.append([kind, shape, both(result, "ms", "{:.3f}"), both(result, "share_of_memory_roofline", "{:.0%}"),
                     both(result, "share_of_matmul", "{:.0%}"), both(result, "late_share", "{:.0%}"),
                     show(result["max_error"], "{:.1e}")])
    head = ["decay", "shape", "ms: forward / both", "share of memory roofline", "share of the matmul",
            "calls that waited for the host", "error"]
    return "Decay attention, bf16:\n\n" + table(head, rows) if rows else ""


def peers(records: list[dict]) -> str:
    """Returns one table for each peer of compare_fla.py."""
    parts = []
    for peer in compare_fla.INSTALL:
        rows = [row for record in of_group(records, peer) for row in record["result"]["rows"]]
        if rows:
            parts.append(compare_fla.markdown(rows, f"Against {PEER_NAMES[peer]}, bf16:", peer).strip())
    return "\n\n".join(parts)


def jla(records: list[dict]) -> str:
    rows = [row for record in of_group(records, "jla") for row in record["result"]["rows"]]
    return compare_jla.markdown(rows, "Decay attention against jax-linear-attention, bf16:").strip() if rows else ""


def other_mixers(records: list[dict]) -> str:
    """Returns the table of the delta rule and the scans."""
    rows = []
    for record in (*of_group(records, "delta_rule"), *of_group(records, "scans")):
        result = record["result"]
        rows.append([name_of(record), both(result, "ms", "{:.3f}"), both(result, "share_of_memory_roofline", "{:.0%}"),
                     both(result, "late_share", "{:.0%}"), show(result["max_error"], "{:.1e}")])
    head = ["kind and shape", "ms: forward / both", "share of memory roofline", "calls that waited for the host", "error"]
    return "Delta rule and scans, bf16:\n\n" + table(head, rows) if rows else ""


def row_kernels(records: list[dict]) -> str:
    rows = []
    for record in of_group(records, "row_kernels"):
        for row in record["result"]["rows"]:
            named = [row["family"], row["pass"], row["shape"]]
            if "problem" in row:
                rows.append([*named, problem(row), "", ""])
                continue
            share = show(row["share_of_ceiling"], "{:.0%}") if "share_of_ceiling" in row else ""
            speed = show(row["speed_ratio"], "{:.2f} x") + late(row["late_share"], row["eager_late_share"])
            rows.append([*named, show(row["ms"], "{:.4f}"), speed, share])
    head = ["part", "pass", "shape", "ms", "speed", "share of memory"]
    return explained("Row kernels against LibTorch's operations:\n\n" + table(head, rows)) if rows else ""


def softmax_attention(records: list[dict]) -> str:
    """Returns a table with one row per form: milliseconds, and the ratio to plain causal attention with the same
    kernels."""
    rows = []
    for record in of_group(records, "softmax_attention"):
        result = record["result"]
        for part in [key for key in result if key.startswith("forward")]:
            for form in result[part]:
                named = [name_of(record), part.replace("_", " "), form["form"]]
                if "problem" in form:
                    rows.append([*named, problem(form), ""])
                    continue
                ratio = show(form["over_causal"], "{:.2f} x") + late(form["late_share"], form["causal_late_share"])
                rows.append([*named, show(form["ms"], "{:.3f}"), ratio])
    head = ["shape", "pass", "form", "ms", "relative to causal"]
    off = [f"{name_of(r)}, {problem(r['result'])}" for r in of_group(records, "softmax_attention") if "problem" in r["result"]]
    return "\n\n".join([explained("Softmax attention, bf16:\n\n" + table(head, rows)), *off]) if rows else ""


def cross_entropy(records: list[dict]) -> str:
    rows = []
    for record in of_group(records, "cross_entropy"):
        r = record["result"]
        speed = show(r["speed_ratio"], "{:.2f} x") + late(r["plain_late_share"], r["fused_late_share"])
        rows.append([name_of(record), show(r["plain_ms"], "{:.2f}"), show(r["fused_ms"], "{:.2f}"), speed,
                     show(r["plain_peak_mib"], "{:,.0f}"), show(r["fused_peak_mib"], "{:,.0f}")])
    head = ["tokens x dim", "plain, ms", "in blocks of rows, ms", "speed", "plain, MiB", "in blocks, MiB"]
    return explained("Output layer and cross entropy, forward and backward:\n\n" + table(head, rows)) if rows else ""


def train_step(records: list[dict]) -> str:
    rows = []
    for record in of_group(records, "train_step"):
        r = record["result"]
        profile = r.get("profile", {})
        counts = [str(profile.get(key, "")) for key in ("launches", "copies", "synchronisations")]
        tokens = over(r["batch"] * r["seq_len"] * 1e3, r["median_ms"])
        rows.append([name_of(record), f"{r['parameters']:,}", f"{r['batch']} x {r['seq_len']}",
                     show(r["median_ms"], "{:.1f}"), show(tokens, "{:,.0f}"), show(r["share_of_peak"], "{:.1%}"),
                     show(over(r["peak_memory_mib"], 1024), "{:.1f}"), *counts,
                     f"{show(r['first_loss'], '{:.2f}')} / {show(r['last_loss'], '{:.2f}')}"])
    head = ["model", "parameters", "batch", "ms", "tokens/s", "share of peak", "peak tensor memory, GiB", "launches", "copies",
            "synchronisations", "loss: first / last step"]
    if not rows:
        return ""
    peaks = sorted({record["result"]["peak"] for record in of_group(records, "train_step")})
    return f"Training step, one GPU, bf16; peak: {', '.join(peaks)}:\n\n" + table(head, rows)


def slowest_step(records: list[dict]) -> str:
    profiled = [r for r in of_group(records, "train_step") if r["result"].get("profile", {}).get("top")]
    if not profiled:
        return ""
    slowest = max(profiled, key=lambda r: r["result"]["median_ms"] or 0)
    profile = slowest["result"]["profile"]
    whole = sum(entry["ms"] or 0 for entry in profile["top"])
    rows = [[f"`{entry['name'][:80].replace('|', '/')}`", str(entry["calls"]), show(entry["ms"], "{:.2f}")]
            for entry in profile["top"][:12]]
    return (f"The longest operations in a step of {name_of(slowest)}. The step takes {show(profile['wall_ms'], '{:.0f}')} "
            f"ms under the profiler, and the longest {len(profile['top'])} operations take {whole:.0f} ms:\n\n"
            + table(["operation", "calls", "ms"], rows))


def decode(records: list[dict]) -> str:
    rows = []
    for record in of_group(records, "decode"):
        r = record["result"]
        rows.append([name_of(record), r["precision"], f"{r['early']:,} / {r['tokens']:,}", show(r["early_ms_per_token"], "{:.3f}"),
                     show(r["late_ms_per_token"], "{:.3f}"), show(r["ratio"], "{:.2f}")])
    return "Decoding, one row:\n\n" + table(["model", "precision", "tokens", "ms early", "ms late", "ratio"], rows) if rows else ""


# Metric of Nsight Compute -> column of the table.
NCU_COLUMNS = {"Duration": "time", "DRAM Throughput": "share of DRAM's rate", "Issue Slots Busy": "issue slots busy",
               "Achieved Occupancy": "occupancy", "Registers Per Thread": "registers"}


def kernels_in_sources(sources: pathlib.Path = machine.REPO / "src/kernels") -> set[str]:
    """Returns the names of all kernels, with the namespaces below halflife::kernels."""
    names = set()
    for path in sources.rglob("*.cu*"):
        inside: list[str] = []  # the enclosing namespaces of the current line
        awaits_name = False  # whether __global__ was read and the name of the kernel was not
        for line in path.read_text().splitlines():
            if opened := re.match(r"namespace ([\w:]+) \{", line):
                inside += re.sub(r"^halflife::kernels:*", "", opened[1]).split("::")
            elif closed := re.match(r"\}  // namespace ([\w:]+)", line):
                count = len(re.sub(r"^halflife::kernels:*", "", closed[1]).split("::"))
                del inside[len(inside) - count :]
            awaits_name = awaits_name or line.startswith("__global__") or " __global__ " in line
            found = re.search(r"\b(?!HL_)([A-Z]\w*[a-z]\w*)\(", line) if awaits_name else None
            if found:
                names.add("::".join([*filter(None, inside), found[1]]))
                awaits_name = False
    return names


def ncu(records: list[dict]) -> str:
    rows, launched = [], set()
    for record in of_group(records, "ncu"):
        for launch in record["result"]["launches"]:
            launched.add(launch["kernel"].partition("<")[0])
            rows.append([name_of(record), f"`{launch['kernel'][:60].replace('|', '/')}`",
                         *(launch["metrics"].get(name, "") for name in NCU_COLUMNS)])
    if not rows:
        return ""
    head = ["item", "kernel", *NCU_COLUMNS.values()]
    others = ", ".join(f"`{name}`" for name in sorted(kernels_in_sources() - launched))
    return ("Kernels under Nsight Compute, with cold caches:\n\n" + table(head, rows)
            + (f"\n\nKernels without a row were not launched by these items on this GPU: {others}." if others else ""))


def left_out(records: list[dict]) -> str:
    """Lists the items that are not done, so that readers know that a table is incomplete."""
    first = lambda record: re.sub(r"\s+", " ", record["reason"])[:160].replace("|", "/")
    rows = [[record["item"], record["status"], first(record)] for record in records if record["status"] != DONE]
    return "Not done:\n\n" + table(["item", "status", "reason"], rows) if rows else ""


PARTS = (tests, whole_run, decay_attention, other_mixers, peers, jla, softmax_attention, row_kernels, cross_entropy, train_step, slowest_step, decode, ncu,
         left_out)


def session_text(session: dict) -> str:
    parts = [part(session["records"]) for part in PARTS]
    return "\n\n".join([f"### {machine.Machine(**session['machine'])}", *(part for part in parts if part)])


def gpu_text(folder: pathlib.Path = MEASURED) -> str:
    """Returns the text between the markers."""
    sessions = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return "\n\n".join(map(session_text, sessions)) if sessions else NOTHING


def with_tables(document: str, text: str) -> str:
    begin, end = document.index(BEGIN) + len(BEGIN), document.index(END)
    return f"{document[:begin]}\n{text}\n{document[end:]}"


def merged(out: pathlib.Path) -> dict:
    """Merges the records of a session. Refuses records of several machines."""
    order = {item.name: place for place, item in enumerate(ITEMS)}
    records = [json.loads(path.read_text()) for path in (out / "items").glob("*.json")]
    records.sort(key=lambda record: (order.get(record["item"], len(order)), record["item"]))
    if not records:
        raise ValueError(f"{out} has no results")
    machines = {tuple(record["machine"].values()): record["machine"] for record in records}
    if len(machines) > 1:
        named = "; ".join(str(machine.Machine(**one)) for one in machines.values())
        raise ValueError(f"{out} mixes results of {named}. A table contains only one machine.")
    found = next(iter(machines.values()))
    if found["gpu"] == machine.REHEARSAL:
        raise ValueError(f"{out} is a rehearsal's folder. Its figures do not apply to a GPU.")
    return {"machine": found, "records": records}


def slug_of(where: machine.Machine) -> str:
    """Returns the name of a session's file, which contains the GPU, the driver and the commit."""
    return re.sub(r"[^a-z0-9]+", "_", f"{where.gpu} driver {where.driver} commit {where.commit}".lower())


def publish(out: pathlib.Path, folder: pathlib.Path = MEASURED, document: pathlib.Path = RESULTS) -> int:
    session = merged(out)
    slug = slug_of(machine.Machine(**session["machine"]))
    folder.mkdir(exist_ok=True)
    (folder / f"{slug}.json").write_text(json.dumps(session, indent=1) + "\n")
    document.write_text(with_tables(document.read_text(), gpu_text(folder)))
    print(f"Wrote {folder / slug}.json and the tables in {document}.")
    return 0
