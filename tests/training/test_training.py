"""How a trial is trained: the laws of Section 5, accumulation, interruption."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import forked
import lightning as L
import numpy as np
import pytest
import sacrebleu
import tiny_trials
import torch
from helpers import flip, little_text, shared_text, wait_for
from lightning.pytorch.utilities import rank_zero_only

from transformer_pl.config import Decode
from transformer_pl.data.batches import collate
from transformer_pl.data.datamodule import TranslationDataModule
from transformer_pl.data.prepare import prepare
from transformer_pl.evaluation.evaluate import reference_likelihood, translate
from transformer_pl.levels import Level, resolve
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.signals import Stopped
from transformer_pl.runtime.terminal import counted
from transformer_pl.schedule import learning_rate
from transformer_pl.training.bleu_sample import BleuSample
from transformer_pl.training.checkpoint import Checkpoints
from transformer_pl.training.fit import use_threads
from transformer_pl.training.module import TransformerModule
from transformer_pl.trials.names import CHECKPOINT_FILES
from transformer_pl.trials.recognise import is_trial, reason_to_stay
from transformer_pl.trials.trial import Trial

TINY = {"model.N": 1, "model.d_model": 16, "model.d_ff": 32, "model.h": 2, "data.vocab_size": 400}
TINY |= {"data.batch_tokens": 128, "optim.warmup": 10, "optim.max_steps": 12, "trainer.threads": 1}


def config(**keys):
    return resolve([Level("test", TINY | {key.replace("__", "."): value for key, value in keys.items()})])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A little text of its own: sentences of several lengths, and rules simple enough to learn."""
    folder = little_text(tmp_path_factory.mktemp("text"), 400, 30, 20)
    return prepare(config(data__path=str(folder)).data, folder / "runs")


class Notes(L.pytorch.loggers.logger.Logger):
    """A logger that remembers."""

    name = version = "notes"

    def __init__(self):
        super().__init__()
        self.lines = []

    def log_metrics(self, metrics, step=None):
        self.lines.append((step, dict(metrics)))

    def log_hyperparams(self, *args, **kwargs):
        pass


def fit(prepared, config, *callbacks):
    torch.set_num_threads(1)
    L.seed_everything(config.seed, verbose=False)
    module, notes = TransformerModule(config, len(prepared.tokenizer)), Notes()
    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=config.steps,
        accumulate_grad_batches=config.trainer.accumulate,
        val_check_interval=6 * config.trainer.accumulate,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        logger=notes,
        callbacks=list(callbacks),
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, TranslationDataModule(config, prepared))
    return module, notes.lines


def test_training_follows_the_constraint_from_its_first_step(prepared):
    _, lines = fit(prepared, config(trainer__log_every=1, optim__lr_scale=0.5))
    rates = [(step, line["lr"]) for step, line in lines if "lr" in line]
    assert [step for step, _ in rates] == list(range(1, 13))
    for step, rate in rates:  # what is logged after a step is what the next one will use
        assert rate == pytest.approx(learning_rate(step + 1, 16, 10, 0.5))


def test_perplexity_is_of_every_piece_and_eos_and_of_nothing_else(prepared):
    module = TransformerModule(config(), len(prepared.tokenizer))
    split = prepared.split("val")
    found = reference_likelihood(module.model, split, tokens=64)
    for i in (0, 7, 29):  # one sentence at a time: no padding at all
        batch = collate(split, np.array([i]))
        with torch.no_grad():
            logprob = module.model.eval()(batch.source, batch.target_in).log_softmax(-1)[0]
        assert len(batch.target_out[0]) == found.tokens[i] == len(split.target[i]) + 1
        expected = -logprob[range(found.tokens[i]), batch.target_out[0]].sum().item()
        assert found.nll[i] == pytest.approx(expected, rel=1e-4)
    assert found.perplexity == pytest.approx(np.exp(found.nll.sum() / found.tokens.sum()))


