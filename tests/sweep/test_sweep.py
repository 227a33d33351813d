"""The sweep command on the smallest sweep, as a user runs it: from the file to the table, and a second time."""

import csv
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib

import forked
import pytest
import yaml
from grids import small_grid
from helpers import ROOT, command, read_back, write_sweep
from tiny_trials import ended

from transformer_pl.report import __main__ as report
from transformer_pl.sweep import __main__ as sweep
from transformer_pl.trials.trial_folder import TrialFolder

SMOKE = ROOT / "sweeps" / "smoke.yaml"
FILES = ("config.yaml", "status.json", "env.json", "metrics.jsonl", "result.json", "weights.safetensors", "log.txt")
FILES += ("hyp.val.txt", "hyp.test.txt", "scores.val.jsonl", "scores.test.jsonl")


def results(runs):
    return {
        path.parent.name: TrialFolder(path.parent).result() for path in sorted((runs / "trials").glob("*/result.json"))
    }


def test_every_trial_leaves_its_files_and_the_sweep_its_table(smoke):
    runs, printed = smoke
    assert printed.returncode == 0, printed.stdout + printed.stderr
    assert len(results(runs)) == 4
    for trial in (runs / "trials").iterdir():
        assert {path.name for path in trial.iterdir()} >= {*FILES, "wandb"}
        assert not (trial / "checkpoints").exists()
        assert json.loads((trial / "status.json").read_text())["state"] == "done"
        assert all(TrialFolder(trial).machine().values())
    folder = runs / "sweeps" / "smoke@demo"
    files = {"plan.json", "results.csv", "table.md", "table.tex", "report.html"}
    assert {path.name for path in folder.iterdir()} == files | {"figures", "lock", "report", "wandb"}
    assert len(list(csv.DictReader((folder / "results.csv").read_text().splitlines()))) == 4
    assert "wandb sync" in printed.stderr and f"wandb leet {folder / 'wandb'}\n" in printed.stdout
    linked = {link.resolve().parents[1] for link in (folder / "wandb").iterdir()}  # leet opens on their curves
    assert linked == {trial.resolve() for trial in (runs / "trials").iterdir()}


def test_a_result_has_its_config_and_agrees_with_its_sentences(smoke):
    for folder, result in results(smoke[0]).items():
        trial = smoke[0] / "trials" / folder
        assert result.config.items() >= yaml.safe_load((trial / "config.yaml").read_text()).items()
        assert result.config["effective.d_model"] == 32 and result.config["model.d_model"] == 512
        assert result.steps == 20 and result.params > 0 and result.flops > 0 and result.wall_s > 0
        assert result.signature.startswith("nrefs:1|case:mixed")
        assert result.version == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        for split in ("val", "test"):
            rows = [json.loads(line) for line in (trial / f"scores.{split}.jsonl").read_text().splitlines()]
            nll, pieces = sum(row["nll"] for row in rows), sum(row["pieces"] for row in rows)
            assert math.exp(nll / pieces) == pytest.approx(result.metrics[f"{split}/ppl"])
            assert len(rows) == len((trial / f"hyp.{split}.txt").read_text().splitlines()) == 500
            assert all(len(row["bleu"]) == 10 for row in rows)


def test_what_is_tested_is_fixed_when_training_starts(smoke, tmp_path):
    """A later command with other rows or seeds does not change it, and the table says what was changed."""
    runs = shutil.copytree(smoke[0], tmp_path / "runs")
    text, file = (ROOT / "sweeps" / "smoke.yaml").read_text(), tmp_path / "smoke.yaml"
    file.write_text(text.replace("model.h=4, ", ""))
    before = json.loads((runs / "sweeps" / "smoke@demo" / "plan.json").read_text())
    fewer = forked.command("sweep", file, "--runs", runs)
    assert fewer.returncode == 0 and "left out rows: h=4" in " ".join(fewer.stdout.split())
    assert "Changed" not in smoke[1].stdout
    after = json.loads((runs / "sweeps" / "smoke@demo" / "plan.json").read_text())
    assert len(after["trials"]) == 3 and before["tested"] == after["tested"] == {
        "rows": ["base", "h=4", "h=1 p_drop=0.0", "position=NoPosition"],
        "seeds": [1],
        "metric": ["val/bleu"],
    }
    _, more, _ = ended(report.main, SMOKE, "--runs", runs, "--seeds", "1,2", "--format", "md")
    assert "added seeds: 2" in more and "left out" not in more


