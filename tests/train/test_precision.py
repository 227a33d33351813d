"""float32 stays float32."""

import tiny_trials
import torch

from transformer_pl.api import load_trial
from transformer_pl.complexity import measure
from transformer_pl.config.levels import resolve


def test_every_command_that_computes_keeps_float32_in_float32(tmp_path):
    """Also where something else has let a GPU round it to TF32, so that a trial is translated as it was evaluated."""

    def computes(run):
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        try:
            run()
            return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        finally:
            torch.set_float32_matmul_precision("highest")

    assert computes(lambda: tiny_trials.train(tmp_path / "runs", {})) == ("highest", False)
    (folder,) = (tmp_path / "runs/trials").iterdir()
    assert computes(lambda: load_trial(folder).translate(["ba bo"])) == ("highest", False)
    assert computes(lambda: measure(resolve([]), [8], "cpu")) == ("highest", False)
