"""The commands that run on a damaged folder, and the checks of their results.

    command = RUN_COMMANDS[0]
    result = halflife.run(command.arguments(place), place.folder)
    problems = command.check(place, result)     # only after exit 0: a reported failure is fine
"""

import dataclasses
import json
import pathlib
import re
from typing import Callable

from hostile import verdict
from hostile.lab import (LAST_STEP, STEPS, Lab, metrics, read_bytes, step_name, tensors, tree)


@dataclasses.dataclass
class Place:
    """A case's own folder: copies of the lab's run and dataset, outputs, and unrelated files."""
    lab: Lab
    folder: pathlib.Path
    target: str = ""  # the damaged file or folder, relative to the run or the dataset
    choice: int = 0  # selects one form of a command
    lines_before: list = dataclasses.field(default_factory=list)  # metrics.jsonl before the command
    right_before: list = dataclasses.field(default_factory=list)  # right_steps() before the command

    def remember(self):
        """Records the state to compare the next command with."""
        self.lines_before = metrics(self.run) or []
        self.right_before = self.right_steps()

    @property
    def run(self):
        return self.folder / "run"

    @property
    def data(self):
        own = self.folder / "data"
        return own if own.is_dir() else self.lab.data

    @property
    def out(self):
        return self.folder / "out"

    @property
    def outside(self):
        return self.folder / "outside"

    def steps(self):
        return {step: self.run / "ckpt" / step_name(step) for step in STEPS}

    def right_steps(self):
        """Returns the steps with the weights of an undisturbed run, saved originally or again."""
        return [step for step, truth in self.lab.tensors.items()
                if tensors(self.run / "ckpt" / step_name(step)) == truth]

    def intact_steps(self):
        """Returns the steps whose weights and manifest are unchanged, byte for byte."""
        intact = []
        for step, path in self.steps().items():
            files = {name: self.lab.steps[step][name]
                     for name in ("manifest.pb", "rank_00000.safetensors")}
            if all(read_bytes(path / name) == data for name, data in files.items()):
                intact.append(step)
        return intact


def accept_any(place, result):
    return []


@dataclasses.dataclass(frozen=True)
class Command:
    name: str
    arguments: Callable
    check: Callable = accept_any
    weight: int = 1
    changes: bool = False  # the command changes the folder, so it must come last


# Training.


def first_step(result):
    """Returns the first step that an attempt trained."""
    resumed = re.search(r"resumed from .*, step (\d+)$", result.err, re.M)
    return int(resumed[1]) + 1 if resumed else 1


def check_training(last):
    """Returns a check: training from any step with the same seed and data gives the same bits."""
    def judge(place, result):
        problems = []
        if tensors(place.run / "ckpt" / step_name(last)) != place.lab.tensors[last]:
            problems.append(f"step {last} differs from that of an undisturbed run")
        lines = metrics(place.run)
        new = [line for line in lines or [] if line not in place.lines_before]
        for key, truth in place.lab.losses.items():
            for line in new:
                if key in line and truth.get(line.get("step")) != line[key]:
                    problems.append(f"{key} of step {line.get('step')} is {line[key]}, not "
                                    f"{truth.get(line.get('step'))}")
        # If lines cannot be written, the run continues and warns.
        if lines is not None and "lines of metrics.jsonl are lost" not in result.err:
            logged = {line.get("step") for line in new if "loss" in line}
            problems += [f"metrics.jsonl lacks step {step}"
                         for step in range(first_step(result), last + 1) if step not in logged]
        return problems
    return judge


def check_own_recipe(place, result):
    # A changed digit of a recipe cannot be detected, unless the checkpoint contradicts it.
    return [] if place.target == "config.textproto" else check_training(6)(place, result)


def own_recipe(place):
    return ["train", "--config", place.run / "config.textproto", "--run", place.run]


# Results of a model.


def outcome_command(name, weight=1):
    def arguments(place):
        return place.lab.read_only_commands(place.run, place.data, place.out)[name]

    def check(place, result):
        outcome = place.lab.outcome(name, place.out, result)
        if outcome in place.lab.outcomes[name]:
            return []
        if name == "export" and "no tokenizer" in result.out:  # the missing tokenizer was reported
            return check_weights(place, outcome)
        return [f"{name} differs from the results of all undamaged steps"]
    return Command(name, arguments, check, weight)


def check_weights(place, outcome):
    weights = [reference["model.safetensors"] for reference in place.lab.outcomes["export"]]
    return [] if outcome.get("model.safetensors") in weights else ["export: wrong weights"]


# ckpt.


OPTIONAL = ("manifest.txtpb", "XXH128SUMS")  # `verify` may accept or reject a step without them


def altered(place, step):
    """Returns a file of a step that has changed, or None."""
    path = place.steps()[step]
    for name, data in place.lab.steps[step].items():
        absent = not (path / name).is_symlink() and not (path / name).exists()
        if read_bytes(path / name) != data and not (absent and name in OPTIONAL):
            return name
    return None


def is_whole(place, step):
    path, files = place.steps()[step], place.lab.steps[step]
    foreign = [file for file in path.glob("*.safetensors") if file.name not in files]
    return not foreign and all(read_bytes(path / name) == data for name, data in files.items())


def verify(place):
    return ["ckpt", "verify", *[path for path in place.steps().values() if path.is_dir()]]


def check_verify(place, result):
    """Is also called after failures, because damage of one step must not hide a wrong OK of another."""
    problems = []
    for step, path in place.steps().items():
        name = altered(place, step)
        if name and f"OK {path}:" in result.out:
            problems.append(f"verify accepts step {step}, whose {name} was altered")
        if f"DAMAGED {path}:" in result.out and is_whole(place, step):
            problems.append(f"verify rejects step {step}, which is not damaged")
    return problems


