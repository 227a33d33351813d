"""What bad input gets, through the real commands: one clear message, exit code 2, nothing started, nothing lost."""

import json
import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from forked import command
from helpers import a_result

from transformer_pl.experiments.plan import plan_trials
from transformer_pl.experiments.sweep_file import read_sweep

TABLE3 = "sweeps/table3_A.yaml"  # of the paper's own parts: planned without torch
TINY = {"model.N": 1, "model.d_model": 8, "model.d_ff": 8, "model.h": 2, "model.width": 1, "model.depth": 1}
REFUSING = {"HF_HUB_OFFLINE": "0", "HTTPS_PROXY": "http://127.0.0.1:9"}  # no hub, even where there is a network


class Case(NamedTuple):
    """A mistake: the command with its arguments, and what it must say. HERE is the folder of what lies below."""

    tool: str
    argv: list
    words: list
    environment: dict = {}


FILES = {  # sweep files, and scales, that are none
    "empty": (b"", ["HERE/empty.yaml"]),
    "list": (b"- 1\n- 2\n", ["HERE/list.yaml"]),
    "utf-8": (b"name: b\xff\n", ["HERE/utf-8.yaml"]),
    "binary": (b"name: \x00\x01\n", ["HERE/binary.yaml: is not YAML"]),
    "syntax": (b"name: [1, 2\nmethod: grid\n", ["HERE/syntax.yaml line 2: "]),
    "twice": (b"name: a\nname: b\n", ["HERE/twice.yaml line 2: ", "name"]),
    "nul": (b'name: a\nproject: "b\\0c"\n', ["HERE/nul.yaml: project"]),
    "name": (
        b"name: ../../up\nproject: a/b\nmethod: grid\nparameters: {model.h: {value: 4}}\n",
        [
            "HERE/name.yaml: name = '../../up'",
            "HERE/name.yaml: project = 'a/b'",
        ],
    ),
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
    "equal": (
        {"variant": ["base", "model.N=4", "model.N=2 model.depth=1", "model.h=8"], "model.depth": 0.5},
        [
            "rows `N=4` and `N=2 depth=1.0` have the same sizes",
            "variant 'model.h=8' is base (8 is its value); leave it out",
        ],
    ),
    "heads": (
        {"model.h": [8, 3, 32], "model.width": 1 / 32, "seed": [1, "first"]},
        [
            "model.h = 3, model.d_model = 512",
            "h must divide d_model (d_model is 16 at width 0.03125) while d_k and d_v are unset",
            "model.h = 32",
            "seed = first",
        ],
    ),
    "scale": ({"scale": "dem"}, ["scale = dem"]),
}
TEXTS = {  # what is said of a text, whose mistake is made below
    "length": ({}, ["train.en, ", "train.de"]),
    "empty": ({}, ["val "]),
    "utf-8": ({}, ["test.de line 2"]),
    "large": ({"data.vocab_size": 9000}, ["data.vocab_size = 9000"]),
    "small": ({"data.vocab_size": 100}, ["data.vocab_size = 100"]),
    "batch": ({"data.batch_tokens": 3}, ["data.batch_tokens = 3"]),
}
ABSENT = {  # the same, where the plan finds it already
    "val": ["folder HERE/val"],
    "language": ["folder HERE/language", "train.en"],
    "nosuch": ["folder HERE/nosuch", "give another with data.path=FOLDER"],
}
NO_GPU = ["trainer.precision = 16-mixed"]
NO_NETWORK = [
    "data.hub = bentrevett/multi30k",
    "TRANSFORMER_PL_DATA (now HERE)",
]


def on(name, **settings):
    keys = TINY | {"data.path": f"HERE/{name}", "data.vocab_size": 300} | TEXTS[name][0] | settings
    return {key: str(value) for key, value in keys.items()}