def test_validation_on_the_schedule_agrees_with_the_final_one(prepared):
    module, lines = fit(prepared, config())
    last = [line for step, line in lines if step == 12 and "val/ppl" in line][-1]
    assert last["val/ppl"] == pytest.approx(
        reference_likelihood(module.model, prepared.split("val"), 256).perplexity, rel=1e-4
    )


def test_bleu_in_the_course_of_training_is_that_of_the_sample_and_changes_nothing(prepared):
    learns = {"model__d_model": 32, "model__d_ff": 64, "optim__warmup": 100, "optim__max_steps": 360}
    settings = config(trainer__bleu_sample=10, decode__extra=3, **learns)  # decoding's keys do not count
    sample = BleuSample(settings, prepared)
    module, lines = fit(prepared, settings, sample)
    _, references = prepared.text("val")
    assert len(sample.references) == 10 and set(sample.references) <= set(references)
    scored = {step: line["val/bleu_sample"] for step, line in lines if "val/bleu_sample" in line}
    assert list(scored) == list(range(6, 361, 6)) and scored[360] > 0
    found = [
        translate(module.model, sample.source.take([i]), Decode(beam=1), 256)[0] for i in range(len(sample.source))
    ]
    hypotheses = prepared.tokenizer.decode([one[0].tokens if one else [] for one in found])
    assert scored[360] == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [sample.references]).score)
    short = config(trainer__bleu_sample=10, **learns | {"optim__max_steps": 36})
    (scored, _), (plain, _) = fit(prepared, short, BleuSample(short, prepared)), fit(prepared, short)
    assert all(torch.equal(a, b) for a, b in zip(scored.parameters(), plain.parameters(), strict=True))


GROWING = """
import torch
from ablations.no_position import NoPosition

class Growing(NoPosition):
    table = torch.ones(0)

    def forward(self, x, start=0):
        end = start + x.shape[1]
        if len(self.table) < end and not self.training:
            self.table = torch.ones(end, device=x.device)
        return x * self.table[start:end, None] if len(self.table) >= end else x
"""


def test_a_table_that_a_component_makes_in_evaluation_serves_training(prepared, module):
    module(GROWING)
    settings = config(model__position="stranger.Growing", trainer__bleu_sample=2)
    trained, _ = fit(prepared, settings, BleuSample(settings, prepared))
    assert len(trained.model.position["encoder"].table)


@pytest.mark.parametrize("accumulate", [2, 3, 50])
def test_accumulation_splits_the_batch_and_changes_nothing(prepared, accumulate):
    """50 parts are more than a batch has sentences."""
    once, _ = fit(prepared, config(model__p_drop=0.0, optim__max_steps=4))
    parts, _ = fit(prepared, config(model__p_drop=0.0, optim__max_steps=4, trainer__accumulate=accumulate))
    for (name, a), b in zip(once.named_parameters(), parts.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5), name


def test_smoothing_changes_the_loss_and_not_the_perplexity(prepared):
    lines = [fit(prepared, config(optim__eps_ls=eps, optim__max_steps=1, trainer__log_every=1))[1] for eps in (0, 0.3)]
    losses = [next(line["train/loss"] for _, line in completed if "train/loss" in line) for completed in lines]
    assert losses[0] != pytest.approx(losses[1], abs=1e-4)
    models = [TransformerModule(config(optim__eps_ls=eps), len(prepared.tokenizer)).model for eps in (0, 0.3)]
    models[1].load_state_dict(models[0].state_dict())
    assert len({reference_likelihood(model, prepared.split("val"), 256).loss for model in models}) == 1


def test_translations_with_a_cache_equal_those_without(prepared):
    module, _ = fit(prepared, config(optim__max_steps=40))
    source, decode = prepared.split("test").source, Decode(extra=5)
    cached = translate(module.model, source, decode, 512)
    module.model.embedding.incremental = False
    again = translate(module.model, source, decode, 4096)  # and in other batches
    for a, b in zip(cached, again, strict=True):
        assert a[0].tokens == b[0].tokens and a[0].score == pytest.approx(b[0].score, abs=1e-4)
    assert all(len(h[0].tokens) < n + 5 for h, n in zip(cached, source.lengths, strict=True))  # EOS counts too


