"""What bad input gets, through the real commands: one clear message, exit code 2, nothing started, nothing lost."""

import json
from subprocess import CompletedProcess
from typing import NamedTuple

import pytest
from forked import command
from helpers import little_text, result_keys, write_sweep
from tiny_trials import ended

from transformer_pl.report import __main__ as report
from transformer_pl.sweep import __main__ as sweep
from transformer_pl.train import __main__ as train

COMMANDS = {"sweep": sweep, "report": report, "train": train}
TABLE3 = "sweeps/table3_A.yaml"  # of the paper's own parts: planned without torch
TINY = {"model.N": 1, "model.d_model": 8, "model.d_ff": 8, "model.h": 2, "model.width": 1, "model.depth": 1}


class Case(NamedTuple):
    """A mistake: the command with its arguments, and what it must say. HERE is the folder of what lies below."""

    tool: str
    argv: list
    words: list
    environment: dict = {}


FILES = {  # sweep files, and scales, that are none
    "empty": (b"", ["HERE/empty.yaml"]),
    "utf-8": (b"name: b\xff\n", ["HERE/utf-8.yaml"]),
    "syntax": (b"name: [1, 2\nmethod: grid\n", ["HERE/syntax.yaml line 2: "]),
    "keys": (b"model.h: 4\n", ["HERE/keys.yaml: model.h: no key of a W&B sweep", "method = None"]),
}
SWEEPS = {  # the parameters of a sweep
    "everything": (
        TINY
        | {
            "model.hh": 4,
            "optim.warmup": "soon",
            "model.p_drop": 2,
            "trainer.precision": "8-bit",
            "data.batch_tokens": True,
            "data.max_length": [8, "wide"],
            "variant": ["base", "h=4", "model.ffn=nosuch.Part"],
        },
        [
            "HERE/everything.yaml: parameters.model.hh",
            "HERE/everything.yaml: parameters: optim.warmup = soon",
            "HERE/everything.yaml: parameters: model.p_drop = 2",
            "HERE/everything.yaml: parameters: trainer.precision = 8-bit",
            "HERE/everything.yaml: parameters: data.batch_tokens = True",
            "HERE/everything.yaml: parameters: data.max_length = wide",
            "HERE/everything.yaml: variant 'h=4': h = 4",
            "HERE/everything.yaml: model.ffn = nosuch.Part: no module nosuch",
        ],
    ),
    "fraction": (
        {"model.width": 0.3, "model.depth": "1/3", "model.N": [6, 2], "optim.duration": 0.0001, "optim.max_steps": 5},
        [
            "model.d_ff = 2048, model.width = 0.3",
            "model.d_model = 512, model.width = 0.3",
            "model.N = 2, model.depth = 0.3333333333333333",
            "optim.max_steps = 5, optim.duration = 0.0001",
        ],
    ),
}
MIXED = "h=4 model.h=3 model.d_ff=1.5"
CASES = {
    "file-missing": Case("sweep", ["HERE/nosuch.yaml"], ["HERE/nosuch.yaml"]),
    **{f"file-{name}": Case("sweep", [f"HERE/{name}.yaml"], words) for name, (_, words) in FILES.items()},
    **{f"sweep-{name}": Case("sweep", [f"HERE/{name}.yaml"], words) for name, (_, words) in SWEEPS.items()},
    # the sweep's command line
    "no-file": Case("sweep", [], ["command line: ", "one of FILE and --list"]),
    "flag": Case("sweep", [TABLE3, "--prallel=2"], ["--prallel=2", "--help"]),
    "seeds": Case("sweep", [TABLE3, "--seeds", "a"], ["--seeds: 'a'"]),
    "set-word": Case("sweep", [TABLE3, "--set", "model.h"], ["--set: 'model.h'"]),
    "parallel": Case("sweep", [TABLE3, "--parallel", "0"], ["--parallel: '0'"]),
    **{
        f"sweep {words}": Case("sweep", words.split(), [named])
        for words, named in (
            ("table3_A table3_B", "table3_B"),
            ("table3_A --seeds 1,1", "--seeds"),
            ("table3_A --set model.h=4 --set model.h=1", "model.h"),
            ("table3_A --budget 4", "--budget"),
            ("table3_A --retune a,a", "--retune"),
            ("table3_A --list", "one of FILE and --list"),
            ("smoke --sampler tpe", "--sampler"),
            ("search_size --rerun", "--rerun"),
            ("search_size --retune optim.warmup", "--retune"),
        )
    },
    # the report's
    "report-files": Case(
        "report", [TABLE3, "HERE/nosuch.yaml", "HERE/empty.yaml"], ["HERE/nosuch.yaml", *FILES["empty"][1]]
    ),
    # the trial's
    "train-keys": Case(
        "train",
        ["--model.hh=4", "--model.N", "many", "--optim.warmup=", "--seeds=1", f"--variant={MIXED}"],
        [
            *(f"command line: {key}" for key in ("model.hh = 4", "model.N = many", "optim.warmup = ", "seeds = 1")),
            *(f"command line variant '{MIXED}': h = 4", "model.d_ff = 1.5", "h must divide d_model"),
        ],
    ),
    # what this machine cannot do
    "machine": Case(
        "train",
        ["--trainer.precision=16-mixed", "--optim.max_steps=1"],
        ["trainer.precision = 16-mixed"],
        {"CUDA_VISIBLE_DEVICES": ""},  # every GPU is hidden
    ),
    "train-twice": Case("train", ["--model.h=4", "--model.h", "8"], ["command line: 'model.h=8'"]),
    # the text
    "texts": Case("sweep", ["HERE/texts.yaml"], ["train.en", "train.de", "test.de line 2"]),
    "hub-offline": Case("sweep", [TABLE3, "--scale=multi30k"], ["data.hub = bentrevett/multi30k", "HERE"]),
    # the runs folder
    "runs-file": Case("sweep", [TABLE3, "--runs=HERE/empty.yaml"], ["HERE/empty.yaml"]),
    "trials-file": Case("sweep", [TABLE3, "--runs=HERE"], ["HERE/trials"]),
}


