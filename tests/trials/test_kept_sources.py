"""The sources of a trial's components, which are kept with it."""

from pathlib import Path

import pytest
import tiny_trials
import yaml
from forked import command
from helpers import little_text

from transformer_pl.trials.trial_folder import TrialFolder

SIGN = "class Sign(FeedForward):\n    def forward(self, x):\n        return super().forward(x) * 1.0\n"
FLIPPED = SIGN.replace("* 1.0", "* -30.0")
ROW = "model.ffn=mine.Sign"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with mine.py, and a trial that was trained with it."""
    folder = tmp_path_factory.mktemp("kept")
    little_text(folder / "text", 300, 8, 6)
    (folder / "mine.py").write_text("from transformer_pl.model import FeedForward\n\n\n" + SIGN)
    learns = {"data.path": str(folder / "text"), "optim.max_steps": 40, "trainer.val_every": 20}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(tiny_trials.TINY | learns))
    words = [f"--scale={folder / 'tiny.yaml'}", f"--variant={ROW}", f"--runs={folder / 'runs'}"]
    done = command("train", *words, WANDB_MODE="disabled", PYTHONPATH=f"{folder}")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def trial_of(folder: Path) -> TrialFolder:
    (path,) = (folder / "runs" / "trials").iterdir()
    return TrialFolder(path)


def test_a_trial_whose_component_has_changed_is_not_translated_with(trained):
    """The old code can be put back. Nothing that lies beside it in the trial is imported."""
    trial, source = trial_of(trained), trained / "text" / "val.en"
    for name in ("torch.py", "transformer_pl/__init__.py"):
        (trial.sources / name).parent.mkdir(exist_ok=True)
        (trial.sources / name).write_text("raise SystemExit('it is imported')")

    def translate():
        return command("translate", trial.path, source, PYTHONPATH=f"{trained}")

    kept = "".join(f"{line}\n" for line in trial.hypotheses("val"))
    assert translate().stdout == kept
    (trained / "mine.py").write_text((trained / "mine.py").read_text().replace(SIGN, FLIPPED))
    refused = translate()
    assert refused.returncode == 2 and "mine.Sign" in refused.stderr and str(trial.sources) in refused.stderr
    (trained / "mine.py").write_text((trial.sources / "mine.py").read_text())
    assert translate().stdout == kept
