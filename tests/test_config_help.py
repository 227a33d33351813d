"""The description of every key: complete, readable, and quick to print."""

import subprocess
import sys

from helpers import ROOT

from transformer_pl.config import KEYS
from transformer_pl.config_help import describe_keys, help_text


def test_every_key_is_described_in_order():
    described = describe_keys()
    assert [key.key for key in described] == list(KEYS)
    assert all(key.description and key.type for key in described)
    by_key = {key.key: key for key in described}
    assert by_key["model.h"].type == "integer from 1" and by_key["model.h"].default == "8"
    assert by_key["model.d_k"].type == "integer from 1 or None"
    assert by_key["model.p_drop"].type == "number from 0 below 1"
    assert by_key["model.ffn"].type == "import path" and by_key["optim.match"].type == "steps | flops"
    assert by_key["seed"].section == "" and by_key["data.batch_tokens"].section == "data"


def test_the_help_names_every_key_below_its_section():
    text = help_text()
    assert all(f"  --{key}  (" in text for key in KEYS)
    assert text.index("optim: ") < text.index("--optim.max_steps") < text.index("data: ") < text.index("--data.path")


def test_the_help_needs_no_torch():
    program = "import sys; from transformer_pl.config_help import help_text; help_text(); print('torch' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert process.stdout == "False\n", process.stderr
