"""The sources of a trial's components: what is translated with them after they were edited, and where they are kept."""

import json
from pathlib import Path

import pytest
import tiny_trials
import yaml
from forked import command
from helpers import little_text, read_back

from transformer_pl.trials.trial import Trial

SIGN = "class Sign(FeedForward):\n    def forward(self, x):\n        return super().forward(x) * 1.0\n"
FLIPPED = SIGN.replace("* 1.0", "* -30.0")
ROW = "model.ffn=mine.Sign"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with mine.py, and a trial that was trained with it, W&B offline."""
    folder = tmp_path_factory.mktemp("kept")
    (folder / "text").mkdir()
    little_text(folder / "text", 300, 8, 6)
    (folder / "mine.py").write_text("from transformer_pl.model import FeedForward\n\n\n" + SIGN)
    learns = {"data.path": str(folder / "text"), "optim.max_steps": 40, "trainer.val_every": 20}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(tiny_trials.TINY | learns))
    words = [f"--scale={folder / 'tiny.yaml'}", f"--variant={ROW}", f"--runs={folder / 'runs'}"]
    done = command("train", *words, WANDB_MODE="offline", PYTHONPATH=f"{folder}")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def edited(trained):
    """The folder, after mine.py was edited."""
    files = [trained / "mine.py", trial_of(trained).sources / "mine.py"]
    before = [file.read_text() for file in files]
    files[0].write_text(before[0].replace(SIGN, FLIPPED))
    yield trained
    for file, text in zip(files, before, strict=True):
        file.write_text(text)


def trial_of(folder: Path) -> Trial:
    (path,) = (folder / "runs" / "trials").iterdir()
    return Trial(path)


def translate(folder: Path) -> str:
    trial = trial_of(folder)
    source = folder / "text" / "val.en"
    done = command("translate", trial.folder, source, PYTHONPATH=f"{folder}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_translate_runs_what_was_trained(trained, edited):
    kept = "".join(f"{line}\n" for line in trial_of(trained).hypotheses("val"))
    assert translate(edited) == kept
    (trial_of(edited).sources / "mine.py").write_text((edited / "mine.py").read_text())
    assert translate(edited) != kept, "the edit must change translations, or this test shows nothing"


def test_w_and_b_has_the_sources(trained):
    (run,) = trial_of(trained).folder.glob("wandb/offline-run-*")
    records = [json.loads(line) for line in read_back(run).splitlines()]
    saved = [file["path"] for record in records if record["type"] == "files" for file in record["files"]["files"]]
    assert "sources/mine.py" in saved
    assert (run / "files" / "sources" / "mine.py").read_text().endswith(SIGN)
    assert "Symlinked" not in trial_of(trained).log.read_text()
