"""The commands as functions: what they return is what the commands print and leave on disk; their page and notebook."""

import csv
import json
import math
import re
import shutil
from pathlib import Path

import forked
import pytest
import torch
from helpers import ROOT, SEARCHES, little_text
from tiny_trials import TINY

from transformer_pl import api
from transformer_pl.api import load_trial, results, sweep, train
from transformer_pl.runtime.errors import InputError

BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "transformer_pl" / "API.md").read_text("utf-8"), re.M | re.S)
CELLS = json.loads((ROOT / "tests" / "notebook.ipynb").read_text("utf-8"))["cells"]


@pytest.fixture(autouse=True)
def in_a_fork(monkeypatch):
    """In place of a new interpreter, which takes seconds, and is that of tests/runtime/test_calls.py."""
    monkeypatch.setattr(api, "call_in_new_interpreter", forked.call)


@pytest.fixture(scope="module")
def runs(smoke, tmp_path_factory):
    """A copy of the runs of sweeps/smoke.yaml, to which tests may add."""
    return shutil.copytree(smoke[0], tmp_path_factory.mktemp("api") / "runs", ignore=lambda *_: ["wandb"])


@pytest.fixture(scope="module")
def trial(runs):
    return load_trial("smoke/h=4/s1", runs=runs)


@pytest.fixture
def workplace(runs, monkeypatch):
    monkeypatch.chdir(runs.parent)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    return runs.parent


def test_a_trial_is_its_files(trial):
    assert trial.result.metrics == json.loads((trial.folder / "result.json").read_text())["metrics"]
    assert trial.metrics() == [json.loads(line) for line in (trial.folder / "metrics.jsonl").read_text().splitlines()]
    assert trial.config.model.h == 4 and trial.sizes.vocab_size == len(trial.tokenizer)
    assert sum(p.numel() for p in trial.model.parameters()) == trial.result.params and not trial.model.training
    assert trial.translate([]) == [] and trial.translate(" ") == ""
    sentences = ["a man sees a dog .", "the dog sleeps ."]
    assert [trial.translate(one, beam=2) for one in sentences] == trial.translate(iter(sentences), beam=2)


def test_the_scores_of_a_set_are_the_trial_s_until_its_model_is_changed(runs):
    trial = load_trial("smoke/h=4/s1", runs=runs)
    for split in ("val", "test"):
        scores = trial.score(split)
        assert {f"{split}/{name}": value for name, value in scores.metrics.items()} == pytest.approx(
            {name: value for name, value in trial.result.metrics.items() if name.startswith(split)}, rel=1e-5
        )
        lines = (trial.folder / f"hyp.{split}.txt").read_text().split("\n")
        assert scores.hypotheses == lines[:-1] and len(scores.sentences) == 500
    trial.model.embedding.weight.data[:] = 0
    assert trial.score("val").metrics["loss"] == pytest.approx(math.log(trial.sizes.vocab_size))
    with pytest.raises(InputError, match="split = train"):
        trial.score("train")


def test_attention_is_of_the_tokens_that_are_named(trial):
    source, target = "a man sees a dog .", "ein mann sieht einen hund ."
    maps = trial.attention(source, target)
    read, written = len(trial.tokens(source)[1:]), len(trial.tokens(target)[:-1])
    layers, heads = trial.sizes.N, trial.sizes.h
    shapes = {"encoder": (read, read), "decoder": (written, written), "cross": (written, read)}
    assert {site: tuple(weights.shape) for site, weights in maps.items()} == {
        site: (layers, heads, *shape) for site, shape in shapes.items()
    }
    for weights in maps.values():
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert not maps["decoder"].triu(1).any()


def test_results_have_a_record_of_each_trial_which_the_command_prints_too(runs):
    """Also of a trial that is not trained, with another seed."""
    records = results("smoke", runs=runs, seeds=[1, 3])
    assert [(one["row"], one["seed"], one["state"]) for one in records[:4]] == [
        *(("base", seed, state) for seed, state in ((1, "done"), (3, "new"))),
        *(("h=4", seed, state) for seed, state in ((1, "done"), (3, "new"))),
    ]
    assert [one["model.h"] for one in records] == [8, 8, 4, 4, 1, 1, 8, 8] and "model.width" not in records[0]
    for one in records[::2]:
        on_disk = load_trial(one["id"], runs=runs).result
        measured = on_disk.model_dump(include={"params", "steps", "flops", "tokens_per_s", "of_peak", "wall_s"})
        assert one.items() >= (on_disk.metrics | measured).items()
    assert all(one["val/bleu"] is None for one in records[1::2])
    words = ("report", "smoke", "--runs", runs, "--seeds", "1,3", "--trials", "--format")
    lines = list(csv.DictReader(forked.command(*words, "csv").stdout.splitlines()))
    assert lines == [{key: "" if v is None else str(v) for key, v in one.items()} for one in records]
    assert json.loads(forked.command(*words, "json").stdout)["rows"] == records