def check_ls(place, result):
    rows = {int(match[1]): match[2] for match in re.finditer(r"^(\d+) +(\S+)", result.out, re.M)}
    return [f"ls lists step {step} as ok, whose manifest.pb was altered"
            for step in STEPS if rows.get(step) == "ok" and altered(place, step) == "manifest.pb"]


def check_ckpt_inspect(place, result):
    same = result.out.replace(str(place.folder), "") == place.lab.texts["ckpt inspect"]
    return [] if same else ["ckpt inspect describes the step wrongly"]


def diff(place):
    return ["ckpt", "diff", place.run / "ckpt" / step_name(6),
            place.lab.run / "ckpt" / step_name(6), "--bitwise"]


def check_diff(place, result):
    same = tensors(place.run / "ckpt" / step_name(6)) == place.lab.tensors[6]
    return [] if same else ["ckpt diff reports different weights as equal"]


def check_prune(place, result):
    """prune reads no weights, so it may keep a damaged step, but one good step must remain."""
    lost = place.right_before and not place.right_steps()
    return ["prune left no undamaged step"] if lost else []


# Descriptions.


def inspect(place):
    below = ["", "ckpt/step_000000000006", "metrics.jsonl", "events", "config.textproto",
             "tokenizer", place.target, place.target]
    return ["inspect", place.run / below[place.choice % len(below)]]


def check_json(place, result):
    try:
        json.loads(result.out)
        return []
    except ValueError:
        return ["the output of inspect --json is not JSON"]


def check_page(place, result):
    page = read_bytes(place.out / "report.html") or b""
    return [] if page.rstrip().endswith(b"</html>") else ["report wrote an incomplete page"]


# Datasets.


def inspect_data(place):
    return ["inspect", place.data / ["", place.target][place.choice % 2]]


def check_data_text(place, result):
    if place.choice % 2:
        return []
    same = result.out.replace(str(place.folder), "") == place.lab.texts["inspect dataset"]
    return [] if same else ["inspect describes the dataset wrongly"]


def check_dry_run(place, result):
    same = result.out.replace(str(place.folder), "") == place.lab.texts["dry run"]
    return [] if same else ["the dry run differs"]


def prepare_again(place):
    return place.lab.prepare_command(place.out / "data", place.data / "tokenizer")


def check_prepared(place, result):
    if place.target.startswith("tokenizer"):
        return []  # the damaged tokenizer is the input, and may be a valid one
    same = tree(place.out / "data") == place.lab.data_tree
    return [] if same else ["prepare with the dataset's tokenizer gives a different dataset"]


RUN_COMMANDS = [
    Command("verify", verify, check_verify, weight=4),
    Command("ls", lambda p: ["ckpt", "ls", p.run], check_ls),
    Command("ckpt inspect", lambda p: ["ckpt", "inspect", p.run / "ckpt" / step_name(6)],
            check_ckpt_inspect),
    Command("diff", diff, check_diff),
    outcome_command("score", 2),
    outcome_command("eval", 2),
    outcome_command("generate"),
    outcome_command("export", 2),
    Command("inspect", inspect, weight=2),
    Command("inspect --json", lambda p: [*inspect(p), "--json"], check_json, weight=2),
    Command("report", lambda p: ["report", p.run, "--out", p.out / "report.html"], check_page,
            weight=2),
    Command("prune", lambda p: ["ckpt", "prune", p.run, "--keep-last", 2], check_prune,
            changes=True),
    Command("finished", lambda p: p.lab.train_command(p.run, 6), check_training(6), changes=True),
    Command("own recipe", own_recipe, check_own_recipe, changes=True),
    Command("resume", lambda p: p.lab.train_command(p.run, LAST_STEP), check_training(LAST_STEP),
            weight=6, changes=True),
]
DATA_COMMANDS = [
    Command("inspect", inspect_data, check_data_text, weight=2),
    Command("inspect --json", lambda p: [*inspect_data(p), "--json"], check_json, weight=2),
    Command("dry run", lambda p: [*p.lab.train_command(p.run, 6, p.data), "--dry-run"],
            check_dry_run),
    Command("eval", outcome_command("eval").arguments, outcome_command("eval").check, weight=3),
    Command("bigram", lambda p: [*outcome_command("eval").arguments(p), "--bigram"],
            outcome_command("eval").check),
    Command("generate", lambda p: [*outcome_command("generate").arguments(p), "--tokenizer",
                                   p.data / "tokenizer"]),
    Command("prepare", prepare_again, check_prepared),
    Command("resume", lambda p: p.lab.train_command(p.run, LAST_STEP, p.data),
            check_training(LAST_STEP), weight=4, changes=True),
    Command("from the start", lambda p: p.lab.train_command(p.folder / "fresh" / "run", 6, p.data),
            lambda p, r: check_training(6)(dataclasses.replace(p, folder=p.folder / "fresh"), r),
            weight=2, changes=True),
]


def choose(commands, count, rng):
    """Returns different commands. Those that change the folder come last."""
    chosen = []
    while len(chosen) < count:
        command = rng.choices(commands, [command.weight for command in commands])[0]
        if command not in chosen:
            chosen.append(command)
    return sorted(chosen, key=lambda command: command.changes)


def judge(command, place, result):
    problems = verdict.find_misbehaviour(result)
    if not problems and (result.code == 0 or command.name == "verify"):
        problems = command.check(place, result)
    return problems
