"""A damaged file in a runs folder, or a stranger's, costs one line, and no command its end."""

import json
import random
import shutil
from pathlib import Path

import pytest
from helpers import little_text, write_sweep
from tiny_trials import TINY, ended

from transformer_pl import translate
from transformer_pl.plan.plan import plan_trials
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.report import __main__ as report
from transformer_pl.sweep import __main__ as sweep
from transformer_pl.train import __main__ as train
from transformer_pl.trials import records
from transformer_pl.trials.result import Result
from transformer_pl.trials.runs_folder import RunsFolder

FORMS = {
    "result.json": Result,
    "status.json": records.Status,
    "env.json": records.Environment,
    "identity.json": records.IdentityInputs,
    "metrics.jsonl": records.MetricsLine,
    "plan.json": records.SweepPlan,
}
WHOLE = [b"", b"\xff\xfe", b"[1, 2]", b"[[1, 2]]", b"null", b"3", b'"text"', b"{}", b'{"id": ', b"[" * 9999]
WHOLE += [b'{"a": ' * 9999]
NUMBERS = [-1, 0, 2.5, 10**400, 1e308, -1e308, float("nan"), float("inf")]
TEXTS = ["", "text", "\x1b[2J\x9b2J\r", "../../..", "x" * 5000, "a\nb"]
VALUES = [NUMBERS, TEXTS, [None, True], [[], {}, [1], [[]] * 3, {"a": 1}, [None], {"a": {"b": ["c"]}}]]


def places(value, path=()):
    """This place in a JSON value, and every one below it."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


def damaged(text, form, chance):
    """A JSON text with something else in one place, or nothing; or another text. Mostly below a key that is read."""
    kind = chance.randrange(8)
    if kind == 0:
        return chance.choice(WHOLE)
    if kind == 1:
        return text[: chance.randrange(len(text))]
    content = json.loads(text)
    read = [key for key in content if key in form.__annotations__ or form is records.MetricsLine]
    read += ["metrics"] * 9 if "metrics" in read else []
    top = chance.choice(read if read and kind < 7 else [*content])
    *path, key = chance.choice(places(content[top], (top,)))
    inner = content
    for name in path:
        inner = inner[name]
    if kind == 2:
        del inner[key]
    else:
        inner[key] = chance.choice(chance.choice(VALUES))
    return json.dumps(content).encode()


def damage(path, chance):
    form = FORMS[path.name]
    if path.suffix == ".jsonl":
        lines = path.read_bytes().splitlines()
        for place in chance.sample(range(len(lines)), 3):
            lines[place] = damaged(lines[place], form, chance)
        path.write_bytes(b"\n".join(lines) + b"\n")
    else:
        path.write_bytes(damaged(path.read_bytes(), form, chance))


SEEDS = list(range(1, 16))
KEYS = TINY | {"data.path": "text"}
OTHER = "model.position=ablations.no_position.NoPosition"


def words(row, seed):
    """The arguments of `train`."""
    return [f"--{key}={value}" for key, value in (KEYS | {"variant": row, "seed": seed}).items()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with a sweep file, and its finished trials in `whole`: those of a row are copies of one."""
    folder = tmp_path_factory.mktemp("damaged")
    little_text(folder / "text")
    write_sweep(folder / "grid.yaml", KEYS | {"variant": ["base", OTHER], "seed": SEEDS})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for row in ("base", OTHER):
            assert ended(train.main, *words(row, 1), "--runs=whole")[0] == 0
        planned = plan_trials(read_sweep(Path("grid.yaml")), RunsFolder(Path("whole")))
        for one in planned:
            if not one.folder.path.exists():
                first = next(trained for trained in planned if trained.place == one.place)
                shutil.copytree(first.folder.path, one.folder.path)
        assert ended(sweep.main, "grid.yaml", "--runs=whole")[0] == 0
    return folder


COMMANDS = {  # what they are, their words, and the exit codes that they may have
    "list": (sweep.main, ["--list"], (0,)),
    "plan": (sweep.main, ["grid.yaml", "--plan"], (0,)),
    "new": (sweep.main, ["grid.yaml", "--plan", "--set", "optim.warmup=5"], (0,)),
    "report": (report.main, ["grid.yaml"], (0,)),
    "json": (report.main, ["grid.yaml", "--format=json"], (0,)),
    "trials": (report.main, ["grid.yaml", "--format=csv", "--trials"], (0,)),
    "page": (report.main, ["grid.yaml", "--format=html"], (0,)),
    "translate": (translate.main, ["grid/position=NoPosition/s2", "grid.yaml"], (0, 2)),  # 2: there is no such trial
    "train": (train.main, words(OTHER, 2), (0,)),
}
FOR_PROGRAMS = ("json", "trials", "page")  # whose output is no text for a terminal


SOME, MORE = (pytest.mark.slow, range(1, 6)), (pytest.mark.exhaustive, range(6, 100))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=mark) for mark, of in (SOME, MORE) for seed in of)])
def test_a_damaged_file_costs_a_line_and_nothing_else(whole, monkeypatch, seed):
    """A file of each trial but one is damaged, and those of several sweeps. Every command still works."""
    monkeypatch.chdir(whole)
    chance = random.Random(seed)
    shutil.rmtree("runs", ignore_errors=True)
    shutil.copytree("whole", "runs")
    intact, *trials = sorted(Path("runs/trials").iterdir(), key=lambda folder: "NoPosition" in folder.name)
    paths = [folder / chance.choice([*FORMS][:-1]) for folder in trials]
    for name in ("grid@demo", *(f"grid@demo-{number}" for number in range(9))):
        paths.append(Path("runs/sweeps", name, "plan.json"))
        shutil.copytree("whole/sweeps/grid@demo", paths[-1].parent, dirs_exist_ok=True)
    for path in paths:
        damage(path, chance)
        if path.name == "status.json":  # which says nothing of a trial with a result
            (path.parent / "result.json").unlink()
    for name, (main, argv, codes) in COMMANDS.items():
        code, printed, errors = ended(main, *argv, "--runs=runs")
        lines = errors.splitlines()
        assert code in codes, (name, errors)
        assert all(line.startswith(("warning: ", "error: ", "position=", "next, ")) for line in lines), (name, errors)
        assert all(sum(str(path) in line for line in lines) <= 1 for path in paths), (name, errors)
        assert not set("\x1b\x9b\r") & set(errors + printed * (name not in FOR_PROGRAMS)), name
        if name == "json":
            assert json.loads(printed)["rows"][0]["done"] >= 1, intact
        if name == "train":
            assert "val/bleu" in printed
