"""Every key of the configuration is bound: to change it changes what it is there for. So are options of the commands.

Each is tried through the command that reads it, and its test fails where it is read no more. A key without such a test
fails the last test here. Trials are tiny, and trained in this process where they can be.
"""

import csv
import io
import json
import os
import re
import shutil
import socket
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import optuna
import pytest
import tiny_trials
import torch
import watching_component
import yaml
from forked import running, start
from helpers import ROOT, command, little_text, wait_for
from torch import nn

from transformer_pl import check, complexity, report, sweep, train, translate
from transformer_pl.command_line import HelpShown
from transformer_pl.config import KEYS
from transformer_pl.data.prepared import Prepared
from transformer_pl.evaluation.evaluate import trained_model
from transformer_pl.experiments.plan import plan_trials
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.levels import Level, resolve
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.yaml_file import read_yaml
from transformer_pl.search import plots as search_plots
from transformer_pl.search import space as searches
from transformer_pl.training.module import TransformerModule
from transformer_pl.trials.trial import Trial

TESTS = {}  # by key or option: the test that fails where it is disconnected


def binds(*names: str) -> Callable[[Callable], Callable]:
    """A test of these keys, and of these options, each with its command before it."""

    def note(test: Callable) -> Callable:
        for name in names:
            assert name not in TESTS, f"{name} has a test already: {TESTS[name].__name__}"
            TESTS[name] = test
        return test

    return note


@dataclass(frozen=True, eq=False)
class Change:
    """A key, and another value than it has in `under`: over the tiny sizes of `trials`."""

    key: str
    value: Any
    under: dict[str, Any] = field(default_factory=dict)

    @property
    def keys(self) -> dict[str, Any]:
        return self.under | {self.key: self.value}


def each(changes: list[Change]) -> Callable[[Callable], Callable]:
    """A test of several changes, which binds their keys."""

    def parametrized(test: Callable) -> Callable:
        keys = [change.key for change in changes]
        return binds(*keys)(pytest.mark.parametrize("change", changes, ids=keys)(test))

    return parametrized


class Made(NamedTuple):
    """A finished trial."""

    trial: Trial
    notes: list[dict[str, Any]]  # of `watch`, where its component looked on

    def weights(self) -> dict[str, torch.Tensor]:
        return torch.load(self.trial.folder / "weights.pt")

    def steps(self, metric: str) -> list[int]:
        """At which it was logged in the course of training."""
        return [line["step"] for line in self.trial.metrics() if metric in line and "val/bleu" not in line]

    def batches(self, training: bool) -> int:
        """How many went through the encoder, the few among them with which the component was tried out."""
        return sum(note["site"] == "encoder" and note["training"] == training for note in self.notes)


def equal(weights: dict[str, torch.Tensor], others: dict[str, torch.Tensor], tolerance: float = 0.0) -> bool:
    return weights.keys() == others.keys() and all(
        value.shape == others[name].shape and torch.allclose(value, others[name], rtol=0, atol=tolerance)
        for name, value in weights.items()
    )