class Weights(L.Callback):
    """Remembers the weights at every validation."""

    def __init__(self):
        self.seen = []

    def on_validation_end(self, trainer, module):
        self.seen.append({name: value.clone() for name, value in module.model.state_dict().items()})


@pytest.mark.parametrize("average", [1, 2, 3])
def test_the_last_checkpoints_are_averaged(prepared, tmp_path, average):
    """Four validations, at steps 6, 12, 18 and 24."""
    weights, checkpoints = Weights(), Checkpoints(tmp_path, average)
    fit(prepared, config(optim__max_steps=24, decode__average=average), weights, checkpoints)
    assert len(weights.seen) == 4
    assert all(CHECKPOINT_FILES.fullmatch(path.name) for path in tmp_path.iterdir())
    if average == 1:
        assert checkpoints.averaged() is None
        return
    for name, value in checkpoints.averaged().items():
        mean = torch.stack([seen[name] for seen in weights.seen[-average:]]).mean(0)
        assert torch.allclose(value, mean, atol=1e-6), name
        assert not torch.equal(value, weights.seen[-1][name])


def test_the_end_is_averaged_too_where_no_validation_falls_on_it(prepared, tmp_path):
    weights, checkpoints = Weights(), Checkpoints(tmp_path, 2)
    module, _ = fit(prepared, config(optim__max_steps=8, decode__average=2), weights, checkpoints)  # one, at step 6
    (validated,), end = weights.seen, module.model.state_dict()
    for name, value in checkpoints.averaged().items():
        assert torch.allclose(value, (validated[name] + end[name]) / 2, atol=1e-6), name
    asked = config(optim__max_steps=8, decode__average=9, trainer__val_every=6)
    assert asked.averaged == len(list(tmp_path.glob("weights.*.pt"))) == 2


def test_damaged_weights_are_not_averaged(prepared, tmp_path, capsys):
    """No checkpoint can make them again: the training begins anew, and comes to what it would have come to."""
    settings, folder = config(optim__max_steps=18, decode__average=2), tmp_path / "checkpoints"
    checkpoints = Checkpoints(folder, 2)
    fit(prepared, settings, checkpoints)
    expected = checkpoints.averaged()
    assert {path.name for path in folder.glob("weights.*")} == {
        f"weights.0000000{step}.{kind}" for step in (12, 18) for kind in ("pt", "sha256")
    }
    assert checkpoints.newest() == folder / "last.ckpt" and not capsys.readouterr().err
    (folder / "last.sha256").write_bytes(b"\xff\xfe")  # no text at all
    assert checkpoints.newest() == folder / "previous.ckpt"
    assert f"warning: {folder / 'last.ckpt'}: is not whole; continuing from previous.ckpt" in capsys.readouterr().err
    flip(folder / "weights.000000012.pt")
    with pytest.raises(InputError, match=r"weights\.000000012\.pt: cannot be averaged: .* trains the trial anew"):
        checkpoints.averaged()
    assert checkpoints.newest() is None
    fit(prepared, settings, Checkpoints(folder, 2))
    for name, value in checkpoints.averaged().items():
        assert torch.equal(expected[name], value), name


class Stuck(Exception):
    pass


def test_weights_are_kept_whole_before_their_checkpoint(prepared, tmp_path, monkeypatch):
    """Who goes on from a checkpoint does not validate again: what is averaged must be there. A half of it is not."""
    checkpoints = Checkpoints(tmp_path, 2)

    def stuck(*args, **kwargs):
        raise Stuck

    monkeypatch.setattr(L.Trainer, "save_checkpoint", stuck)
    with pytest.raises(Stuck):
        fit(prepared, config(decode__average=2), checkpoints)
    assert [path.name for path in tmp_path.glob("weights.*.pt")] == ["weights.000000006.pt"]

    def half(state, path):
        path.write_bytes(b"half")
        raise Stuck

    monkeypatch.setattr(torch, "save", half)
    (tmp_path / "weights.000000006.pt").unlink()
    with pytest.raises(Stuck):
        fit(prepared, config(decode__average=2), checkpoints)
    assert not list(tmp_path.glob("weights.*.pt"))