def test_a_plan_says_which_difference_so_many_seeds_would_find(tmp_path):
    """More seeds find a smaller one. The seeds of base alone do not tell how those of other rows spread."""

    def plan(*options):
        words = [ROOT / "sweeps" / "table3_A.yaml", "--plan", "--runs", tmp_path, *options]
        _, printed, _ = ended(sweep.main, *words)
        return re.findall(r"a difference of ([\d.]+) BLEU", printed)

    ([few], [many]) = plan(), plan("--seeds", "1,2,3,4,5,6")
    assert 0.9 < float(many) < float(few) < 4 and plan("--seeds", "1") == plan("--set", "optim.max_steps=20") == []
    with tarfile.open(ROOT / "sweeps" / "results" / "demo.tar.xz") as archive:
        of_base = [one for one in archive if "/base-s" in one.name]
        archive.extractall(tmp_path, of_base, filter="data")
        assert len(results(tmp_path)) == sum(one.name.endswith("/result.json") for one in of_base) > 4
        assert plan() == [few]
        archive.extractall(tmp_path, filter="data")
    assert plan() != [few]


def test_the_same_command_trains_nothing_again(smoke):
    runs, _ = smoke
    before = {path: path.stat().st_mtime_ns for path in (runs / "trials").glob("*/*") if path.name != "lock"}
    again = forked.command("sweep", "sweeps/smoke.yaml", "--runs", runs)
    assert again.returncode == 0 and "0 to train" in again.stdout
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_plan_to_train_all_again_counts_the_time_of_all(smoke):
    _, planned, _ = ended(sweep.main, SMOKE, "--runs", smoke[0], "--rerun", "--plan")
    (time,) = [line for line in planned.splitlines() if line.startswith("time: ")]
    assert "4 to train" in planned and "0:00" not in time.split()


def test_report_prints_the_table_the_sweep_wrote(smoke):
    """Also in a new interpreter whose outputs have an encoding without Δ."""
    runs, _ = smoke
    for form, name in (("tex", "table.tex"), ("csv", "results.csv"), ("md", "table.md")):
        words, written = [SMOKE, "--runs", runs, "--format", form], runs / "sweeps" / "smoke@demo" / name
        assert ended(report.main, *words)[1] == written.read_text()
    completed = command("report", *words, PYTHONIOENCODING="latin-1")
    assert completed.returncode == 0 and completed.stdout == written.read_text()


@pytest.mark.parametrize("trials", [[], ["--trials"]])
def test_the_records_of_several_files_are_one_table(smoke, tmp_path, trials):
    runs, other = smoke[0], tmp_path / "other.yaml"
    other.write_text((ROOT / "sweeps" / "smoke.yaml").read_text().replace("name: smoke", "name: other"))

    def printed(form, *files):
        return ended(report.main, *files, "--runs", runs, "--format", form, *trials)[1]

    alone, both = (json.loads(printed("json", *files))["rows"] for files in ([other], [SMOKE, other]))
    assert len(both) == 2 * len(alone) == 2 * 4 and alone[0].items() <= both[4].items()
    tables = [next(iter(record.values())) for record in both]  # or sweeps
    assert tables == [tables[0]] * 4 + [tables[4]] * 4 and "smoke" in tables[0] and "other" in tables[4]
    assert len(list(csv.DictReader(printed("csv", SMOKE, other).splitlines()))) == 2 * 4


def test_the_offline_wandb_runs_hold_what_was_logged(smoke):
    """As that of a trial tells, which W&B's own reader reads."""
    folder, result = next(iter(results(smoke[0]).items()))
    (run,) = (smoke[0] / "trials" / folder / "wandb").glob("offline-run-*")
    record = json.loads(read_back(run, "--summary"))
    assert record["summary"]["val/bleu"] == pytest.approx(result.metrics["val/bleu"])
    assert record["summary"]["val/ppl"] == pytest.approx(result.metrics["val/ppl"])
    assert record["config"]["effective.d_model"] == 32 and record["config"]["sweep"] == "smoke@demo"
    assert record["config"]["row"] in ("base", "h=4", "h=1 p_drop=0.0", "position=NoPosition")
    (about,) = [json.loads(line)["run"] for line in read_back(run).splitlines() if '"type":"run"' in line]
    assert (about["project"], about["run_group"], about["job_type"]) == ("transformer-pl", "smoke", "train")
    assert about["display_name"] == f"{record['config']['row']} s1"
    (table,) = run.glob("files/media/table/translations*.json")
    table = json.loads(table.read_text())
    assert table["columns"] == ["source", "reference", "translation"] and len(table["data"]) == 20


