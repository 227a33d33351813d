"""Table 1: what a layer costs as its sequence grows, and the command that measures it."""

import csv
import subprocess
import sys

import pytest
import torch
from forked import command
from helpers import ROOT
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from transformer_pl.complexity import LENGTHS, main
from transformer_pl.components import build
from transformer_pl.config import sizes
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.levels import Level, resolve
from transformer_pl.model import Mask
from transformer_pl.reporting import table_1
from transformer_pl.reporting.table_1 import growth, measure
from transformer_pl.runtime.errors import InputError

PARTS = {
    "attention": [
        "transformer_pl.model.ScaledDotProductAttention",
        *("ablations.local_attention.LocalAttention", "ablations.linear_attention.LinearAttention"),
    ],
    "self_attention": ["ablations.recurrent_layer.RecurrentLayer", "ablations.convolutional_layer.ConvolutionalLayer"],
}


class Largest(TorchDispatchMode):
    """Remembers the numbers of the largest tensor that anything has made."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return made


def takes(slot, path, n):
    """The operations of a component alone over n positions, and its largest tensor; an attention has no projections."""
    model = sizes(resolve([Level("test", {"model.d_model": 32, "model.h": 2, f"model.{slot}": path})]).model, 1)
    with torch.device("meta"), FlopCounterMode(display=False) as counter, Largest() as largest:
        layer = build(getattr(model, slot), model, "encoder")
        if slot == "attention":
            layer(*(torch.randn(1, 2, n, 16) for _ in "QKV"), Mask())
        else:
            layer(torch.randn(1, n, 32), Mask())
    return counter.get_total_flops(), largest.numbers, layer.table_1[0]


@pytest.mark.parametrize(("slot", "path"), [(slot, path) for slot, paths in PARTS.items() for path in paths])
def test_a_component_grows_as_its_table_1_says(slot, path):
    """Doubling n doubles the operations and memory of order n, and makes those of order n² four times as large."""
    n = 512 if slot == "attention" else 128  # a layer in place of self-attention has no n², and an LSTM takes long
    flops, largest, order = takes(slot, path, n)
    more_flops, more_largest, _ = takes(slot, path, 2 * n)
    times = 4 if "n²" in order else 2
    assert more_flops == pytest.approx(times * flops, rel=0.01)
    assert more_largest <= 2.01 * largest if times == 2 else more_largest > 3 * largest


@pytest.mark.parametrize(
    ("seconds", "exponent", "quadratic"),
    [
        (lambda n: 3e-6 * n, 1, 0),
        (lambda n: 2e-9 * n**2, 2, 1),
        (lambda n: 1e-9 * n**2 + 1e-9 * 4096 * n, None, 1 / 2),
        (lambda n: 5e-4, 0, 0),
    ],
)
def test_growth_finds_the_exponent_behind_the_times(seconds, exponent, quadratic):
    found = growth({n: seconds(n) for n in LENGTHS})
    if exponent is None:
        assert 1 < found.exponent < 2 and found.error > 0
    else:
        assert found.exponent == pytest.approx(exponent, abs=1e-9) and found.error == pytest.approx(0, abs=1e-6)
    assert found.quadratic == pytest.approx(quadratic, abs=1e-6)


def test_layers_of_one_class_have_the_names_of_their_rows_and_equal_ones_are_timed_once():
    keys = {"base": {}, "h=1": {"model.h": 1}, "p_drop=0": {"model.p_drop": 0.0}}
    rows = {
        row: resolve([Level("test", {"model.d_model": 8, "model.h": 2} | printed)]) for row, printed in keys.items()
    }
    assert [layer.name for layer in measure(rows, [4], "cpu")] == ["base", "h=1"]
    rows = {row: config for row, config in rows.items() if row != "h=1"}
    assert [layer.name for layer in measure(rows, [4], "cpu")] == ["ScaledDotProductAttention"]


def test_a_computation_too_large_for_memory_is_skipped_and_not_killed():
    """In a process of its own, which may use a hundredth of the free memory."""
    program = (
        "import torch; from transformer_pl.runtime import memory;"
        "from transformer_pl.reporting.table_1 import _seconds;"
        "memory.limit_memory(0.01); print(_seconds(lambda: torch.ones(4 << 30)), _seconds(lambda: torch.ones(4)) > 0)"
    )
    completed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert completed.stdout == "None True\n", completed.stderr


def test_the_command_times_every_layer_of_a_sweep(tmp_path, monkeypatch):
    monkeypatch.setattr(table_1, "RUN_S", 0.01)  # how long each is measured
    layers = str(ROOT / "sweeps" / "layers.yaml")
    assert main([layers, "--scale", "demo", "--n", "16,8,512", "--runs", str(tmp_path)]) == 0
    folder = tmp_path / "complexity" / "layers"
    assert {path.suffix for path in folder.glob("complexity.*")} == {".md", ".csv", ".svg", ".pdf", ".png"}
    with (folder / "complexity.csv").open() as file:
        records = list(csv.DictReader(file))
    rows = len(read_sweep(ROOT / "sweeps" / "layers.yaml").rows)
    assert len(records) == rows * 2 * 3 and all(float(record["seconds"]) > 0 for record in records)
    text = (folder / "complexity.md").read_text()
    for order in ("O(n² d)", "O(n d²)", "O(k n d²)", "O(r n d)", "LocalAttention window=8", "d = 64"):
        assert order in text
    assert (folder / "complexity.svg").read_text().count("LocalAttention window=8") == 1


def test_tables_of_any_name_lie_in_their_folder(tmp_path):
    """A name that would lead elsewhere is refused before anything is measured; another names a folder."""
    file = tmp_path / "layers.yaml"
    parameters = "program: p.py\nmethod: grid\nparameters: {model.d_model: {value: 16}, model.h: {value: 2}}\n"
    for name in ("../../up", "..", str(tmp_path / "up")):
        file.write_text(f"name: {name}\n{parameters}")
        with pytest.raises(InputError, match="must be a plain name"):
            main([str(file), "--scale", "demo", "--n", "4", "--runs", str(tmp_path / "runs")])
        assert list(tmp_path.iterdir()) == [file]
    file.write_text(f"name: ~ of mine, a&b\n{parameters}")
    assert main([str(file), "--scale", "demo", "--n", "4,8", "--runs", str(tmp_path / "runs")]) == 0
    assert sorted(tmp_path.iterdir()) == [file, tmp_path / "runs"]
    (folder,) = (tmp_path / "runs" / "complexity").iterdir()
    assert folder.name.startswith("-of-mine-a-b-") and (folder / "complexity.md").exists()


def test_a_component_that_does_not_run_is_one_message(tmp_path, module):
    module(
        "from transformer_pl.model import FeedForward\n"
        "class Fails(FeedForward):\n    def forward(self, x):\n        raise ValueError('no')\n"
    )
    with pytest.raises(InputError, match=r"model\.ffn = stranger\.Fails .* must run, but fails at .*no"):
        main(["layers", "--set", "model.ffn=stranger.Fails", "--scale", "demo", "--n", "4", "--runs", str(tmp_path)])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--n", "8,x"], ["--n", "'8,x'", "32,64"]),
        (["--n", "0"], ["--n", "'0'"]),
        pytest.param(
            *(["--device", "cuda"], ["--device cuda", "leave it out"]),
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU"),
        ),
    ],
)
def test_a_wrong_word_is_reported(tmp_path, argv, words):
    completed = command("complexity", "sweeps/layers.yaml", "--runs", tmp_path / "runs", *argv)
    assert (
        completed.returncode == 2
        and all(word in completed.stderr for word in words)
        and not (tmp_path / "runs").exists()
    )