class Asks(L.Callback):
    """Asks to stop in the middle of a step."""

    def __init__(self, checkpoints, step):
        self.checkpoints, self.step = checkpoints, step

    def on_before_zero_grad(self, trainer, module, optimizer):
        if trainer.global_step == self.step - 1:
            self.checkpoints._signal = signal.SIGTERM


@pytest.mark.parametrize("step", [5, 6, 12], ids=["between", "before a validation", "the last"])
def test_who_is_asked_to_stop_validates_first_where_that_comes_next(prepared, tmp_path, step):
    """For who goes on from there does not."""
    checkpoints = Checkpoints(tmp_path, 2)
    with pytest.raises(Stopped):
        fit(prepared, config(decode__average=2), Asks(checkpoints, step), checkpoints)
    assert torch.load(tmp_path / "last.ckpt")["global_step"] == step
    kept = [int(path.name.split(".")[1]) for path in sorted(tmp_path.glob("weights.*.pt"))]
    assert kept == [at for at in (6, 12) if at <= step]


def test_a_checkpoint_is_gone_on_from_in_as_many_parts(tmp_path):
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.accumulate = 4
    with pytest.raises(InputError, match=r"trainer\.accumulate = 4: must be what this trial was begun with, 1"):
        checkpoints.load_state_dict({"seconds": 1.0, "random": [], "accumulate": 1})


def test_a_refused_resume_leaves_the_number_of_parts_known(tmp_path, monkeypatch):
    """A sweep resumes a trial with the parts of a batch that its checkpoints count, whatever was tried meanwhile."""
    keys, step = {"trainer.checkpoint_minutes": 0, "trainer.accumulate": 2}, TransformerModule.training_step

    def fails(self, batch, index):
        if index == 5:
            raise RuntimeError
        return step(self, batch, index)

    with monkeypatch.context() as patch:
        patch.setattr(TransformerModule, "training_step", fails)
        code, trial = tiny_trials.train(tmp_path / "runs", keys)
    assert code == 1 and trial.parts_begun() == 2
    with pytest.raises(InputError, match=r"trainer\.accumulate = 1: must be what this trial was begun with, 2"):
        tiny_trials.train(tmp_path / "runs", keys | {"trainer.accumulate": 1})
    assert trial.parts_begun() == 2
    assert tiny_trials.train(tmp_path / "runs", keys)[0] == 0


# ---------------------------------------------------------------------------------------------------------------------
# Interruption


SMALL = ["--model.width=0.0625", "--model.N=2", "--trainer.threads=1", "--optim.max_steps=60", "--trainer.val_every=15"]
SMALL += ["--trainer.log_every=5", "--decode.beam=1", f"--data.path={shared_text()}", "--data.vocab_size=400"]


@contextmanager
def train(runs: Path) -> Iterator[forked.ForkedProcess]:
    with (
        (runs / "output.txt").open("w") as file,
        forked.running("train", f"--runs={runs}", *SMALL, output=file) as process,
    ):
        yield process