def write_text(folder: Path, sentences: int) -> Path:
    """The little text, with a third language, and a split that is none of the usual.

    In that, the first pair occurs twice, and the last one has a single English word for many in the other languages.
    """
    folder.mkdir(parents=True)
    little_text(folder, sentences, 8, 6)
    for split in ("train", "val", "test"):
        (folder / f"{split}.fr").write_text((folder / f"{split}.de").read_text().upper())
    for language in ("en", "de", "fr"):
        lines = (folder / f"train.{language}").read_text().splitlines()[:20]
        lines = [f"{line} {line}" for line in lines]
        lines += [lines[0], "bu" if language == "en" else lines[0]]
        (folder / f"other.{language}").write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Texts: `text` and `text2`; and copies of hub's datasets, `one` with a subset and `two`."""
    folder = tmp_path_factory.mktemp("bindings")
    for number, name in enumerate(("text", "text2", "copies/one", "copies/one/part", "copies/two")):
        write_text(folder / name, 60 + number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRANSFORMER_PL_DATA", str(folder / "copies"))
        patch.setenv(watching_component.FOLDER, str(folder))
        yield folder


@pytest.fixture(scope="module")
def make(folder):
    """Train a trial with these keys, each set of keys once."""
    made: dict[str, Made] = {}

    def make(keys: dict[str, Any]) -> Made:
        name = repr(sorted(keys.items()))
        if name not in made:
            place = folder / f"trial{len(made)}"
            place.mkdir()
            os.environ[watching_component.FOLDER] = str(place)
            keys = {"data.path": folder / "text"} | keys
            keys = {key: str(value).replace("FOLDER", str(folder)) for key, value in keys.items()}
            code, trial = tiny_trials.train(place / "runs", keys)
            assert code == 0
            made[name] = Made(trial, [note for process in watching_component.notes(place) for note in process])
        return made[name]

    return make


# ---------------------------------------------------------------------------------------------------------------------
# Keys: another model, or another training of it

HUB = {"data.path": None, "data.hub": "some/one"}


@each(
    [
        Change("model.N", 3),
        Change("model.d_model", 1024),
        Change("model.d_ff", 1024),
        Change("model.h", 4),
        Change("model.d_k", 96),
        Change("model.d_v", 96),
        Change("model.p_drop", 0.3),
        Change("model.width", "1/16"),
        Change("model.depth", "1/6"),
        Change("model.attention", "ablations.unscaled_attention.UnscaledAttention"),
        Change("model.ffn", "ablations.gated_ffn.GatedFeedForward"),
        Change("model.position", "ablations.learned_position.LearnedPosition"),
        Change("model.residual", "ablations.pre_norm.PreNormResidual"),
        Change("model.self_attention", "ablations.convolutional_layer.ConvolutionalLayer"),
        Change("model.embedding", "ablations.untied_embedding.UntiedEmbedding"),
        Change("optim.max_steps", 5),
        Change("optim.duration", 2),
        Change("optim.match", "flops", {"model.d_ff": 8192}),
        Change("optim.warmup", 8),
        Change("optim.lr_scale", 0.5),
        Change("optim.eps_ls", 0.3),
        Change("optim.beta1", 0.5),
        Change("optim.beta2", 0.5),
        Change("optim.eps", 1e-3),
        Change("data.path", "FOLDER/text2"),
        Change("data.hub", "some/two", HUB),
        Change("data.subset", "part", HUB),
        Change("data.source", "fr"),
        Change("data.target", "fr"),
        Change("data.train", "other"),
        Change("data.train_pairs", 30),
        Change("data.most_words", 4),
        Change("data.most_ratio", 1.5, {"data.train": "other"}),
        Change("data.unique", True, {"data.train": "other"}),
        Change("data.vocab_size", 310),
        Change("data.batch_tokens", 96),
        Change("data.max_length", 9),
        Change("decode.average", 2),
        Change("trainer.precision", "bf16-mixed"),
        Change("seed", 2),
    ]
)
def test_a_key_of_the_training_changes_the_weights(make, change):
    assert not equal(make(change.keys).weights(), make(change.under).weights())


def test_the_seed_draws_the_weights_and_the_order_of_the_sentences(make):
    """Each by itself: the same weights would be trained on other sentences, or others on the same."""
    firsts = [make(watching_component.WATCHED | {"seed": seed}).notes[0] for seed in (1, 2)]
    assert all(firsts[0][what] != firsts[1][what] for what in ("weight", "ids", "mask"))


def test_dropout_is_wherever_section_5_4_has_it():
    """After every sub-layer, and where embedding and position have been added."""
    module = TransformerModule(resolve([Level("test", tiny_trials.TINY | {"model.p_drop": 0.3})]), 300)
    rates = {name: part.p for name, part in module.model.named_modules() if isinstance(part, nn.Dropout)}
    assert set(rates.values()) == {0.3} and "dropout" in rates and len(rates) == 1 + 2 * (2 + 3)


# ---------------------------------------------------------------------------------------------------------------------
# Keys: another evaluation of the same weights

UNTRAINED = {"optim.lr_scale": 1e-3}  # it ends no sentence by itself, and is sure of no piece


@each(
    [
        Change("decode.beam", 1, UNTRAINED),
        Change("decode.alpha", 3),
        Change("decode.extra", 0, UNTRAINED),
        Change("data.val", "other"),
        Change("data.test", "other"),
    ]
)
def test_a_key_of_the_evaluation_changes_the_outputs_alone(make, change):
    changed, base = make(change.keys), make(change.under)
    assert equal(changed.weights(), base.weights())
    for split in ("val", "test"):
        bound = change.key.startswith("decode.") or change.key == f"data.{split}"
        assert (changed.trial.hypotheses(split) != base.trial.hypotheses(split)) == bound


# ---------------------------------------------------------------------------------------------------------------------
# Keys: where and how a trial runs, which changes no result

SURE = watching_component.WATCHED | {"model.p_drop": 0.0}
ALONE = {"trainer.eval_tokens": 1}  # every sentence is evaluated in a batch of its own
RUNNING = {  # what shows it, of the trial with the change and of the one without; and what that is
    Change("trainer.accumulate", 2): (lambda made, base: made.batches(True) - base.batches(True), 4),
    Change("trainer.threads", 2): (lambda made, base: [one.notes[0]["threads"] for one in (made, base)], [2, 1]),
    Change("trainer.log_every", 2): (lambda made, base: made.steps("train/loss"), [2, 4]),
    Change("trainer.val_every", 1): (lambda made, base: made.steps("val/ppl"), [1, 2, 3, 4]),
    # two validations of 8 sentences and the likelihoods of 8 and 6, each of which was one batch; then the outputs of
    # all 14, which were one batch, too
    Change("trainer.eval_tokens", 1): (lambda made, base: made.batches(False) - base.batches(False), 3 * 7 + 5 + 13),
    Change("trainer.tokenised_bleu", True): (
        lambda made, base: ["test/bleu_tokenised" in one.trial.result()["metrics"] for one in (made, base)],
        [True, False],
    ),
    Change("trainer.bleu_sample", 3, ALONE): (lambda made, base: made.batches(False) - base.batches(False), 2 * 3),
}


@each(list(RUNNING))
def test_a_key_of_the_running_changes_no_result(make, change):
    made, base = make(SURE | change.keys), make(SURE | change.under)
    show, expected = RUNNING[change]
    assert show(made, base) == expected
    assert equal(made.weights(), base.weights(), tolerance=1e-3)
    assert made.trial.hypotheses("test") == base.trial.hypotheses("test")


@binds("trainer.checkpoint_minutes")
@pytest.mark.parametrize("minutes", [0, 100])
def test_minutes_between_checkpoints_are_kept(folder, tmp_path, minutes):
    keys = tiny_trials.TINY | {"data.path": folder / "text", "trainer.checkpoint_minutes": minutes}
    keys |= {"optim.max_steps": 100_000, "trainer.val_every": 100_000}
    words = [f"--runs={tmp_path / 'runs'}", *(f"--{key}={value}" for key, value in keys.items())]
    with (tmp_path / "log").open("w") as log, running("train", *words, output=log, WANDB_MODE="disabled") as process:
        metrics = "runs/trials/*/metrics.jsonl"
        wait_for(lambda: any(path.read_text().count("\n") > 3 for path in tmp_path.glob(metrics)))
        process.kill()
    assert bool(list(tmp_path.glob("runs/trials/*/checkpoints/*"))) == (minutes == 0)


@binds("trainer.accelerator")
def test_the_accelerator_is_where_a_trial_is_trained_and_evaluated(make, folder, monkeypatch):
    """Where there is no GPU, one that is asked for is missed; in evaluation, where there seems to be one."""
    made, gpu = make(watching_component.WATCHED | {"trainer.accelerator": "cpu"}), torch.cuda.is_available()
    assert {note["device"] for note in made.notes} == {"cpu"}
    keys = watching_component.WATCHED | {"data.path": folder / "text", "trainer.accelerator": "gpu"}
    monkeypatch.setenv(watching_component.FOLDER, str(folder))
    with nullcontext() if gpu else pytest.raises(InputError, match=r"trainer\.accelerator = gpu"):
        assert tiny_trials.train(folder / "gpu" / "runs", keys)[0] == 0
    prepared = Prepared(made.trial.folder.parents[1] / "data" / made.trial.data())
    config = resolve(
        [Level("result", {key: value for key, value in made.trial.result()["config"].items() if key in KEYS})]
    )
    trainers = {name: config.trainer.model_copy(update={"accelerator": name}) for name in ("cpu", "auto")}
    on_cpu, on_gpu = (config.model_copy(update={"trainer": trainers[name]}) for name in ("cpu", "auto"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with trained_model(on_cpu, prepared, made.trial) as model:
        assert next(model.parameters()).device.type == "cpu"
    no_gpu = nullcontext() if gpu else pytest.raises((AssertionError, RuntimeError))
    with no_gpu, trained_model(on_gpu, prepared, made.trial) as model:
        assert next(model.parameters()).device.type == "cuda"


@binds("data.val_count", "data.test_count")
@pytest.mark.parametrize("split", ["val", "test"])
def test_an_evaluation_set_of_another_size_is_refused(folder, tmp_path, split):
    with pytest.raises(InputError, match=rf"data\.{split}_count = 7"):
        tiny_trials.train(tmp_path / "runs", {"data.path": folder / "text", f"data.{split}_count": 7})


@binds("data.task")
def test_a_task_says_what_is_read_and_what_is_scored(make):
    trial = make({"data.task": "copying_task.Copying", "data.path": None, "data.vocab_size": 275}).trial
    assert "val/right" in trial.result()["metrics"] and "val/bleu" not in trial.result()["metrics"]
    assert len(trial.hypotheses("val")) == 60 and " task=Copying " in trial.result()["name"]


@binds("data.name")
def test_the_name_of_a_text_stands_in_the_names_of_its_trials(make):
    """It is no part of the identity; without it the last part of the path stands there."""
    named, unnamed = (make(keys).trial for keys in ({"data.name": "news"}, {}))
    assert " data=news " in named.result()["name"] and " data=text " in unnamed.result()["name"]
    assert named.folder.name[-12:] == unnamed.folder.name[-12:]


@binds("trainer.num_nodes", "trainer.strategy")
def test_processes_of_two_nodes_share_a_model_and_draw_their_own_dropout(tmp_path):
    """As torchrun starts them: one on each of two machines, which here are the same."""
    (tmp_path / "seen").mkdir()
    keys = tiny_trials.TINY | watching_component.WATCHED | {"data.path": write_text(tmp_path / "text", 60)}
    keys |= {"trainer.num_nodes": 2, "trainer.strategy": "fsdp2", "trainer.accelerator": "cpu"}
    words = [f"--runs={tmp_path / 'runs'}"]
    words += [f"--{key}={value}" for key, value in keys.items()]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    shared |= {
        watching_component.FOLDER: str(tmp_path / "seen"),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
        "WANDB_MODE": "disabled",
    }
    nodes = []
    try:
        for node in "01":
            own = {"RANK": node, "GROUP_RANK": node, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            with (tmp_path / f"{node}.txt").open("w") as log:
                nodes.append(start("train", *words, output=log, **shared, **own))
        codes = [node.wait(120) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert codes == [0, 0], "".join(path.read_text() for path in tmp_path.glob("?.txt"))
    processes = watching_component.notes(tmp_path / "seen")
    first, second = (next(note for note in notes if note["world"] > 1) for notes in processes)  # after the dry run
    assert first["world"] == second["world"] == 2 and "FSDPTransformer" in first["within"]
    assert first["weight"] == second["weight"] and first["ids"] != second["ids"] and first["mask"] != second["mask"]


OTHER_TESTS = {  # keys that other files test
    "trainer.compile": "training/test_compiling.py",
    "trainer.devices": "training/test_distributed.py",
    "data.revision": "data/test_hub.py",
}


# ---------------------------------------------------------------------------------------------------------------------
# Options: of `train`


@binds("train --scale", "train --variant", "train --runs", "train --rerun")
def test_the_options_of_train(folder, tmp_path, monkeypatch):
    """A scale's keys, under those of a variant; where the results lie; and that what is finished is trained again."""
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("".join(f"{key}: {value}\n" for key, value in tiny_trials.TINY.items()))
    words = [
        "--scale=mine.yaml",
        "--variant=model.h=4 trainer.log_every=4",
        "--runs=here",
        f"--data.path={folder / 'text'}",
    ]
    with tiny_trials.in_a_command():
        assert train.main(words) == 0
        (path,) = Path("here/trials").iterdir()
        metrics = [(path / "metrics.jsonl").read_text()]
        for again in ([], ["--rerun"]):
            assert train.main([*words, *again]) == 0
            metrics.append((path / "metrics.jsonl").read_text())
    made = Made(Trial(path), [])
    assert made.trial.result()["config"].items() >= {"model.width": 1 / 32, "optim.max_steps": 4, "model.h": 4}.items()
    assert made.steps("train/loss") == [4] and metrics[0] == metrics[1] != metrics[2]


# ---------------------------------------------------------------------------------------------------------------------
# Options: of `sweep` and `report`, on two rows with two seeds, and on a search, all of whose trials are finished


def write_sweep(path: Path, text: Path, **more: Any) -> Path:
    """A sweep file at the tiny sizes; what it has more than a grid of its own goes before that."""
    fixed = {
        key: {"value": value}
        for key, value in (tiny_trials.TINY | {"data.path": str(text), "decode.alpha": 3.0}).items()
    }
    rows = {"variant": {"values": ["base", "model.h=4"]}, "seed": {"values": [1, 2]}}
    said = {"name": path.stem, "method": "grid"} | more
    path.write_text(yaml.safe_dump(said | {"parameters": fixed | said.get("parameters", rows)}, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def rows(folder):
    """A sweep file, and the runs folder in which all of its trials are finished."""
    path, runs = write_sweep(folder / "rows.yaml", folder / "text"), folder / "rows"
    found = read_sweep(path)
    with tiny_trials.in_a_command():
        for one in plan_trials(found, runs):
            assert train.main(sweep.argv(found, one, runs, rerun=False)) == 0
    return path, runs


@pytest.fixture
def tell(monkeypatch, capsys):
    """Run a command in this process: its exit code, and what it says. Without the page, which takes seconds."""
    monkeypatch.setattr(sweep, "write_page", lambda *of_a_grid: {})
    monkeypatch.setattr(search_plots, "write_search_page", lambda *of_a_search: {})
    monkeypatch.setenv("COLUMNS", "200")

    def tell(main: Callable[[list[str]], int], *words: Any) -> tuple[int, str]:
        capsys.readouterr()
        with tiny_trials.in_a_command():
            code = main([str(word) for word in words])
        return code, capsys.readouterr().out

    return tell


ELSEWHERE = {  # options that say which trials are meant: here all are finished, there none is
    "--scale": lambda folder: ["--scale", folder / "other.yaml"],
    "--seeds": lambda folder: ["--seeds", "3,4"],
    "--set": lambda folder: ["--set", "optim.max_steps=3"],
    "--runs": lambda folder: ["--runs", folder / "empty"],
}


@binds(*(f"{command} {option}" for command in ("sweep", "report") for option in ("FILE", *ELSEWHERE)))
@pytest.mark.parametrize("option", ELSEWHERE)
def test_options_that_say_which_trials_are_meant(rows, folder, tell, option):
    path, runs = rows
    (folder / "other.yaml").write_text("decode.average: 2\n")  # which the file leaves to its scale
    (folder / "empty").mkdir(exist_ok=True)
    there, elsewhere = [path, "--runs", runs], [path, "--runs", runs, *ELSEWHERE[option](folder)]
    if option == "--runs":
        elsewhere = [path, *ELSEWHERE[option](folder)]
    assert "4 trials, 0 to train" in tell(sweep.main, *there, "--plan")[1]
    assert "4 trials, 4 to train" in tell(sweep.main, *elsewhere, "--plan")[1]
    cells = [
        [row["done"] for row in json.loads(tell(report.main, *words, "--format", "json")[1])["rows"]]
        for words in (there, elsewhere)
    ]
    assert cells == [[2, 2], [0, 0]]


@pytest.mark.slow  # a process for each row, each with its imports
@binds("sweep --measure")
def test_a_plan_that_measures_tells_the_time_and_leaves_the_text_alone(rows, tmp_path, tell):
    words = [rows[0], "--runs", tmp_path / "runs", "--set", "optim.max_steps=60"]
    assert "unknown" in tell(sweep.main, *words, "--plan")[1]
    code, said = tell(sweep.main, *words, "--plan", "--measure")
    assert code == 0 and said.count("measuring ") == 2 and "unknown" not in said
    assert not list((tmp_path / "runs").glob("trials/*"))
    with pytest.raises(InputError, match=r"--measure"):
        sweep.main([str(word) for word in [*words, "--measure"]])


@binds("sweep --plan", "sweep --rerun")
def test_what_is_finished_is_trained_again_where_that_is_asked_for(rows, tell):
    for words, number in (([], 0), (["--rerun"], 4)):
        code, said = tell(sweep.main, rows[0], "--runs", rows[1], "--plan", *words)
        assert code == 0 and f"4 trials, {number} to train" in said


@binds("sweep --retune", "sweep --budget", "report --retune", "report --budget")
def test_every_row_is_tried_at_so_many_points(rows, tell):
    """Two rows, with one seed."""
    path, runs = rows
    for budget in (2, 3):
        words = [path, "--runs", runs, "--retune", "optim.warmup", "--budget", budget]
        assert f"{2 * budget} trials, {2 * budget} to train" in tell(sweep.main, *words, "--plan")[1]
        with pytest.raises(InputError, match=f"--retune.* {2 * budget} "):
            tell(report.main, *words)
    for main in (sweep.main, report.main):
        with pytest.raises(InputError, match="--budget"):
            tell(main, path, "--runs", runs, "--budget", 3)


@binds("sweep --schema")
def test_the_schema_of_either_kind_of_file_is_printed(tell):
    for kind, keys in (("sweep", {"method", "parameters"}), ("scale", {"model.width", "optim.max_steps"})):
        code, printed = tell(sweep.main, "--schema", kind)
        assert code == 0 and keys <= json.loads(printed)["properties"].keys()


@binds("sweep --list", "sweep --clean")
def test_a_runs_folder_is_listed_and_cleaned(rows, tmp_path, tell, monkeypatch):
    runs = shutil.copytree(rows[1], tmp_path / "runs")
    waste, *others = sorted((runs / "trials").iterdir())
    (waste / "result.json").write_text("{")
    code, said = tell(sweep.main, "--list", "--runs", runs)
    assert code == 0 and all(folder.name in said for folder in (waste, *others))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    code, said = tell(sweep.main, "--clean", "--runs", runs)
    assert code == 0 and "removed 1" in said and sorted((runs / "trials").iterdir()) == others


FORMATS = {
    "terminal": lambda said, folder: said.startswith(" ") and " params " in said,
    "md": lambda said, folder: said.startswith("| row |"),
    "tex": lambda said, folder: r"\begin{tabular}" in said,
    "csv": lambda said, folder: len(list(csv.DictReader(io.StringIO(said)))) == 2,
    "json": lambda said, folder: len(json.loads(said)["rows"]) == 2,
    "html": lambda said, folder: Path(said.strip()) == folder / "report.html",
}


@binds("report --format")
@pytest.mark.parametrize("form", FORMATS)
def test_a_report_has_the_format_that_is_asked_for(rows, tell, monkeypatch, form):
    path, runs = rows
    monkeypatch.setattr(report, "write_page", lambda *of_a_grid: {})
    code, said = tell(report.main, path, "--runs", runs, "--format", form)
    assert code == 0 and FORMATS[form](said, runs / "sweeps" / "rows@demo")


@binds("sweep --beside", "report --beside")
def test_the_paper_stands_beside_a_table_where_that_is_asked_for(rows, tell):
    """The text is the user's own, so without the option it does not."""
    path, runs = rows
    for main in (sweep.main, report.main):
        for choice in ([], ["--beside", "none"], ["--beside", "paper"]):
            code, said = tell(main, path, "--runs", runs, *choice)
            assert code == 0 and ("(A)" in said and "25.8" in said) == ("paper" in choice)


# ---------------------------------------------------------------------------------------------------------------------
# Options: of a search


def write_search(path: Path, text: Path, **more: Any) -> Path:
    space = {"model.d_ff": {"min": 512, "max": 4096, "q": 512, "distribution": "q_uniform"}}
    said = {"method": "random", "run_cap": 4, "metric": {"name": "val/ppl", "goal": "minimize"}, "parameters": space}
    return write_sweep(path, text, **said | more)


@pytest.fixture(scope="module")
def searched(folder):
    """The file of a search, and a runs folder in which all that it may draw is finished."""
    path, runs = write_search(folder / "search.yaml", folder / "text"), folder / "searched"
    search = searches.read_search(path, read_yaml(path), None, None, {})
    with tiny_trials.in_a_command():
        for d_ff in range(512, 4097, 512):
            _, keys = search.config({"model.d_ff": d_ff})
            words = [f"--scale={search.scale}", f"--runs={runs}", *(f"--{key}={value}" for key, value in keys.items())]
            assert train.main(words) == 0
    return path, runs


@binds("sweep --sampler", "sweep --storage", "report --storage")
@pytest.mark.parametrize("seed", [5, 6])
def test_a_search_draws_by_its_sampler_and_keeps_its_study_in_its_storage(searched, tmp_path, tell, seed):
    path, runs = searched
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    words = [path, "--runs", runs, "--storage", storage]
    with pytest.raises(InputError):
        tell(report.main, *words)
    assert tell(sweep.main, *words, "--sampler", "random", f"seed={seed}")[0] == 0
    assert not list(runs.glob("sweeps/search@demo/study.journal"))
    found = optuna.load_study(study_name="search@demo", storage=storage)
    expected = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    expected.enqueue_trial({"model.d_ff": 2048})
    space = {"model.d_ff": optuna.distributions.IntDistribution(512, 4096, step=512)}
    assert len(found.trials) >= 4
    assert [trial.params for trial in found.trials] == [expected.ask(space).params for _ in found.trials]
    assert tell(report.main, *words, "--format", "md")[1] == (runs / "sweeps" / "search@demo" / "table.md").read_text()


# What becomes of four trials of which each is worse than those before: C is complete, P pruned. Base is not pruned.


# ---------------------------------------------------------------------------------------------------------------------
# Options: of `translate` and `complexity`


@binds(*(f"translate {option}" for option in ("TRIAL", "FILE", "--beam", "--alpha", "--n-best", "--runs")))
def test_the_options_of_translate(rows, tmp_path, tell):
    """A line of output is a line's number, the score of one of its translations, and that."""
    _, runs = rows
    sentences = tmp_path / "two.txt"
    sentences.write_text("ba be bi\nbo\n")
    first, second, *_ = (path.name[-12:] for path in sorted((runs / "trials").iterdir()))
    words = {
        "plain": [first, sentences],
        "TRIAL": [second, sentences],
        "--alpha": [first, sentences, "--alpha", 0],
        "--beam": [first, sentences, "--beam", 5, "--n-best", 5],  # more than the beam of the trial
    }
    said = {
        name: tell(translate.main, "--n-best", 1, "--runs", runs, *words[name])[1]
        for name in ("plain", "TRIAL", "--alpha")
    }
    assert len(set(said.values())) == 3 and {len(text.splitlines()) for text in said.values()} == {2}
    best = tell(translate.main, "--runs", runs, *words["--beam"])[1].splitlines()
    assert [line.partition("\t")[0] for line in best] == ["1"] * 5 + ["2"] * 5
    with pytest.raises(InputError, match=words["plain"][0]):
        tell(translate.main, "--runs", tmp_path, *words["plain"])


@binds(*(f"complexity {option}" for option in ("FILE", "--scale", "--set", "--runs", "--n")))
def test_the_options_of_complexity(tmp_path, tell):
    path, scale = tmp_path / "layers.yaml", tmp_path / "narrow.yaml"
    path.write_text("name: layers\nmethod: grid\nparameters: {scale: {value: demo}}\n")
    scale.write_text("model.width: 1/32\n")
    words = [path, "--runs", tmp_path / "runs", "--scale", scale, "--set", "model.h=4", "--n", "4,7"]
    said = command("complexity", *words)
    assert said.returncode == 0, said.stderr
    with (tmp_path / "runs" / "complexity" / "layers" / "complexity.csv").open() as file:
        assert {record["n"] for record in csv.DictReader(file)} == {"4", "7"}
    assert "d = 16 and h = 4" in said.stdout


# ---------------------------------------------------------------------------------------------------------------------
# All of them

COMMANDS = {
    "sweep": sweep,
    "report": report,
    "translate": translate,
    "complexity": complexity,
    "train": train,
    "check": check,
}


def options_of(name: str, capsys: pytest.CaptureFixture) -> set[str]:
    """The options that a command names when it is asked for help, and what it takes without a name."""
    with suppress(HelpShown):
        COMMANDS[name].main(["--help"])
    said = capsys.readouterr().out
    if name == "train":  # the rest names every key
        return set(re.findall(r"[\[ ](--[\w-]+)", said.partition("options:")[0])) - {"--key"}
    return set(re.findall(r"^  (--[a-z-]+|[A-Z]+)\b", said, re.MULTILINE))


def test_every_key_is_bound(capsys):
    """And no test is of a key or an option that is gone."""
    options = {f"{name} {option}" for name in COMMANDS for option in options_of(name, capsys)}
    assert KEYS.keys() <= TESTS.keys() | OTHER_TESTS.keys() and TESTS.keys() <= KEYS.keys() | options
    for key, file in OTHER_TESTS.items():
        assert key.partition(".")[2] in (ROOT / "tests" / file).read_text()