def test_a_sweep_ends_with_a_wandb_run_that_has_its_table_and_figures(smoke, tmp_path):
    """And `report --wandb` replaces it by another, under the same id, unless W&B is disabled."""
    runs = shutil.copytree(smoke[0], tmp_path / "runs")
    folder = runs / "sweeps" / "smoke@demo"
    (run,) = (folder / "report" / "wandb").glob("offline-run-*")
    (about,) = [json.loads(line)["run"] for line in read_back(run).splitlines() if '"type":"run"' in line]
    assert (about["project"], about["run_group"], about["job_type"]) == ("transformer-pl", "smoke", "report")
    record = json.loads(read_back(run, "--summary"))
    assert record["config"] == {"sweep": "smoke@demo"} | {"command": record["config"]["command"]}
    assert "sweeps/smoke.yaml" in record["config"]["command"] and str(runs.parent) not in json.dumps(record["config"])
    assert record["summary"]["found"] and record["summary"]["found"] in (folder / "table.md").read_text()
    (page,) = run.glob("files/media/html/page*.html")
    assert page.read_text() == (folder / "report.html").read_text()
    (table,) = (json.loads(one.read_text()) for one in run.glob("files/media/table/table*.json"))
    rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    for row, values in zip(rows, table["data"], strict=True):
        sent = dict(zip(table["columns"], values, strict=True))
        assert {name: "" if value is None else str(value) for name, value in sent.items()}.items() <= row.items()
    assert len(list(run.glob("files/media/images/*.png"))) == len(list((folder / "figures").glob("*.png"))) > 0
    for mode, count in (("disabled", 1), ("offline", 2)):
        again = command("report", "sweeps/smoke.yaml", "--runs", runs, "--wandb", "--format", "csv", WANDB_MODE=mode)
        assert again.returncode == 0 and again.stdout == (folder / "results.csv").read_text()
        ids = [path.name.split("-", 3)[3] for path in (folder / "report" / "wandb").glob("offline-run-*")]
        assert ids == [about["run_id"]] * count


@pytest.mark.parametrize(("file", "scale"), [("table3_A", "multi30k"), ("table3_A", "wmt14"), ("search_size", "demo")])
def test_a_report_without_trials_names_the_command_that_trains_them(smoke, tmp_path, file, scale):
    """And how to read those that ship, without asking for the text; also where there are trials of another text."""
    shutil.copytree(smoke[0] / "trials", tmp_path / "runs" / "trials")
    for runs in ("my runs", "runs"):
        words = ["--scale", scale, "--runs", tmp_path / runs]
        code, out, err = ended(report.main, ROOT / "sweeps" / f"{file}.yaml", *words)
        assert code == 2 and not out and "transformer_pl.sweep" in err and "data.hub" not in err
        assert ("--shipped" in err) == (scale == "multi30k")
        if "--shipped" in err:
            named = shlex.split(re.search(r"transformer_pl\.report (.*?);", err)[1])
            assert ended(report.main, *named)[0] == 0
    copied = shutil.copy(ROOT / "sweeps" / "table3_A.yaml", tmp_path)  # of which none ship
    assert "--shipped" not in ended(report.main, copied, *words)[2]
    assert not (tmp_path / "my runs").exists()


def test_a_report_of_a_search_has_the_validation_set_alone(tmp_path):
    code, _, err = ended(report.main, ROOT / "sweeps" / "search_size.yaml", "--shipped", "--split", "test")
    assert code == 2 and "--split" in err


