"""Every key of the configuration is bound: to change it changes what it is there for.

Each is tried through the command that reads it, and its test fails where it is read no more. A key without such a test
fails the last test here. Trials are tiny, and trained in this process where they can be.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tiny_trials
import torch
import watching_component
from forked import running
from helpers import ROOT, check_names, little_text, wait_for

from transformer_pl.config import KEYS
from transformer_pl.config.levels import Level, resolve
from transformer_pl.data.prepared import Prepared
from transformer_pl.runtime.errors import InputError
from transformer_pl.train.evaluate import trained_model
from transformer_pl.trials.trial_folder import TrialFolder

TESTS = {}  # by key: the test that fails where it is disconnected


def binds(*names: str) -> Callable[[Callable], Callable]:
    """A test of these keys."""

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


def changes(words: str, under: dict[str, Any] | None = None) -> list[Change]:
    """As a variant is written: keys and values."""
    return [Change(*word.split("=", 1), under or {}) for word in words.split()]


def each(changes: list[Change]) -> Callable[[Callable], Callable]:
    """A test of several changes, which binds their keys."""

    def parametrized(test: Callable) -> Callable:
        keys = [change.key for change in changes]
        return binds(*keys)(pytest.mark.parametrize("change", changes, ids=keys)(test))

    return parametrized


class Made(NamedTuple):
    """A finished trial."""

    trial: TrialFolder
    notes: list[dict[str, Any]]  # of `watch`, where its component looked on

    def weights(self) -> dict[str, torch.Tensor]:
        return self.trial.weights()

    def steps(self, metric: str) -> list[int]:
        """At which it was logged in the course of training."""
        return [line["step"] for line in self.trial.metrics() if metric in line and "val/bleu" not in line]

    def batches(self, training: bool) -> int:
        """How many went through the encoder."""
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
    (folder / "data").mkdir()
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
            (place / "runs").mkdir(parents=True)
            (place / "runs" / "data").symlink_to(folder / "data")  # each dataset is prepared once
            os.environ[watching_component.FOLDER] = str(place)
            keys = {"data.path": folder / "text"} | keys
            keys = {key: str(value).replace("FOLDER", str(folder)) for key, value in keys.items()}
            with tiny_trials.unrehearsed():
                code, trial = tiny_trials.train(place / "runs", keys)
            assert code == 0
            made[name] = Made(trial, [note for process in watching_component.notes(place) for note in process])
        return made[name]

    return make


# ---------------------------------------------------------------------------------------------------------------------
# Keys: another model, or another training of it


@each(
    changes("model.N=3 model.N_encoder=3 model.N_decoder=3 model.d_model=1024 model.d_ff=1024 model.h=4 model.d_k=96")
    + changes("model.d_v=96 model.p_drop=0.3 model.width=1/16 model.depth=1/6")
    + changes("model.attention=ablations.unscaled_attention.UnscaledAttention")
    + changes("model.ffn=ablations.gated_ffn.GatedFeedForward")
    + changes("model.position=ablations.learned_position.LearnedPosition")
    + changes("model.residual=ablations.pre_norm.PreNormResidual")
    + changes("model.self_attention=ablations.convolutional_layer.ConvolutionalLayer")
    + changes("model.cross_attention=ablations.grouped_query_attention.GroupedQueryCrossAttention")
    + changes("model.embedding=ablations.untied_embedding.UntiedEmbedding")
    + changes("model.architecture=ablations.shared_layers.SharedLayers")
    + changes("optim.max_steps=5 optim.duration=2 optim.freeze=encoder.* optim.warmup=8 optim.lr_scale=0.5")
    + changes("optim.eps_ls=0.3 optim.beta1=0.5 optim.beta2=0.5 optim.eps=1e-3 optim.optimizer=torch.optim.SGD")
    + changes("optim.schedule=ablations.schedules.InverseSquareRootWithoutWarmup")
    + changes("optim.loss=ablations.focal_loss.FocalLoss")
    + changes("optim.match=flops", {"model.d_ff": 8192})
    + changes("optim.clip=1e-3", {"optim.eps": 1e-3})
    + changes("data.path=FOLDER/text2 data.source=fr data.target=fr data.train=other data.train_pairs=30")
    + changes("data.hub=some/two data.subset=part", {"data.path": None, "data.hub": "some/one"})
    + changes("data.max_words=7 data.vocab_size=310 data.vocabulary_from=FOLDER/text2 data.batch_tokens=96")
    + changes("data.batches=ablations.word_dropout.TargetWordDropout data.max_length=9")
    + changes("decode.select=best", {"optim.lr_scale": 30, "trainer.val_every": 1})
    + changes("decode.average=2 trainer.precision=bf16-mixed seed=2")
)
def test_a_key_of_the_training_changes_the_weights(make, change):
    quick = {"decode.beam": 1, "decode.extra": 0}
    assert not equal(make(quick | change.keys).weights(), make(quick | change.under).weights())


def test_the_seed_draws_the_weights_and_the_order_of_the_sentences(make):
    """Each by itself: the same weights would be trained on other sentences, or others on the same."""
    firsts = [make(watching_component.WATCHED | {"seed": seed}).notes[0] for seed in (1, 2)]
    assert all(firsts[0][what] != firsts[1][what] for what in ("weight", "ids", "mask"))


# ---------------------------------------------------------------------------------------------------------------------
# Keys: another evaluation of the same weights

UNTRAINED = {"optim.lr_scale": 1e-3}  # it ends no sentence by itself, and is sure of no piece


@each(
    changes("decode.beam=1 decode.extra=0 decode.intervention=negating_intervention.Negated", UNTRAINED)
    + changes("decode.alpha=3 data.val=other data.test=other")
)
def test_a_key_of_the_evaluation_changes_the_outputs_alone(make, change):
    changed, base = make(change.keys), make(change.under)
    assert equal(changed.weights(), base.weights())
    for split in ("val", "test"):
        bound = change.key.startswith("decode.") or change.key == f"data.{split}"
        assert (changed.trial.hypotheses(split) != base.trial.hypotheses(split)) == bound


@binds("data.bleu")
def test_the_tokeniser_of_bleu_changes_the_score_alone(make):
    """It shares the weights. What the language has by itself makes no other trial."""
    changed, base, same = (make(keys).trial for keys in ({"data.bleu": "char"}, {}, {"data.bleu": "13a"}))
    assert changed.result().weights_id == base.result().weights_id and changed.id != base.id == same.id
    for split in ("val", "test"):
        assert changed.hypotheses(split) == base.hypotheses(split)
        counts = [(trial.path / f"scores.{split}.jsonl").read_text() for trial in (changed, base)]
        assert counts[0] != counts[1]
    assert "tok:char" in changed.result().signature and "tok:13a" in base.result().signature


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
    Change("trainer.val_sample", 3, ALONE): (lambda made, base: made.batches(False) - base.batches(False), 2 * 3),
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
    prepared = Prepared(made.trial.path.parents[1] / "data" / made.trial.data())
    config = resolve(
        [Level("result", {key: value for key, value in made.trial.result().config.items() if key in KEYS})]
    )
    trainers = {name: config.trainer.model_copy(update={"accelerator": name}) for name in ("cpu", "auto")}
    on_cpu, on_gpu = (config.model_copy(update={"trainer": trainers[name]}) for name in ("cpu", "auto"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert next(trained_model(on_cpu, prepared, made.trial).parameters()).device.type == "cpu"
    no_gpu = nullcontext() if gpu else pytest.raises((AssertionError, RuntimeError))
    with no_gpu:
        assert next(trained_model(on_gpu, prepared, made.trial).parameters()).device.type == "cuda"


@binds("data.name")
def test_the_name_of_a_text_stands_in_the_names_of_its_trials(make):
    """It is no part of the identity; without it the last part of the path stands there."""
    named, unnamed = (make(keys).trial for keys in ({"data.name": "news"}, {}))
    assert " data=news " in named.result().name and " data=text " in unnamed.result().name
    assert named.path.name[-12:] == unnamed.path.name[-12:]


@pytest.mark.slow  # half a minute
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
    command, nodes = [sys.executable, "-m", "transformer_pl.train", *words], []
    try:
        for node in "01":
            own = {"RANK": node, "GROUP_RANK": node, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            with (tmp_path / f"{node}.txt").open("w") as log:
                nodes.append(subprocess.Popen(command, env=os.environ | shared | own, stdout=log, stderr=log))
        codes = [node.wait(240) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert codes == [0, 0], "".join(path.read_text() for path in tmp_path.glob("?.txt"))
    processes = watching_component.notes(tmp_path / "seen")
    # Its component is checked in each process alone, before they train.
    first, second = (next(note for note in notes if note["world"] == 2) for notes in processes)
    assert "FSDPTransformer" in first["within"]
    assert first["weight"] == second["weight"] and first["ids"] != second["ids"] and first["mask"] != second["mask"]


OTHER_TESTS = {  # keys that other files test
    "trainer.compile": "train/test_compiling.py",
    "trainer.callbacks": "train/test_extensions.py",
    "trainer.devices": "train/test_distributed.py",
    "trainer.loggers": "train/test_extensions.py",
    "data.pieces": "tasks/test_language_model.py",
    "data.revision": "data/test_hub.py",
    "data.sets": "trials/test_trial.py",
    "data.task": "tasks/test_task.py",
    "data.tokenizer": "data/test_other_tokenizers.py",
    "decode.memory": "train/test_carrying.py",
    "decode.stride": "tasks/test_language_model.py",
    "model.start": "train/test_start.py",
    "model.start_with": "train/test_start.py",
    "trainer.keep_state": "train/test_start.py",
}


# ---------------------------------------------------------------------------------------------------------------------
# All of them


def test_every_key_is_bound():
    """And no test is of a key that is gone."""
    remedy = "write a test in this file with @binds(KEY) that fails without its effect, or name its file in OTHER_TESTS"
    check_names([*TESTS, *OTHER_TESTS], KEYS, remedy)
    for key, file in OTHER_TESTS.items():
        assert key.partition(".")[2] in (ROOT / "tests" / file).read_text()
