"""The benchmarks compare like with like, and measure what they say."""

import os
import sys
import time
from pathlib import Path

import growth
import history
import numpy as np
import peers
import price
import pytest
import rounds
import scheduling
import torch
import wmt_corpus
import word_order
from helpers import ROOT, little_text
from small_models import batch, built, small
from tiny_trials import TINY, train

from transformer_pl.data.corpus import SPLITS
from transformer_pl.data.sources import open_corpus
from transformer_pl.data.tokens import Tokens
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.levels import resolve, scale_level
from transformer_pl.model import Transformer
from transformer_pl.runtime.errors import InputError


@pytest.fixture
def models():
    pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[bench]'")
    sizes = small({"model.d_model": 24, "model.p_drop": 0.1})
    model = built(sizes)
    for weight in model.parameters():  # norms and biases too must differ from their first values
        torch.nn.init.normal_(weight, std=0.3)
    return model, sizes


@pytest.mark.parametrize("attention", [None, "eager"])
def test_copied_weights_give_equal_logits(models, attention):
    model, sizes = models
    peer = peers.marian(model, sizes, attention)
    peers.check_logits(model, peer, *batch())
    assert peer.training and model.training, "checking leaves the models as they were"


def test_models_that_differ_are_not_compared(models):
    model, sizes = models
    peer = peers.marian(model, sizes)
    with torch.no_grad():
        peer.model.decoder.layers[1].encoder_attn.v_proj.weight[0, 0] += 0.5
    with pytest.raises(InputError, match="logits of the copied weights must differ by less"):
        peers.check_logits(model, peer, *batch())


def test_components_that_marian_lacks_are_refused(models):
    model, _ = models
    with pytest.raises(InputError, match="the paper's components alone"):
        peers.marian(model, small({"model.position": "ablations.no_position.NoPosition"}))


def test_a_missing_peer_is_told_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(InputError, match=r"pip install -c constraints.txt -e '\.\[bench\]'"):
        peers.need_peers()


def test_rounds_are_in_turn_and_ratios_are_within_a_round(capsys):
    order, speed = [], iter([1, 2, 10, 30, 100, 100])

    def setting(name):
        return lambda: order.append(name) or next(speed)

    rounds.compare("x", {"a": setting("a"), "b": setting("b")}, 3)
    assert "".join(order) == "ababab"
    assert "| b | 30.0 (2.0 to 100.0) | 2.00 (1.00 to 3.00) |" in capsys.readouterr().out


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system has no /proc")
def test_the_time_of_the_processor_is_that_of_a_process():
    assert rounds.cpu_seconds(os.getpid()) == pytest.approx(time.process_time(), abs=0.1)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="these sources are no git repository")
def test_a_commit_is_checked_out_and_removed(tmp_path):
    with history.checked_out("HEAD", tmp_path / "tree") as tree:
        assert (tree / "transformer_pl" / "train.py").exists()
    assert not tree.exists()
    with (
        pytest.raises(InputError, match="no-such-commit: must be a commit"),
        history.checked_out("no-such-commit", tree),
    ):
        pass


def test_the_rate_of_the_train_command_is_read(tmp_path: Path):
    (tmp_path / "text").mkdir()
    little_text(tmp_path / "text", 60, 8, 6)
    runs = tmp_path / "runs"
    runs.mkdir()
    keys = {key: value for key, value in TINY.items() if not key.startswith(("optim.max", "trainer"))}
    rate = rounds.train_command(ROOT, runs, keys | {"data.path": tmp_path / "text"}, steps=2, threads=1, clock="wall")
    assert rate() > 0
    with pytest.raises(InputError, match=r"trainer\.log_every: the benchmark sets it itself"):
        rounds.train_command(ROOT, runs, {"trainer.log_every": 1}, steps=2, threads=1, clock="wall")
    wrong = rounds.train_command(ROOT, runs, {"model.heads": 4}, steps=2, threads=1, clock="wall")
    with pytest.raises(InputError, match=r"model\.heads"):
        wrong()


@pytest.mark.parametrize("axis", growth.AXES)
def test_growth_is_measured_and_drawn(axis, monkeypatch, tmp_path, capsys):
    small = {"d_model": "8,16", "length": "2,6", "vocabulary": "40,80", "corpus": "800,1600", "trials": "5,10"}[axis]
    words = ["growth.py", axis, "--sizes", small, "--tokens", "12", "--steps", "1", "--rounds", "1", "--clock", "cpu"]
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(tmp_path)])
    growth.main()
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row[0].strip("| ").replace(",", "") for row in rows] == [axis, *small.split(",")]
    assert all(float(value.replace(",", "")) > 0 for row in rows[1:] for value in row[1:3])
    assert (tmp_path / f"{axis}.png").stat().st_size > 1000 and (tmp_path / f"{axis}.svg").exists()


def test_the_size_of_an_axis_is_that_of_the_model(monkeypatch):
    """A vocabulary, a width and a length as asked for; and the tokens of a batch stay."""
    built, states = [], []
    monkeypatch.setattr(growth, "Transformer", lambda sizes: built.append(sizes) or Transformer(sizes))
    real = Transformer.states
    monkeypatch.setattr(Transformer, "states", lambda self, *ids: states.append(ids[0].shape) or real(self, *ids))
    for axis, size in (("d_model", 16), ("length", 8), ("vocabulary", 50)):
        growth.training(axis, size, growth.Load(tokens=64, steps=1, clock=time.process_time))
    assert [(one.d_model, one.d_ff, one.vocab_size) for one in built] == [
        (16, 64, 8000),
        (256, 1024, 8000),
        (256, 1024, 50),
    ]
    assert states[::2] == [(2, 32), (8, 8), (2, 32)]