@pytest.mark.parametrize(
    ("file", "options", "named"),
    [
        ("smoke", {"seeds": "one"}, "--seeds"),
        ("smoke", {"heads": 4}, "--heads"),
        ("smoke", {"set": {"model.heads": 4}}, r"model\.heads"),
        ("no-such-sweep", {}, "no-such-sweep"),
        (SEARCHES[0], {}, "none was drawn"),
    ],
)
def test_wrong_options_are_named(runs, file, options, named):
    with pytest.raises(InputError, match=named):
        results(file, runs=runs, **options)


def test_a_value_that_is_no_choice_is_named(tmp_path):
    with pytest.raises(InputError, match=r"--launcher = cloud: .*slurm"):
        sweep("smoke", runs=tmp_path, launcher="cloud")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("options", [{}, {"retune": ["optim.warmup"], "budget": 2}])
def test_a_plan_is_of_the_trials_that_the_sweep_would_train(tmp_path, options):
    runs = tmp_path / "runs"
    records = sweep("table3_A", runs=runs, plan=True, seeds=[1, 2], **options)
    assert {one["row"].split()[0] for one in records} == {"base", "h=1", "h=4", "h=16", "h=32"} and len(records) == 10
    assert all(one["state"] == "new" and one["params"] is None for one in records) and not runs.exists()


def test_a_plan_of_a_search_that_has_drawn_nothing_has_no_trials(tmp_path):
    assert sweep(SEARCHES[0], runs=tmp_path / "runs", plan=True) == []


def test_a_trial_is_trained_once(tmp_path, monkeypatch, capfd):
    """By its keys; then by its config, which trains nothing. What cannot be trained is named."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    little_text(tmp_path / "text")
    threads = torch.get_num_threads()
    keys = TINY | {"data.path": tmp_path / "text", "model.p_drop": 0.3, "seed": 5}
    trial = train(keys, runs=tmp_path / "runs")
    assert trial.config.model.p_drop == 0.3 and trial.result.seed == 5
    as_a_row = {key: value for key, value in keys.items() if key != "model.p_drop"} | {"variant": "model.p_drop=0.3"}
    for again in (trial.config, as_a_row):
        assert train(again, runs=tmp_path / "runs").result == trial.result
        assert "finished already" in capfd.readouterr().out and torch.get_num_threads() == threads
    for wrong in ({"model.heads": 4}, {"model.h": "four"}, {"variant": "model.h=four"}):
        with pytest.raises(InputError, match=r"model\.h"):
            train(keys | wrong, runs=tmp_path / "runs")
    with pytest.raises(InputError, match=r"trainer\."):  # which the command finds
        train(keys | {"trainer.devices": 99, "trainer.accelerator": "cuda"}, runs=tmp_path / "runs")
    assert len(list((tmp_path / "runs" / "trials").iterdir())) == 1


EDITED = """
from transformer_pl.model import FeedForward
from strange import factor


class Edited(FeedForward):
    def __init__(self, config, site, scale: float = 1.0):
        super().__init__(config, site)
        self.factor = factor(scale)

    def forward(self, x):
        return super().forward(x) * self.factor
"""
FACTOR = "def factor(scale):\n    return scale\n"


def test_an_edited_component_is_the_edited_one(module, tmp_path, monkeypatch):
    """In the score as in the result, whichever file was edited; a new option is one. What is loaded stays as it was."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    little_text(tmp_path / "text")
    keys = TINY | {"data.path": tmp_path / "text", "model.ffn": "stranger.Edited"}
    edits = [
        ({"stranger": EDITED, "strange": FACTOR}, {}, 1.0),
        ({"strange": FACTOR.replace("scale\n", "-3 * scale\n")}, {}, -3.0),
        ({"stranger": EDITED.replace("scale: float = 1.0", "scale=1.0, more=0.0").replace("(scale)", "(scale) + more")},
         {"model.ffn.more": 2.0}, -1.0),
    ]  # fmt: skip
    trials = []
    for files, options, factor in edits:
        for name, text in files.items():
            module(text, name)
        trials.append(train(keys | options, runs=tmp_path / "runs"))
        assert trials[-1].model.encoder[0].ffn.factor == factor
        losses = [trial.score("val").metrics["loss"] for trial in trials]
        assert losses == pytest.approx([trial.result.metrics["val/loss"] for trial in trials], rel=1e-5)
    assert train(keys | options, runs=tmp_path / "runs").result == trials[-1].result  # nothing is trained
    with pytest.raises(InputError, match=r"model\.ffn = stranger\.Edited: must be the code"):
        _ = load_trial(trials[0].folder).model


def test_the_page_works(workplace):
    names: dict = {}
    for block in BLOCKS:
        exec(block, names)
    assert names["again"].config.seed == 2 and len(names["records"]) == 4
    assert names["weights"]["cross"].ndim == 4


@pytest.mark.slow  # it uses the functions that the page does
def test_the_notebook_works(workplace):
    names: dict = {}
    for cell in CELLS:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert len(names["table"]) == 4 and len(names["translations"]) == 2
    assert names["other"].config.seed == 2 and names["other"].config.model.h == 4
    assert Path("runs").resolve().samefile(workplace / "runs")