def refused(completed, *words):
    """What every mistake gets: it is named, with the remedy, and nothing else."""
    printed = f"stdout: {completed.stdout}\nstderr: {completed.stderr}"
    assert completed.returncode == 2, printed
    assert all(line.startswith("error: ") for line in completed.stderr.splitlines()), printed
    assert "Traceback" not in completed.stdout and "each on" not in completed.stdout, printed
    for word in words:
        assert word in completed.stderr, f"lacks: {word}\n{printed}"


def contents(runs):
    """Every file of the trials and the tables, and when it was written."""
    kept = [path for name in ("trials", "sweeps") for path in (runs / name).rglob("*")]
    return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in kept}


def earlier(runs):
    """A runs folder with an earlier result in it."""
    trial, table = runs / "trials" / "h=4-s1-0123456789ab", runs / "sweeps" / "smoke@demo"
    for folder in (trial, table):
        folder.mkdir(parents=True)
    (trial / "result.json").write_text(json.dumps(result_keys()))
    (trial / "status.json").write_text('{"state": "done"}')
    (table / "table.md").write_text("| an earlier table |\n")
    return runs


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The folder with all that is wrong."""
    here = tmp_path_factory.mktemp("wrong")
    for name, (content, _) in FILES.items():
        (here / f"{name}.yaml").write_bytes(content)
    for name, (parameters, _) in SWEEPS.items():
        write_sweep(here / f"{name}.yaml", parameters)
    (here / "trials").write_text("a file")
    for name in ("length", "utf-8"):
        little_text(here / name)
    (here / "length" / "train.de").write_text("eins\nzwei\n")
    (here / "utf-8" / "test.de").write_bytes(b"gut\nsch\xf6n\n")
    write_sweep(here / "texts.yaml", TINY | {"data.path": [str(here / "length"), str(here / "utf-8")]})
    return here


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_reported_with_its_remedy_and_starts_nothing(here, tmp_path, name, monkeypatch):
    case = CASES[name]
    argv = [str(word).replace("HERE", str(here)) for word in case.argv]
    runs = earlier(tmp_path / "runs")
    before = contents(runs)
    if not any(word.startswith("--runs") for word in argv):
        argv = [f"--runs={runs}", *argv]
    environment = {"TRANSFORMER_PL_DATA": str(here), "HF_HOME": str(here / "cache")} | case.environment
    if name == "hub-offline":  # what it imports has read the environment
        printed = command(case.tool, *argv, **environment)
    else:
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        printed = CompletedProcess(argv, *ended(COMMANDS[case.tool].main, *argv))
    refused(printed, *(word.replace("HERE", str(here)) for word in case.words))
    assert contents(runs) == before and not list((runs / "data").glob(".*"))
    assert printed.stdout == "" or case.tool in ("sweep", "train")  # these say what they are doing