def test_the_exponent_of_growth():
    assert list(growth.exponents({10: 3.0, 20: 6.0, 40: 24.0})) == pytest.approx([1, 2])


def test_the_trials_of_the_scheduling_benchmark_all_end(tmp_path):
    """As many at once as it says: two rounds of trials that sleep."""
    first, second = scheduling.many_trials(tmp_path, steps=5, concurrent=2, trials=4, seconds=0.3)
    assert first.startswith("4 trials, 2 at once, each asleep for 0.3 s: ") and "MB at the most" in second
    results = sorted(path.stat().st_mtime for path in tmp_path.glob("runs/trials/*/result.json"))
    assert len(results) == 4 and results[2] - results[1] > 0.25


def test_the_time_of_a_step_is_that_of_the_slowest_process_and_the_cpu_that_of_all(tmp_path):
    """Without what was noted before the steps, and without their first tenth."""
    before, steps = "0 0\n50 50\n", 20
    for pid, wall, cpu in ((7, 2, 0.5), (8, 1.9, 0.25)):
        noted = [(100 - 30 * (step == 0) + wall * step, 100 + cpu * step) for step in range(steps)]
        (tmp_path / str(pid)).write_text(before + "".join(f"{at} {used}\n" for at, used in noted))
    (tmp_path / "9").write_text(before)
    assert scheduling.step_time(tmp_path, steps, 2) == pytest.approx((2, 0.75))
    with pytest.raises(InputError, match="3 processes must note 20 steps each, but 2 did"):
        scheduling.step_time(tmp_path, steps, 3)


def test_growth_names_what_is_wrong(monkeypatch, capsys):
    for words, message in (
        (["d_modle"], "must be one of d_model,"),
        (["--sizes", "3"], "--sizes: must be of one axis"),
    ):
        monkeypatch.setattr(sys, "argv", ["growth.py", *words])
        with pytest.raises(SystemExit, match="2"):
            growth.main()
        assert message in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["scheduling.py", "fast"])
    with pytest.raises(SystemExit, match="2"):
        scheduling.main()
    assert "fast: must be one of trials, startup" in capsys.readouterr().err


def test_the_price_of_base_on_the_paper_s_cards_is_the_paper_s_time():
    """12 hours on 8 GPUs (Section 5.2), of which the steps take 100,000 * 0.4 s; and twice the price costs twice."""
    sweep = read_sweep(ROOT / "sweeps" / "table3.yaml", scale="wmt14")
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in price.table(sweep, 2.0)]
    rows = {cells[0]: cells[1:] for cells in lines[2:]}
    assert len(rows) == 21
    assert float(rows["base"][1]) == pytest.approx(8 * 100_000 * 0.4 / 3600, rel=0.01)
    hours = [float(cells[3].replace(",", "")) for name, cells in rows.items() if name != "all"]
    assert sum(hours) == pytest.approx(float(rows["all"][3]), rel=0.02)
    double = [line.split("|") for line in price.table(sweep, 4.0)]
    assert float(double[-1][-2]) == pytest.approx(2 * float(rows["all"][-1]), abs=1)


def test_a_generated_corpus_has_the_layout_of_the_hub(tmp_path, monkeypatch):
    sizes = {"validation": 5, "test": 7}
    folder = wmt_corpus.write_corpus(tmp_path, 100, "fr-en", words=200, evaluation=sizes)
    monkeypatch.setenv("TRANSFORMER_PL_DATA", str(tmp_path))
    corpus = open_corpus(resolve([scale_level("wmt14-fr")]).data)
    pairs = {split: list(corpus.pairs(split)) for split in SPLITS}
    assert {split: len(found) for split, found in pairs.items()} == {"train": 100, "val": 5, "test": 7}
    assert len(list(folder.glob("train-0000?-of-00003.parquet"))) == 3
    assert pairs["val"] != pairs["test"][:5] and all(len(en.split()) >= len(fr.split()) > 0 for en, fr in pairs["val"])


def test_without_positions_the_order_of_the_source_does_not_matter(tmp_path, monkeypatch, capsys):
    _, trial = train(tmp_path / "runs", {"model.position": "ablations.no_position.NoPosition"})
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["word_order.py", str(trial.folder)])
    word_order.main()
    as_it_is, in_random_order, of_the_next = (line.rpartition(" ")[2] for line in capsys.readouterr().out.splitlines())
    assert as_it_is == in_random_order == f"{trial.result()['metrics']['val/loss']:.2f}"
    assert float(of_the_next) > 0


def test_a_sentence_in_random_order_has_the_same_tokens():
    sentences = Tokens(np.arange(300), np.array([0, 100, 101, 300]))
    shuffled = word_order.in_random_order(sentences, np.random.default_rng(1))
    for before, after in zip(sentences, shuffled, strict=True):
        assert sorted(after) == list(before) and (len(before) == 1 or list(after) != list(before))
