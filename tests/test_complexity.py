"""Table 1: what a layer costs as its sequence grows, and the command that measures it."""

import csv
import subprocess
import sys

import pytest
import torch
from forked import command
from helpers import ROOT
from torch.utils.flop_counter import FlopCounterMode

from transformer_pl.complexity import LENGTHS, growth, read_options
from transformer_pl.config import sizes
from transformer_pl.config.components import build
from transformer_pl.config.levels import Level, resolve
from transformer_pl.model import Mask

PARTS = [
    *[
        ("attention", f"ablations.{path}")
        for path in ("local_attention.LocalAttention", "linear_attention.LinearAttention")
    ],
    ("attention", "transformer_pl.model.ScaledDotProductAttention"),
    ("self_attention", "ablations.recurrent_layer.RecurrentLayer"),
    ("self_attention", "ablations.convolutional_layer.ConvolutionalLayer"),
]


def operations(slot, path, n):
    """The operations of a component alone over n positions, and its order; an attention has no projections."""
    model = sizes(resolve([Level("test", {"model.d_model": 32, "model.h": 2, f"model.{slot}": path})]).model, 1)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        layer = build(getattr(model, slot), model, "encoder")
        x = [torch.randn(1, 2, n, 16)] * 3 if slot == "attention" else [torch.randn(1, n, 32)]
        layer(*x, Mask())
    return counter.get_total_flops(), layer.table_1[0]


@pytest.mark.parametrize(("slot", "path"), PARTS)
def test_a_component_grows_as_its_table_1_says(slot, path):
    """Doubling n doubles the operations of order n, and makes those of order n² four times as large."""
    n = 512 if slot == "attention" else 16  # a layer in place of self-attention has no n², and an LSTM takes long
    (flops, order), (more, _) = operations(slot, path, n), operations(slot, path, 2 * n)
    assert more == pytest.approx((4 if "n²" in order else 2) * flops, rel=0.01)


@pytest.mark.parametrize("exponent", [1, 1.5, 2])
def test_growth_finds_the_exponent_behind_the_times(exponent):
    """Below 512, other costs prevail."""
    found, error = growth({n: 3e-6 * n**exponent if n >= 512 else 1.0 for n in LENGTHS})
    assert found == pytest.approx(exponent, abs=1e-9) and error == pytest.approx(0, abs=1e-6)
    assert growth({n: 1.0 for n in LENGTHS if n <= 1024}) is None


@pytest.mark.slow  # a new interpreter imports torch
def test_a_length_too_large_for_memory_is_left_out():
    """In a process of its own, which may use 8 GiB."""
    program = (
        "import resource; from transformer_pl.complexity import measure;"
        "from transformer_pl.config.levels import Level, resolve; import torch;"
        "config = resolve([Level('test', {'model.d_model': 8, 'model.h': 2})]);"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33));"
        "print(*measure(config, [4, 1 << 28], 'cpu')[1])"
    )
    completed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert completed.stdout == "4\n", completed.stderr


@pytest.mark.slow  # 7 s
def test_the_command_times_every_layer_of_a_sweep(tmp_path):
    """The command of tests/benchmarks/README.md, on layers that are quick."""
    file, runs = tmp_path / "layers.yaml", tmp_path / "runs"
    local = "model.attention=ablations.local_attention.LocalAttention model.attention.window=8"
    convolution = "model.self_attention=ablations.convolutional_layer.ConvolutionalLayer"
    file.write_text(
        "name: layers-of-mine\nmethod: grid\nparameters: {model.d_model: {value: 128}, model.h: {value: 2}, "
        f'variant: {{values: [base, "{local}", {convolution}]}}}}\n'
    )
    completed = command("complexity", file, "--scale", "demo", "--n", "16,8", "--runs", runs)
    assert completed.returncode == 0, completed.stderr
    assert sorted(tmp_path.iterdir()) == [file, runs]
    (folder,) = (runs / "complexity").iterdir()
    assert {path.suffix for path in folder.glob("complexity.*")} == {".md", ".csv"}
    with (folder / "complexity.csv").open() as records:
        lines = list(csv.DictReader(records))
    assert len(lines) == 3 * 2 and all(float(line["seconds"]) > 0 for line in lines)
    text = (folder / "complexity.md").read_text()
    assert all(order in text for order in ("O(n² d)", "O(k n d²)", "O(r n d)")) and "ms, n=16" in text


def test_it_is_of_the_layers_of_table_1_unless_another_file_is_named():
    assert read_options([]).file == read_options(["layers"]).file != read_options(["attention"]).file


@pytest.mark.parametrize("argv", [["--n", "8,x"], ["--n", "0"]])
def test_a_wrong_word_is_reported(tmp_path, argv):
    completed = command("complexity", "sweeps/layers.yaml", "--runs", tmp_path / "runs", *argv)
    assert completed.returncode == 2 and argv[0] in completed.stderr
    assert not (tmp_path / "runs").exists()
