"""The benchmarks compare like with like, and measure what they say."""

import json
import sys
from pathlib import Path

import catalogue
import gpu
import peers
import pytest
import rounds
import torch
import word_order
from export import marian
from helpers import ROOT, check_names, little_text
from small_models import batch, built, small
from tiny_trials import TINY, train

from transformer_pl.runtime.errors import InputError

MADE_BY = "run python tests/benchmarks/catalogue.py, which writes this page"


@pytest.fixture
def models():
    pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[bench]'")
    sizes = small({"model.d_model": 24, "model.p_drop": 0.1, "model.N_decoder": 3})
    model = built(sizes)
    for weight in model.parameters():  # norms and biases too must differ from their first values
        torch.nn.init.normal_(weight, std=0.3)
    return model, sizes


@pytest.mark.parametrize("attention", [None, "eager"])
def test_copied_weights_give_equal_logits(models, attention):
    model, sizes = models
    peer = marian(model, sizes, attention)
    peers.check_logits(model, peer, *batch())
    assert peer.training and model.training, "checking leaves the models as they were"


def test_models_that_differ_are_not_compared(models):
    model, sizes = models
    peer = marian(model, sizes)
    with torch.no_grad():
        peer.model.decoder.layers[1].encoder_attn.v_proj.weight[0, 0] += 0.5
    with pytest.raises(InputError, match="logits"):
        peers.check_logits(model, peer, *batch())


def test_components_that_marian_lacks_are_refused(models):
    model, _ = models
    with pytest.raises(InputError, match="MarianMTModel"):
        marian(model, small({"model.position": "ablations.no_position.NoPosition"}))


def test_rounds_are_in_turn_and_ratios_are_within_a_round(capsys):
    order, speed = [], iter([1, 2, 10, 30, 100, 100])

    def setting(name):
        return lambda: order.append(name) or next(speed)

    rounds.compare("x", {"a": setting("a"), "b": setting("b")}, 3)
    assert "".join(order) == "ababab"
    assert "| b | 30.0 (2.0 to 100.0) | 2.00 (1.00 to 3.00) |" in capsys.readouterr().out


@pytest.mark.slow
def test_the_rate_of_the_train_command_is_read(tmp_path: Path):
    little_text(tmp_path / "text")
    runs = tmp_path / "runs"
    runs.mkdir()
    own = ("optim.max", "trainer", "decode.average")  # which the benchmark sets
    keys = {key: value for key, value in TINY.items() if not key.startswith(own)}
    rate = rounds.train_command(runs, keys | {"data.path": tmp_path / "text"}, 2, threads=1, clock="wall")
    assert rate() > 0
    with pytest.raises(InputError, match=r"trainer\.log_every"):
        rounds.train_command(runs, {"trainer.log_every": 1}, steps=2, threads=1, clock="wall")
    wrong = rounds.train_command(runs, {"model.heads": 4}, steps=2, threads=1, clock="wall")
    with pytest.raises(InputError, match=r"model\.heads"):
        wrong()


def test_without_positions_the_order_of_the_source_does_not_matter(tmp_path, monkeypatch, capsys):
    _, trial = train(tmp_path / "runs", {"model.position": "ablations.no_position.NoPosition"})
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["word_order.py", str(trial.path)])
    word_order.main()
    as_it_is, in_random_order, of_the_next = (line.rpartition(" ")[2] for line in capsys.readouterr().out.splitlines())
    assert as_it_is == in_random_order == f"{trial.result().metrics['val/loss']:.2f}"
    assert float(of_the_next) > 0


def report_of_gpu(monkeypatch, folder, *words):
    monkeypatch.setattr(sys, "argv", ["gpu.py", f"--out={folder}", "--steps=1", *words])
    gpu.main()
    rows = json.loads((folder / "gpu.json").read_text())["rows"]
    table = (folder / "gpu.md").read_text()
    assert all(f"| {row['model']} | {row['how']} |" in table for row in rows)
    return {(row["model"], row["how"]): row for row in rows}


@pytest.mark.slow
def test_the_benchmark_of_a_gpu_runs_without_one_as_far_as_it_can(monkeypatch, tmp_path, capsys):
    rows = report_of_gpu(monkeypatch, tmp_path, "--models=demo,multi30k")
    assert not any("error" in row for row in rows.values()), rows
    assert {how for _, how in rows} == {"eager", "2 at once"} and all(row["tokens_per_s"] > 0 for row in rows.values())


@pytest.mark.slow
def test_a_row_of_the_benchmark_that_fails_names_its_error_and_the_others_come(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu, "shared", None)
    rows = report_of_gpu(monkeypatch, tmp_path, "--models=demo")
    assert [how for _, how in rows] == ["eager", "2 at once"]
    assert "TypeError" in rows["demo", "2 at once"]["error"] and "error" not in rows["demo", "eager"]


def test_the_slots_and_laws_of_slots_md_are_the_types_and_the_functions_that_test_them():
    page = catalogue.SLOTS.read_text(encoding="utf-8")
    written = catalogue.written(catalogue.SLOTS, catalogue.slots(), catalogue.laws())
    check_names(page.splitlines(), written.splitlines(), MADE_BY)
    assert page == written, MADE_BY


@pytest.mark.slow  # it reads every shipped table
def test_the_catalogue_is_that_of_the_files_and_of_the_tables():
    page = catalogue.README.read_text(encoding="utf-8")
    written = catalogue.written(catalogue.README, catalogue.catalogue())
    check_names(page.splitlines(), written.splitlines(), MADE_BY)
    assert page == written, MADE_BY
    files = [path.name for path in (ROOT / "ablations").glob("[!_]*.py")]
    listed = [file for file in files if f"({file})" in page]
    check_names(listed, files, "derive a class of the file from what a slot takes, or give its constructor `site`")