def train_on(runs: Path, *argv: str) -> str:
    """To the end, whatever is there already; returns what the command said."""
    completed = forked.command("train", f"--runs={runs}", *SMALL, *argv)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def outcome(runs: Path):
    (folder,) = (runs / "trials").iterdir()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [(line["step"], line["train/loss"]) for line in lines if "train/loss" in line]
    return losses, json.loads((folder / "result.json").read_text())["metrics"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    runs = tmp_path_factory.mktemp("whole")
    train_on(runs)
    return runs


@pytest.mark.parametrize(
    ("signum", "when"),
    [
        pytest.param(signal.SIGKILL, "checkpoints/last.sha256", id="killed"),
        pytest.param(signal.SIGTERM, "checkpoints/last.sha256", id="asked to stop"),
        pytest.param(signal.SIGKILL, "weights.pt", id="killed after its last step"),
    ],
)
def test_an_interrupted_trial_goes_on_bit_for_bit(uninterrupted, tmp_path, signum, when):
    (tmp_path / "data").symlink_to(uninterrupted / "data")
    with train(tmp_path) as process:
        wait_for(lambda: any(tmp_path.glob(f"trials/*/{when}")))
        os.kill(process.pid, signum)
        exit_code = process.wait(60)
    assert exit_code == (143 if signum == signal.SIGTERM else -9), (tmp_path / "output.txt").read_text()
    (folder,) = (tmp_path / "trials").iterdir()
    assert is_trial(folder) and reason_to_stay(folder, tmp_path) is None, "--clean must know every file"
    assert not any(tmp_path.glob("trials/*/result.json"))
    train_on(tmp_path)
    assert outcome(tmp_path) == outcome(uninterrupted)


def begin(runs: Path, *words: object, **environment: str) -> None:
    """Stop a command that trains, once its trial has a checkpoint."""
    with (runs / "output").open("w") as output, forked.running(*words, output=output, **environment) as process:
        wait_for(lambda: any(runs.glob("trials/*/checkpoints/last.sha256")))
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 143
    assert not any(runs.glob("trials/*/result.json"))


@pytest.mark.parametrize("tool", [pytest.param("sweep", marks=pytest.mark.slow), "train"])  # 23 s
def test_an_interrupted_trial_keeps_the_threads_it_began_with(uninterrupted, tmp_path, monkeypatch, tool):
    """For the order of additions depends on them. It begins with one, and is resumed where it would have all cores."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    keys = {"model.width": 0.0625, "model.N": 2, "optim.max_steps": 60, "trainer.val_every": 15, "trainer.log_every": 5}
    keys |= {"decode.beam": 1, "data.path": str(shared_text()), "data.vocab_size": 400}
    runs, cores = tmp_path / "runs", len(os.sched_getaffinity(0))
    runs.mkdir()
    (runs / "data").symlink_to(uninterrupted / "data")
    if tool == "sweep":
        parameters = {key: {"value": value} for key, value in keys.items()}
        (tmp_path / "one.yaml").write_text(json.dumps({"name": "one", "method": "grid", "parameters": parameters}))
        begin(runs, "sweep", tmp_path / "one.yaml", "--devices=1", f"--runs={runs}")
        resumed = forked.command("sweep", tmp_path / "one.yaml", "--runs", runs, "--parallel=1")
        assert f"1 trial to train, 1 at a time, each on {counted(cores, 'CPU core')}, with 1 thread;" in resumed.stdout
        assert cores == 1 or f"resumed with as many threads as before, not {cores}" in resumed.stdout
    else:
        words = [f"--{key}={value}" for key, value in keys.items()]
        begin(runs, "train", *words, f"--runs={runs}", OMP_NUM_THREADS="1")
        resumed = forked.command("train", *words, "--runs", runs, OMP_NUM_THREADS=str(cores))
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert outcome(runs) == outcome(uninterrupted)
    (weights,), (expected,) = (map(torch.load, at.glob("trials/*/weights.pt")) for at in (runs, uninterrupted))
    assert all(torch.equal(weights[name], value) for name, value in expected.items())
    (environment,) = runs.glob("trials/*/env.json")
    assert json.loads(environment.read_text())["threads"] == 1


@pytest.fixture
def threads(monkeypatch):
    """The number of threads before a test, and after it."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    yield before
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("keys", "begun", "expected"),
    [
        ({}, None, None),
        ({"trainer__devices": 1_024}, None, 1),
        ({}, 3, 3),
        ({"trainer__threads": 3}, None, 3),
        ({"trainer__threads": 3}, 3, 3),
        ({"trainer__threads": 3}, 2, 3),
    ],
    ids=str,
)
def test_which_number_of_threads_is_used(tmp_path, threads, capsys, keys, begun, expected):
    """The user's, else the trial's, else a process's share. What replaces the trial's is said."""
    trial = Trial(tmp_path)
    if begun:
        (tmp_path / "env.json").write_text(json.dumps({"threads": begun}))
    used = use_threads(config(**{"trainer__threads": None} | keys), trial)
    assert used == torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"]) == (expected or threads)
    warned = "trainer.threads = 3: this trial began with 2" in capsys.readouterr().out
    assert warned == (begun == 2)


