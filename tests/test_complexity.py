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

from transformer_pl.complexity import LENGTHS, growth
from transformer_pl.components import build
from transformer_pl.config import sizes
from transformer_pl.levels import Level, resolve
from transformer_pl.model import Mask

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


@pytest.mark.parametrize("exponent", [1, 1.5, 2])
def test_growth_finds_the_exponent_behind_the_times(exponent):
    """Below 512, other costs prevail."""
    found, error = growth({n: 3e-6 * n**exponent if n >= 512 else 1.0 for n in LENGTHS})
    assert found == pytest.approx(exponent, abs=1e-9) and error == pytest.approx(0, abs=1e-6)
    assert growth({n: 1.0 for n in LENGTHS if n <= 1024}) is None


def test_a_length_too_large_for_memory_is_left_out():
    """In a process of its own, which may use 8 GiB."""
    program = (
        "import resource; from transformer_pl.complexity import measure;"
        "from transformer_pl.levels import Level, resolve; import torch;"
        "config = resolve([Level('test', {'model.d_model': 8, 'model.h': 2})]);"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33));"
        "print(*measure('base', config, [4, 1 << 28], 'cpu').seconds)"
    )
    completed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert completed.stdout == "4\n", completed.stderr


def test_the_command_times_every_layer_of_a_sweep(tmp_path):
    file, runs = tmp_path / "layers.yaml", tmp_path / "runs"
    local = "model.attention=ablations.local_attention.LocalAttention model.attention.window=8"
    convolution = "model.self_attention=ablations.convolutional_layer.ConvolutionalLayer"
    file.write_text(
        "name: ~ of mine, a&b\nmethod: grid\nparameters: {model.d_model: {value: 128}, model.h: {value: 2}, "
        f'variant: {{values: [base, "{local}", {convolution}]}}}}\n'
    )
    completed = command("complexity", file, "--scale", "demo", "--n", "16,8", "--runs", runs)
    assert completed.returncode == 0, completed.stderr
    assert sorted(tmp_path.iterdir()) == [file, runs]
    (folder,) = (runs / "complexity").iterdir()
    assert {path.suffix for path in folder.glob("complexity.*")} == {".md", ".csv", ".svg", ".pdf", ".png"}
    with (folder / "complexity.csv").open() as records:
        lines = list(csv.DictReader(records))
    assert len(lines) == 3 * 2 and all(float(line["seconds"]) > 0 for line in lines)
    text = (folder / "complexity.md").read_text()
    assert all(order in text for order in ("O(n² d)", "O(k n d²)", "O(r n d)")) and "ms, n=16" in text


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--n", "8,x"], ["--n", "'8,x'", "32,64"]),
        (["--n", "0"], ["--n", "'0'"]),
        pytest.param(
            *(["--device", "cuda"], ["--device cuda"]),
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU"),
        ),
    ],
)
def test_a_wrong_word_is_reported(tmp_path, argv, words):
    completed = command("complexity", "sweeps/layers.yaml", "--runs", tmp_path / "runs", *argv)
    assert completed.returncode == 2 and all(word in completed.stderr for word in words)
    assert not (tmp_path / "runs").exists()
