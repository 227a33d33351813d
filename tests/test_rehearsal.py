"""The training of the paper's size, rehearsed in small: the commands for 8 GPUs, with two processes on a CPU."""

import json
import os
import signal
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forked import command, running
from helpers import little_text, wait_for

# As tests/benchmarks/README.md has it for 8 GPUs, but for the sizes
REAL = ["--set", "trainer.devices=2", "trainer.strategy=ddp"]
SMALL = ["trainer.accelerator=cpu", "trainer.threads=1", "trainer.log_every=5", "model.width=1/32", "model.depth=1/3"]
SMALL += ["optim.max_steps=50", "trainer.val_every=5", "data.vocab_size=300", "data.batch_tokens=1000"]
SMALL += ["data.val_count=30", "data.test_count=33", "decode.beam=2", "decode.extra=3"]
SWEEP = """
program: transformer_pl/train.py
name: rehearsal
method: grid
parameters:
  scale: {value: wmt14}
  decode.average: {value: 5}
  seed: {values: [1]}
  variant: {values: [base]}
command: ["${env}", "${interpreter}", "-m", "transformer_pl.train", "${args}"]
"""


def write_corpus(folder: Path) -> None:
    """Made-up pairs as the hub lays out WMT 2014: parquet files with the column `translation`."""
    place = folder / "wmt14" / "de-en"
    place.mkdir(parents=True)
    little_text(folder, 2000, 30, 33)
    for split, name in (("train", "train"), ("val", "validation"), ("test", "test")):
        sides = [(folder / f"{split}.{language}").read_text().splitlines() for language in ("de", "en")]
        pairs = [{"de": de, "en": en} for de, en in zip(*sides, strict=True)]
        pq.write_table(pa.table({"translation": pairs}), place / f"{name}-00000-of-00001.parquet")


@pytest.mark.slow
def test_a_training_of_two_processes_is_killed_continued_averaged_decoded_and_reported(tmp_path):
    pytest.importorskip("sacremoses", reason="sacremoses is not installed: pip install -e '.[wmt]'")
    write_corpus(tmp_path)
    file, runs = tmp_path / "rehearsal.yaml", tmp_path / "runs"
    file.write_text(SWEEP)
    words = [file, *REAL, *SMALL, "--runs", runs]
    folder = {"TRANSFORMER_PL_DATA": str(tmp_path), "WANDB_MODE": "disabled"}

    def validated() -> list[int]:
        """The steps of the validations so far. The result is logged at the last step, too."""
        lines = [line for path in runs.glob("trials/*/metrics.jsonl") for line in path.read_text().splitlines()]
        return list(dict.fromkeys(json.loads(line)["step"] for line in lines if "val/loss" in line))

    with tempfile.NamedTemporaryFile() as printed:
        with running("sweep", *words, output=printed, **folder) as process:
            wait_for(lambda: 20 in validated(), 120)
            os.kill(process.pid, signal.SIGKILL)
        (trial,) = (runs / "trials").iterdir()
        assert not (trial / "result.json").exists(), Path(printed.name).read_text()
        before = (trial / "metrics.jsonl").read_text().splitlines()  # with rates that no other run has
    done = command("sweep", *words, **folder)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((trial / "result.json").read_text())
    assert result["steps"] == 50 and result["config"]["trainer.devices"] == 2
    assert {"val/bleu", "test/bleu", "test/bleu_tokenised"} <= result["metrics"].keys(), result["metrics"]
    assert validated() == list(range(5, 51, 5))
    assert (trial / "metrics.jsonl").read_text().splitlines()[:6] == before[:6], "it has not begun anew"
    assert len((trial / "hyp.test.txt").read_text().splitlines()) == 33
    report = command("report", file, "--runs", runs, *REAL, *SMALL)
    assert report.returncode == 0 and "base" in report.stdout, report.stdout + report.stderr