CASES = {
    "file-missing": Case("sweep", ["HERE/nosuch.yaml"], ["HERE/nosuch.yaml"]),
    "file-folder": Case("sweep", ["HERE"], ["HERE"]),
    **{f"file-{name}": Case("sweep", [f"HERE/{name}.yaml"], words) for name, (_, words) in FILES.items()},
    **{f"sweep-{name}": Case("sweep", [f"HERE/{name}.yaml"], words) for name, (_, words) in SWEEPS.items()},
    "own-scale-key": Case("sweep", [TABLE3, "--scale=HERE/keys-of-none.yaml"], ["keys-of-none.yaml: model.hh = 4: no"]),
    # the sweep's command line
    "no-file": Case("sweep", [], ["command line: ", "one of FILE, --list, --clean and --schema"]),
    "clean-plan": Case("sweep", ["--clean", "--plan"], ["--plan"]),
    "flag": Case("sweep", [TABLE3, "--prallel=2"], ["--prallel=2", "--help"]),
    "seeds": Case("sweep", [TABLE3, "--seeds", "a"], ["--seeds: 'a' must be different whole numbers"]),
    "seeds-twice": Case("sweep", [TABLE3, "--seeds=1", "--seeds=2"], ["--seeds"]),
    "set-word": Case("sweep", [TABLE3, "--set", "model.h"], ["--set: 'model.h' must be KEY=VALUE, such as model.h=4"]),
    "set-twice": Case(
        "sweep", [TABLE3, "--set", "seed=1", "--set", "seed=2"], ["--set: seed is set twice; set it once"]
    ),
    "set-seed": Case("sweep", [TABLE3, "--set", "seed=4"], ["--set: seed = 4"]),
    "set-keys": Case(
        "sweep",
        [TABLE3, "--set", "model.hh=4", "--set", "model.N=many"],
        ["--set: model.hh = 4", "--set: model.N = many"],
    ),
    "parallel": Case("sweep", [TABLE3, "--parallel", "0"], ["--parallel: '0' must be auto or a whole number of at"]),
    "scale": Case("sweep", [TABLE3, "--scale", "nosuch"], ["scale = nosuch"]),
    # the report's
    "report-files": Case(
        "report",
        [TABLE3, "HERE/nosuch.yaml", "HERE/list.yaml"],
        ["HERE/nosuch.yaml", *FILES["list"][1]],
    ),
    "report-set": Case("report", [TABLE3, "--set", "model.hh=4"], ["--set: model.hh = 4"]),
    # the trial's
    "train-keys": Case(
        "train",
        [
            "--model.hh=4",
            "--model.N",
            "many",
            "--optim.warmup=",
            "--seeds=1",
            "--variant",
            "h=4 model.h=3 model.d_ff=1.5",
        ],
        [
            "command line: model.hh = 4",
            "command line: model.N = many",
            "command line: optim.warmup = ",
            "command line: seeds = 1",
            "command line variant 'h=4 model.h=3 model.d_ff=1.5': h = 4",
            "model.d_ff = 1.5",
            "h must divide d_model",
        ],
    ),
    "train-laws": Case(
        "train",
        ["--model.depth=0.3", "--trainer.precision=16-mixed", "--trainer.accelerator=cpu"],
        ["must be a whole number of at least 1, but is 1.8", "16-mixed needs a GPU; on a CPU choose bf16-mixed"],
    ),
    # what this machine cannot do; every GPU is hidden from these
    **{
        f"machine-{name}": Case(tool, argv, words, {"CUDA_VISIBLE_DEVICES": ""})
        for name, tool, argv, words in (
            ("plan", "sweep", [TABLE3, "--plan", "--set", "trainer.precision=16-mixed"], NO_GPU),
            ("sweep", "sweep", [TABLE3, "--set", "trainer.precision=16-mixed"], NO_GPU),
            ("retune", "sweep", [TABLE3, "--retune=optim.warmup", "--set", "trainer.precision=16-mixed"], NO_GPU),
            ("search", "sweep", ["HERE/search-precision.yaml", "--plan"], NO_GPU),
            ("train", "train", ["--trainer.precision=16-mixed", "--optim.max_steps=1"], NO_GPU),
            ("gpu", "train", ["--trainer.accelerator=gpu", "--optim.max_steps=1"], ["accelerator = gpu"]),
        )
    },
    "train-twice": Case("train", ["--model.h=4", "--model.h", "8"], ["command line: --model.h"]),
    "train-variant": Case("train", ["--variant=bad"], ["variant 'bad'", "not 'bad'"]),
    "train-valueless": Case("train", ["--model.h"], ["command line: --model.h"]),
    "train-positional": Case("train", ["model.h=4"], ["command line: model.h=4"]),
    "train-part": Case("train", ["--model.ffn=nosuch.Part"], ["model.ffn = nosuch.Part: no module nosuch"]),
    # the text
    "texts": Case("sweep", ["HERE/texts.yaml"], [word for _, words in TEXTS.values() for word in words]),
    "texts-absent": Case(
        "sweep", ["HERE/absent.yaml", "--plan"], [word for words in ABSENT.values() for word in words]
    ),
    **{
        f"train-text-{name}": Case("train", [f"--{key}={value}" for key, value in on(name).items()], TEXTS[name][1])
        for name in ("utf-8", "batch")
    },
    "train-hub": Case(
        "train",
        ["--data.hub=../../x", "--data.subset=..", "--data.revision=../../../../../../etc/hostname"],
        [
            "command line: data.hub = ../../x",
            "command line: data.subset = ..",
            "data.revision = ../../../../../../etc/hostname",
        ],
    ),
    "search-file": Case(
        "sweep",
        ["sweeps/search_size.yaml", "--runs=HERE/taken"],
        [
            "HERE/taken/sweeps/search-size@demo",
        ],
    ),
    "hub-offline": Case("sweep", [TABLE3, "--scale=multi30k"], NO_NETWORK),
    "hub-train": Case("train", ["--scale=multi30k"], NO_NETWORK, REFUSING),
    # the runs folder
    "runs-file": Case(
        "sweep", [TABLE3, "--runs=HERE/list.yaml"], ["'HERE/list.yaml' must be a folder; choose another"]
    ),
    "runs-below-a-file": Case("sweep", [TABLE3, "--runs=HERE/list.yaml/runs"], ["Not a directory"]),
    "runs-in-proc": Case("sweep", [TABLE3, "--runs=/proc/runs"], ["--runs /proc/runs"]),
    "runs-none-to-report": Case("report", [TABLE3, "--runs=HERE/none"], ["--runs HERE/none"]),
    "trials-file": Case("sweep", [TABLE3, "--runs=HERE"], ["File exists (HERE/trials); make room, or choose another"]),
}