def garble(folder: Path) -> None:
    """A byte of the newest file has changed."""
    flip(folder / "last.ckpt")


def forget(folder: Path) -> None:
    """The process died before it wrote the digest of what it had saved."""
    (folder / "last.sha256").unlink(missing_ok=True)


def tear(folder: Path) -> None:
    """It died between two renames."""
    (folder / "last.ckpt").replace(folder / "previous.ckpt")


@pytest.mark.parametrize("damage", [garble, forget, tear])
def test_a_damaged_checkpoint_is_not_trained_on(uninterrupted, tmp_path, monkeypatch, damage):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    (tmp_path / "data").symlink_to(uninterrupted / "data")
    with train(tmp_path) as process:
        wait_for(
            lambda: any(
                last.with_name("previous.sha256").exists() for last in tmp_path.glob("trials/*/checkpoints/last.ckpt")
            )
        )
        os.kill(process.pid, signal.SIGKILL)
    (folder,) = tmp_path.glob("trials/*/checkpoints")
    damage(folder)
    train_on(tmp_path)
    assert outcome(tmp_path) == outcome(uninterrupted)


def test_trials_that_differ_in_decoding_share_their_weights(uninterrupted, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    runs = uninterrupted
    (first,) = (runs / "trials").iterdir()
    assert "Tip" not in (first / "log.txt").read_text() and "GPU available" not in (first / "log.txt").read_text()
    completed = train_on(runs, "--decode.alpha=0.1")
    (second,) = set((runs / "trials").iterdir()) - {first}
    assert "differs only in decoding" in completed
    assert (first / "weights.pt").samefile(second / "weights.pt")
    results = [json.loads((folder / "result.json").read_text()) for folder in (first, second)]
    assert results[0]["metrics"]["val/ppl"] == results[1]["metrics"]["val/ppl"]
    assert len({result["id"] for result in results}) == 2
    assert not (first / "metrics.jsonl").samefile(second / "metrics.jsonl")
    curves = [
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()] for folder in (first, second)
    ]
    assert [sum("val/bleu" in line for line in curve) for curve in curves] == [1, 1]  # its own
    completed = train_on(runs, "--decode.alpha=0.1", "--rerun")
    assert "differs only in decoding" not in completed and not (first / "weights.pt").samefile(second / "weights.pt")
    (first / "weights.pt").unlink()  # as someone may who wants room
    assert "differs only in decoding" in train_on(runs, "--decode.alpha=0.2")
    (second / "weights.pt").unlink()
    (third,) = set((runs / "trials").iterdir()) - {first, second}
    (third / "weights.pt").unlink()
    assert "differs only in decoding" not in train_on(runs, "--decode.alpha=0.3")


def test_no_rank_waits_for_a_training_that_rank_0_does_not_begin(tmp_path, monkeypatch):
    """Where srun or torchrun starts them. Ranks are joined as the training begins."""

    def joins(*of_the_training):
        raise AssertionError("waits for rank 0")

    runs = tmp_path / "runs"
    assert tiny_trials.train(runs, {})[0] == 0
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    monkeypatch.setattr("transformer_pl.training.fit.fit", joins)
    assert tiny_trials.train(runs, {"decode.alpha": 0.1})[0] == 0
    with pytest.raises(AssertionError, match="waits for rank 0"):
        tiny_trials.train(runs, {"decode.alpha": 0.1, "model.h": 4})


@pytest.mark.parametrize("content", [b"", b"text", bytes(100)])
def test_a_trial_both_of_whose_checkpoints_are_damaged_says_that_it_begins_anew(tmp_path, capsys, content):
    for name in ("last", "previous"):
        (tmp_path / f"{name}.ckpt").write_bytes(content)
        (tmp_path / f"{name}.sha256").write_text("0" * 64)
    assert Checkpoints(tmp_path, 1).newest() is None
    assert f"{tmp_path / 'last.ckpt'}: is not whole; continuing from the beginning" in capsys.readouterr().err