def test_a_plan_without_base_forecasts_no_difference_from_it(tmp_path):
    words = ["--plan", "--runs", tmp_path / "runs"]
    for variants, expected in ((["base", "model.h=4", "model.h=2"], True), (["model.h=4", "model.h=2"], False)):
        file = write_sweep(tmp_path / "a.yaml", {"variant": variants, "seed": [1, 2, 3]})
        code, out, _ = ended(sweep.main, file, *words)
        assert code == 0 and ("--base-seeds" in out) == expected


def test_a_report_names_what_is_missing_and_the_options_of_other_tables(smoke, tmp_path):
    runs = tmp_path / "runs"
    shutil.copytree(smoke[0], runs, ignore=shutil.ignore_patterns("wandb"))
    next(path for path in runs.glob("trials/*/result.json") if "h=4" in path.parent.name).unlink()
    (runs / "sweeps" / "smoke@demo-abc").mkdir()
    (runs / "sweeps" / "smoke@demo-abc" / "plan.json").write_text('{"differs": "--set optim.warmup=7"}')
    code, out, err = ended(report.main, SMOKE, "--runs", runs, "--format", "csv")
    assert code == 0 and out.startswith("name,")
    assert "1 of 4 trials" in err and "--set optim.warmup=7" in err
    code, _, err = ended(report.main, SMOKE, "--runs", runs, "--seeds", "77")
    assert code == 2 and "--set optim.warmup=7" in err


@pytest.mark.parametrize(("words", "trials"), [("table3_A --seeds 1", 5), ("search_size", 12)])
def test_the_plan_starts_nothing_and_imports_nothing_slow(tmp_path, words, trials):
    slow = ("torch", "lightning", "scipy.stats", "matplotlib", "sacrebleu", "datasets")
    program = (
        "import sys; from transformer_pl.sweep.__main__ import main; main(sys.argv[1:]); "
        f"print('imported:', *[name for name in {slow} if name in sys.modules])"
    )
    argv = [sys.executable, "-c", program, *words.split(), "--plan", "--runs", str(tmp_path / "runs")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert f"{trials} trials left" in done.stdout and "1,200 training pairs" in done.stdout, done.stderr
    assert done.stdout.endswith("imported:\n") and not (tmp_path / "runs").exists()


BROKEN = """
import os
from transformer_pl.model import SinusoidalPosition


class Broken(SinusoidalPosition):
    def __init__(self, config, site, how: str):
        super().__init__(config, site)
        self.calls, self.end = 0, {"fails": (1).__truediv__, "vanishes": os._exit}[how]

    def forward(self, x, start=0):
        self.calls += self.training
        if self.calls > 15 and "REPAIRED" not in os.environ:
            self.end(0)
        return x
"""


@pytest.fixture
def failing(tmp_path):
    """A sweep with base and two rows whose component fails at the 16th training step.

    It raises an error, or ends its process with exit code 0 by os._exit, which Python cannot catch.
    The checks do not see it: they take fewer steps.
    """
    (tmp_path / "broken_component.py").write_text(BROKEN)
    broken = [f"model.position=broken_component.Broken model.position.how={how}" for how in ("fails", "vanishes")]
    small_grid(tmp_path, ("base", *broken), seeds=(1,), optim__max_steps=20)
    return tmp_path


def test_a_failed_trial_is_named_with_its_log_the_others_run_on_and_the_same_command_tries_it_again(failing):
    words = ["sweep", failing / "grid.yaml", "--runs", failing / "runs"]
    completed = forked.command(*words, PYTHONPATH=str(failing), WANDB_MODE="disabled")
    assert completed.returncode == 1
    assert any("line 14" in line and "ZeroDivisionError" in line for line in completed.stdout.splitlines())
    assert sum(line.startswith("failed: ") and "log.txt" in line for line in completed.stdout.splitlines()) == 2
    with (failing / "runs" / "sweeps" / "grid@demo" / "results.csv").open() as file:
        assert [row["failed"] for row in csv.DictReader(file)] == ["0", "1", "1"]
    listed = forked.command("sweep", "--list", "--runs", failing / "runs").stdout
    assert (listed.count(" done "), listed.count(" failed ")) == (1, 2)
    assert len(results(failing / "runs")) == 1
    again = forked.command(*words, PYTHONPATH=str(failing), WANDB_MODE="disabled", REPAIRED="yes")
    assert again.returncode == 0 and len(results(failing / "runs")) == 3, again.stdout