def refused(completed, *words):
    """What every mistake gets: it is named, with the remedy, and nothing else."""
    printed = f"stdout: {completed.stdout}\nstderr: {completed.stderr}"
    assert completed.returncode == 2, printed
    assert all(line.startswith("error: ") for line in completed.stderr.splitlines()), printed
    assert "Traceback" not in completed.stdout and "at a time" not in completed.stdout, printed
    for word in words:
        assert word in completed.stderr, f"lacks: {word}\n{printed}"


def contents(runs):
    """Every file of the trials and the tables, and when it was written."""
    kept = [path for name in ("trials", "sweeps") for path in (runs / name).rglob("*")]
    return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in kept}


def earlier(runs):
    """A runs folder with an earlier result in it."""
    trial, table = runs / "trials" / "demo-h-4-s1-0123456789ab", runs / "sweeps" / "smoke@demo"
    for folder in (trial, table):
        folder.mkdir(parents=True)
    (trial / "result.json").write_text(json.dumps(a_result()))
    (trial / "status.json").write_text('{"state": "done"}')
    (table / "table.md").write_text("| an earlier table |\n")
    return runs


def sweep_file(path, parameters):
    printed = {key: {"values" if isinstance(value, list) else "value": value} for key, value in parameters.items()}
    content = {"program": "p.py", "name": path.stem, "method": "grid", "parameters": printed}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def corpus(folder):
    """A small text: two languages, three splits."""
    folder.mkdir()
    for split, size in (("train", 40), ("val", 4), ("test", 4)):
        for language, words in (("en", "the low the lower the lowest"), ("de", "das tief das tiefer das tiefst")):
            (folder / f"{split}.{language}").write_text("".join(f"{words} {'abcdefgh'[i % 8]}\n" for i in range(size)))
    return folder


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The folder with all that is wrong."""
    here = tmp_path_factory.mktemp("wrong")
    for name, (content, _) in FILES.items():
        (here / f"{name}.yaml").write_bytes(content)
    for name, (parameters, _) in SWEEPS.items():
        sweep_file(here / f"{name}.yaml", parameters)
    choices = {"parameters": {"trainer.precision": {"values": ["32-true", "16-mixed"]}}, "run_cap": 2}
    search = {"method": "random", "metric": {"name": "val/ppl"}} | choices
    (here / "search-precision.yaml").write_text(yaml.safe_dump(search))
    (here / "keys-of-none.yaml").write_text("model.hh: 4\n")
    (here / "trials").write_text("a file")
    (here / "taken").mkdir()
    for name in ("complexity", "sweeps"):
        (here / "taken" / name).write_text("a file")
    for name in (*TEXTS, "val", "language"):
        corpus(here / name)
    (here / "length" / "train.de").write_text("eins\nzwei\n")
    for language in ("en", "de"):
        (here / "empty" / f"val.{language}").write_text("")
        (here / "val" / f"val.{language}").unlink()
    (here / "utf-8" / "test.de").write_bytes(b"gut\nsch\xf6n\n")
    (here / "language" / "train.de").unlink()
    rows = [" ".join(f"{key}={value}" for key, value in on(name).items()) for name in TEXTS]
    sweep_file(here / "texts.yaml", {"variant": [row.replace("HERE", str(here)) for row in rows]})
    sweep_file(here / "absent.yaml", {"data.path": [str(here / name) for name in ABSENT]})
    return here


@pytest.fixture(scope="module")
def completed(here, tmp_path_factory):
    """What every case's command says, four at a time: starting them is what takes the time."""

    def run(name):
        case, began = CASES[name], time.monotonic()
        argv = [str(word).replace("HERE", str(here)) for word in case.argv]
        runs = earlier(tmp_path_factory.getbasetemp() / f"runs-{name}")
        before = contents(runs)
        if not any(word.startswith("--runs") for word in argv):
            argv = [f"--runs={runs}", *argv]
        environment = {"TRANSFORMER_PL_DATA": str(here), "HF_HOME": str(here / "cache")} | case.environment
        printed = command(case.tool, *argv, **environment)
        return printed, time.monotonic() - began, contents(runs) == before and not list((runs / "data").glob(".*"))

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(CASES, pool.map(run, CASES), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_reported_with_its_remedy_and_starts_nothing(completed, here, name):
    printed, seconds, untouched = completed[name]
    refused(printed, *(word.replace("HERE", str(here)) for word in CASES[name].words))
    assert untouched, "a trial, a table or unfinished work is left behind"
    if name.startswith("hub"):  # on a busy machine everything is slow
        slowest = max(others for other, (_, others, _) in completed.items() if not other.startswith("hub"))
        assert seconds < slowest + 15, "it must be told at once, not when the library gives up after 24 s"
    assert printed.stdout == "" or CASES[name].tool in ("sweep", "train")  # these say what they are doing


@contextmanager
def disk(folder, size):
    """A small disk of its own at a folder."""
    if os.geteuid() or not shutil.which("mount"):
        pytest.skip("only root can mount a small disk")
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if why := subprocess.run(words, capture_output=True, text=True).stderr:
        pytest.skip(f"no small disk can be mounted here: {why.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def remount(folder, options):
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


def trials(path, runs):
    return [one.trial for one in plan_trials(read_sweep(path), runs)]


def test_a_disk_that_is_full_or_read_only(tmp_path):
    with disk(tmp_path, "3m"):
        runs = earlier(tmp_path / "runs")
        first = trials(Path(TABLE3), runs)[0]  # was in training when the disk came to be read-only
        with first.lock():
            first.set_status("running")
        (tmp_path / "ballast").write_bytes(bytes(2 << 20))
        before = contents(runs)
        law = f"--runs {runs}: must be a folder that can be written, with room on its disk, but: "
        remedy = "make room, or choose another folder with --runs"
        for tool in (["sweep", TABLE3], ["train"]):
            refused(command(*tool, "--runs", runs), law, "No space left on device", remedy)
        remount(tmp_path, "ro")
        refused(command("sweep", TABLE3, "--runs", runs), law, "Read-only file system", remedy)
        assert contents(runs) == before
        for completed in (
            command("sweep", TABLE3, "--plan", "--runs", runs),
            command("report", TABLE3, "--runs", runs),
        ):
            assert completed.returncode == 0 and not completed.stderr, "to read is enough for these"
