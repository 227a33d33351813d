"""Files that a power cut or a failing disk has damaged: each is named, its numbers are not used, all else goes on."""

import hashlib
import io
import json
import math
import os
import re
import shutil
from pathlib import Path

import numpy as np
import optuna
import pytest
import tiny_trials
import yaml
from forked import command
from helpers import ROOT, a_result, flip
from optuna.trial import TrialState
from transformer_pl.trials.recognise import sweep_plan

from tests.search.test_results import made
from transformer_pl import report, sweep, translate
from transformer_pl.data.prepared import Prepared
from transformer_pl.evaluation.evaluate import trained_model
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.search import storage
from transformer_pl.search.results import SearchResults
from transformer_pl.tasks.translation import Translation
from transformer_pl.training.logger import TrialLogger
from transformer_pl.trials.cleaning import find_removable
from transformer_pl.trials.names import SWEEP_FILES
from transformer_pl.trials.runs_folder import finished_results, trained_config
from transformer_pl.trials.trial import Trial

BLEU = Translation.measure
SMOKE = str(ROOT / "sweeps" / "smoke.yaml")
NO_JSON = [b"", b'{"id": "0123', b"\x93\xff\xfe\x00binary", bytes(4096), b"[" * 100_000]
NO_RESULTS = [
    *NO_JSON,
    b"{}",
    b"[]",
    b"null",
    b"NaN",
    *(
        json.dumps({k: v for k, v in a_result().items() if k != key}).encode()
        for key in ("metrics", "config", "wall_s")
    ),
    *(
        json.dumps(a_result(**{key: value})).encode()
        for key, value in {"metrics": {}, "flops": 0, "steps": "1", "config": [], "tags": None}.items()
    ),
]
COMMANDS = {
    "plan": lambda runs: sweep.main([SMOKE, "--plan", f"--runs={runs}"]),
    "list": lambda runs: sweep.main(["--list", f"--runs={runs}"]),
    "clean": lambda runs: sweep.main(["--clean", f"--runs={runs}"]),
    "report": lambda runs: report.main([SMOKE, "--format=md", f"--runs={runs}"]),
    "translate": lambda runs: translate.main(["position-NoPosition", f"--runs={runs}"]),
}


@pytest.fixture(autouse=True)
def _nothing_was_said_before(monkeypatch):
    """A process warns once; here each test is one. And somebody who answers no, or has nothing to translate."""
    warn.cache_clear()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))


@pytest.fixture
def runs(smoke, tmp_path):
    """A copy of a finished sweep's folder, to be damaged."""
    shutil.copytree(smoke[0], tmp_path / "runs", ignore=shutil.ignore_patterns("wandb"))
    return tmp_path / "runs"


def the(runs, row) -> Trial:
    """The trial of a row of the sweep."""
    for path in (runs / "trials").glob("*/config.yaml"):
        config = yaml.safe_load(path.read_text())
        rows = {4: "h=4", 1: "h=1 p_drop=0.0"}
        if row == rows.get(config["model.h"], "base" if "Sinusoidal" in config["model.position"] else "no position"):
            return Trial(path.parent)
    raise LookupError(row)


def older(trial: Trial) -> None:
    """As an older version has left it: without digests."""
    result = trial.result()
    del result["digests"]
    (trial.folder / "result.json").write_text(json.dumps(result))


# ---------------------------------------------------------------------------------------------------------------------
# result.json


@pytest.mark.parametrize("content", NO_RESULTS, ids=lambda content: repr(content[:12]))
def test_a_damaged_result_is_named_and_counts_as_none(tmp_path, capsys, content):
    whole, damaged = (Trial(tmp_path / "trials" / name) for name in ("a-1", "b-2"))
    for trial in (whole, damaged):
        trial.folder.mkdir(parents=True)
        trial.finish(a_result())
        trial.set_status("done")
    assert {result["folder"] for result in finished_results(tmp_path)} == {whole.folder, damaged.folder}
    assert not capsys.readouterr().err
    path = damaged.folder / "result.json"
    path.write_bytes(content)
    assert damaged.result() is None and damaged.status()["state"] == "damaged"
    (left,) = finished_results(tmp_path)
    assert left["folder"] == whole.folder and whole.status()["state"] == "done"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {path}: cannot be read: ") and "trains it anew" in line


@pytest.mark.parametrize("name", COMMANDS)
def test_one_damaged_result_stops_no_command(runs, capsys, name):
    for content in NO_RESULTS[::3]:
        folder = the(runs, "h=4").folder
        path = folder / "result.json"
        path.write_bytes(content.replace(a_result()["id"].encode(), folder.name[-12:].encode()))
        warn.cache_clear()
        assert COMMANDS[name](runs) == 0
        printed = capsys.readouterr()
        assert printed.err.count(f"warning: {path}: cannot be read: ") == 1, printed.err
        if name == "plan":
            assert (
                "4 trials, 1 to train" in printed.out
                and "1 damaged" in printed.out
                and printed.out.count("1 done") == 3
            )
        elif name == "list":
            assert "3 done, 1 damaged" in printed.out
        elif name == "report":
            assert re.search(r"\| 4 \|.* - \|.* 0/1 \|", printed.out)


def test_a_damaged_trial_cannot_be_translated_with(runs, capsys):
    path = the(runs, "h=4").folder / "result.json"
    path.write_bytes(b"{}")
    with pytest.raises(InputError, match="must name one finished trial"):
        translate.main(["demo-h-4", f"--runs={runs}"])
    assert f"warning: {path}: cannot be read: " in capsys.readouterr().err


def test_the_same_command_trains_it_anew_and_keeps_what_was_damaged(runs):
    """And comes to the same; what else a disk may have done to the sweep's own files does not matter either."""
    trial = the(runs, "h=4")
    before, others = trial.result(), {r["id"]: r for r in finished_results(runs) if r["folder"] != trial.folder}
    (trial.folder / "result.json").write_bytes(b'{"id": "half')
    (runs / "sweeps" / "smoke@demo" / "table.md").write_bytes(b"\xff\xfe")
    completed = command("sweep", SMOKE, "--runs", runs, WANDB_MODE="disabled")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "1 to train" in completed.stdout and f"warning: {trial.folder / 'result.json'}: cannot" in completed.stderr
    after = trial.result()
    assert after["metrics"]["val/ppl"] == pytest.approx(before["metrics"]["val/ppl"], rel=1e-3)
    assert after["id"] == before["id"] and after["digests"].keys() == before["digests"].keys()
    assert (trial.folder / "result.json.damaged").read_bytes() == b'{"id": "half'
    assert {r["id"]: r for r in finished_results(runs) if r["folder"] != trial.folder} == others
    assert "| row |" in (runs / "sweeps" / "smoke@demo" / "table.md").read_text()
    assert trial.status()["state"] == "done"


@pytest.mark.parametrize("content", [*NO_JSON, b"{}", b"[]", b'{"state": 7, "data": 7, "packages": 7, "trials": [7]}'])
def test_the_other_files_of_a_trial_and_a_sweep_may_be_damaged(runs, capsys, content):
    """A trial is done by its result, whatever its status says; and nothing is thrown away for want of a plan."""
    trial, plan = the(runs, "h=4"), runs / "sweeps" / "smoke@demo" / "plan.json"
    for path in (trial.folder / "status.json", trial.folder / "env.json", plan):
        path.write_bytes(content)
    assert trial.status()["state"] == "done" and trial.data() is None and sweep_plan(plan.parent) is None
    for name in COMMANDS:
        assert COMMANDS[name](runs) == 0
    printed = capsys.readouterr()
    assert "4 done" not in printed.out and "nothing to clean" in printed.out
    assert f"warning: {plan}: cannot be read: " in printed.err
    assert find_removable(runs) == []
    with pytest.raises(InputError, match=r"env\.json: must name the trial's text"):
        translate.main([str(trial.folder)])


def test_a_trial_whose_process_ended_after_the_result_is_done(tmp_path):
    trial = Trial(tmp_path)
    trial.finish(a_result())
    for state in ("running", "stopped", "failed"):
        trial.set_status(state)
        assert trial.status()["state"] == "done"
    (tmp_path / "result.json").unlink()
    trial.set_status("done")
    assert trial.status()["state"] == "stopped"


# ---------------------------------------------------------------------------------------------------------------------
# What numbers are made of


def test_a_result_has_the_digest_of_all_that_numbers_are_made_of(smoke):
    names = {"weights.pt", "metrics.jsonl", "hyp.val.txt", "hyp.test.txt", "scores.val.jsonl", "scores.test.jsonl"}
    for result in finished_results(smoke[0]):
        digests = {name: hashlib.sha256((result["folder"] / name).read_bytes()).hexdigest() for name in names}
        assert result["digests"] == digests
        trial = Trial(result["folder"])
        assert all(trial.intact(name) == trial.folder / name for name in names)


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("weights.pt", lambda trial: translate.main([str(trial.folder)])),
        ("scores.val.jsonl", lambda trial: trial.sentences("val", BLEU)),
        ("hyp.val.txt", lambda trial: trial.hypotheses("val")),
        ("metrics.jsonl", lambda trial: trial.intact("metrics.jsonl")),
    ],
)
@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_a_damaged_file_of_a_trial_is_named_and_not_used(runs, name, use, damage):
    trial = the(runs, "h=4")
    path = trial.folder / name
    use(trial)
    if damage == "flipped":
        flip(path)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    else:
        path.unlink()
    with pytest.raises(InputError, match=rf"^{path}: cannot be used: .*; to have it again, remove {trial.folder}"):
        use(trial)
    assert trial.result() and trial.status()["state"] == "done"  # which was computed before
    assert find_removable(runs) == []


def test_trials_of_an_older_version_are_used_as_they_are(runs, capsys):
    trial = the(runs, "h=4")
    before = trial.sentences("val", BLEU), trial.hypotheses("val")
    older(trial)
    assert "digests" not in trial.result() and np.array_equal(trial.sentences("val", BLEU), before[0])
    assert trial.hypotheses("val") == before[1] and trial.intact("weights.pt").exists()
    assert translate.main([str(trial.folder)]) == 0 and report.main([SMOKE, f"--runs={runs}"]) == 0
    assert "warning" not in capsys.readouterr().err
    for content in (b"", b"abc", b"{}\n", b'{"bleu": [1], "nll": 1, "pieces": 1}\n'):
        (trial.folder / "scores.val.jsonl").write_bytes(content)
        with pytest.raises(InputError, match=r"scores\.val\.jsonl: cannot be used"):
            trial.sentences("val", BLEU)


@pytest.mark.parametrize("content", [b"", b"abc", bytes(1000), "cut", "pickle"])
@pytest.mark.filterwarnings("ignore")  # torch has much to say of strange bytes
def test_weights_without_a_digest_that_cannot_be_read_are_named(runs, content):
    trial = the(runs, "h=4")
    result = next(result for result in finished_results(runs) if result["folder"] == trial.folder)
    path = trial.folder / "weights.pt"
    whole = path.read_bytes()
    if content == "pickle":
        content = whole.replace(b"torch._utils", b"torch._utilz")
    path.write_bytes(whole[:1000] if content == "cut" else content)
    unusable = pytest.raises(InputError, match=rf"^{path}: cannot be used: .+; train the trial again")
    with unusable, trained_model(trained_config(result), Prepared(runs / "data" / trial.data()), trial):
        pass


def test_damaged_weights_are_not_shared(runs):
    """Two trials that differ in decoding alone come to the same perplexity, whatever befell the first's weights."""
    trial = the(runs, "h=4")
    expected = trial.result()["metrics"]["val/ppl"]
    flip(trial.folder / "weights.pt")
    words = ["--model.h=4", "--model.width=0.0625", "--optim.max_steps=20", "--trainer.val_every=10", "--decode.beam=1"]
    words += ["--trainer.log_every=5", "--decode.extra=2", "--trainer.threads=1", "--decode.alpha=0.1"]
    completed = command("train", *words, f"--runs={runs}", WANDB_MODE="disabled")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert f"warning: weights are not shared: {trial.folder / 'weights.pt'}: cannot be used" in completed.stderr
    (second,) = (Trial(path) for path in (runs / "trials").glob("*alpha-0.1*"))
    assert not (second.folder / "weights.pt").samefile(trial.folder / "weights.pt")
    assert second.result()["metrics"]["val/ppl"] == pytest.approx(expected, rel=1e-3)
    assert second.result()["weights_id"] == trial.result()["weights_id"]


def test_a_table_names_damaged_scores_and_says_nothing_by_them(runs, capsys):
    def completed():
        capsys.readouterr()
        assert report.main([SMOKE, "--format=json", f"--runs={runs}"]) == 0
        content = json.loads(capsys.readouterr().out)
        return content["rows"], content["notes"]

    whole, _ = completed()
    flip(the(runs, "h=4").folder / "scores.val.jsonl")
    rows, notes = completed()
    assert [row["val/bleu.low"] is None for row in rows] == [False, True, False, False]
    assert [row["val/bleu.mean"] for row in rows] == [row["val/bleu.mean"] for row in whole]
    (note,) = (note for note in notes if "scores.val.jsonl" in note)
    assert str(the(runs, "h=4").folder) in note


def test_a_page_names_what_is_damaged_and_shows_the_rest(runs, capsys):
    flip(the(runs, "base").folder / "weights.pt")
    flip(the(runs, "h=4").folder / "hyp.val.txt")
    flip(the(runs, "h=1 p_drop=0.0").folder / "metrics.jsonl")
    assert report.main([SMOKE, "--format=html", f"--runs={runs}"]) == 0
    printed = capsys.readouterr()
    text = (runs / "sweeps" / "smoke@demo" / "report.html").read_text()
    assert re.search(r"No attention of base: [^<]*/weights\.pt: cannot be used", text)
    assert re.search(r"No translations by h=4: [^<]*/hyp\.val\.txt: cannot be used", text)
    (maps,) = re.findall(r'id="maps">(.*?)</script>', text, re.DOTALL)
    pictured = {row for sentence in json.loads(maps)["sentences"] for row in sentence["rows"]}
    assert pictured == {"h=4", "h=1 p_drop=0.0", "position=NoPosition"}
    assert re.search(r"warning: .*/metrics\.jsonl: cannot be used", printed.err)
    flip(runs / "data" / the(runs, "base").data() / "val.source.txt")
    assert report.main([SMOKE, "--format=html", f"--runs={runs}"]) == 0
    text = (runs / "sweeps" / "smoke@demo" / "report.html").read_text()
    lines = re.findall(r"No (?:translations|attention) ([^<]*)val\.source\.txt: cannot be read", text)
    assert len(lines) == 2 and all("base, h=4, h=1 p_drop=0.0, position=NoPosition: " in line for line in lines)


def test_a_search_names_damaged_scores(tmp_path):
    search, study = made(tmp_path, lambda drawn: 2.5, trials=1)
    trial, kept = study.ask(search.space), Trial(tmp_path / "trials" / "try-0123456789ab")
    trial.set_user_attr("folder", kept.folder.name)
    study.tell(trial, 2.0)
    kept.folder.mkdir(parents=True)
    kept.save_sentences("val", ["a", "b"], "bleu", [[3] * 10] * 2, [1.0, 2.0], [2, 3])
    kept.finish(a_result())
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def record():
        outcome = SearchResults(search, study, tmp_path)
        (found,) = (record for record in outcome.records if record["folder"])
        assert found["state"] == "best" and found["params"] == 1
        assert outcome.trials[0].state == TrialState.COMPLETE
        return found, [note for note in outcome.table().notes if "scores.val.jsonl" in note]

    found, notes = record()
    assert math.isfinite(found["val/ppl.low"]) and not notes
    flip(kept.folder / "scores.val.jsonl")
    found, notes = record()
    assert found["val/ppl.low"] is None and len(notes) == 1


# ---------------------------------------------------------------------------------------------------------------------
# metrics.jsonl


NO_LINES = [
    b"",
    bytes(4096),
    b"\xff\xfe\x93binary",
    b'{"step": 20, "train/loss": 1.',
    b'{"step": 20, "train/l{"step": 20, "train/loss": 1.0, "time": 1.0}',
    b"[]",
    b"{}",
    b"7",
    b'{"step": "20"}',
    b'{"step": 20, "train/loss": null}',
    b'{"train/loss": 1.0}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("damaged", NO_LINES, ids=lambda line: repr(line[:16]))
def test_a_damaged_line_of_metrics_is_left_out_and_goes_on_resume(tmp_path, monkeypatch, capsys, damaged):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    path = tmp_path / "metrics.jsonl"
    lines = [f'{{"step": {step}, "train/loss": 1.0, "time": {step}.25}}\n'.encode() for step in (10, 20, 30, 40)]
    path.write_bytes(b"".join([*lines[:2], damaged + b"\n", *lines[2:]]) + damaged)
    steps = [10, 20, 30, 40]
    assert [line["step"] for line in Trial(tmp_path).metrics()] == steps
    assert [line["step"] for line in Trial(tmp_path).metrics(last=10_000)] == steps
    tracker = TrialLogger(tmp_path, 40, "name", ["tag"], {"seed": 1})
    tracker.start(30)
    tracker.log_metrics({"train/loss": 2.0}, 40)
    tracker.finish()
    *kept, last = path.read_bytes().splitlines(keepends=True)
    assert kept == lines[:3] and json.loads(last)["train/loss"] == 2.0
    assert f"warning: {path}: 1 damaged lines are left out" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------------
# A trial that is trained again


@pytest.fixture
def trained(tmp_path):
    """A tiny trial, finished."""
    code, trial = tiny_trials.train(tmp_path / "runs", {})
    assert code == 0
    return trial


def again(trial, *options):
    """What the same command makes of it: its exit code, and the perplexity."""
    code, same = tiny_trials.train(trial.folder.parents[1], {}, *options)
    return code, (same.result() or {}).get("metrics", {}).get("val/ppl")


def test_a_token_that_is_none_is_found_where_an_older_version_kept_no_digest(trained, capsys):
    folder = trained.folder.parents[1] / "data" / trained.data()
    meta = json.loads((folder / "meta.json").read_text())
    del meta["digests"]
    (folder / "meta.json").write_text(json.dumps(meta))
    expected = trained.result()["metrics"]["val/ppl"]
    assert again(trained, "--rerun") == (0, expected) and "warning" not in capsys.readouterr().err
    for split in ("train", "val"):
        ids = np.load(folder / f"{split}.source.npy")
        ids[5] = 60_000
        np.save(folder / f"{split}.source.npy", ids)
    warn.cache_clear()
    assert again(trained, "--rerun") == (0, expected)
    words = "train.source.npy: cannot be read: holds the token 60000, but there are 300; the next training"
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("name", ["claim.2", "log.txt", "status.json", "env.json", "result.json", "weights.pt"])
def test_what_a_link_in_a_trials_folder_leads_to_is_not_written_to(trained, tmp_path, name):
    expected = trained.result()["metrics"]["val/ppl"]
    other, path = tmp_path / "another program's", trained.folder / name
    for exists in (True, False):
        if exists:
            other.write_text("its text")
        else:
            other.unlink()
        path.unlink()
        path.symlink_to(other)
        assert again(trained, "--rerun") == (0, expected)
        assert other.read_text() == "its text" if exists else not other.exists()


@pytest.mark.parametrize("damage", [Path.mkdir, lambda path: path.write_text(""), lambda path: path.write_text("[]")])
def test_a_claim_that_is_none_is_no_claim(trained, damage):
    """A folder in its place, or what a power cut has left of it."""
    expected = trained.result()["metrics"]["val/ppl"]
    damage(trained.folder / "claim.3")
    assert not trained.locked() and again(trained, "--rerun") == (0, expected)


def test_a_file_in_the_place_of_a_trial_is_named(tmp_path):
    (tmp_path / "trial").write_text("")
    with pytest.raises(InputError, match=r"/trial: must be a folder that can be written, but: File exists; remove it"):
        Trial(tmp_path / "trial").take_lease()


def test_a_page_that_cannot_be_written_is_an_error_of_the_runs_folder(runs):
    shutil.rmtree(runs / "sweeps")
    (runs / "sweeps").write_text("a file")
    with pytest.raises(InputError, match=r"smoke@demo: must be a folder that can be written, but: Not a directory"):
        report.main([SMOKE, "--format=html", f"--runs={runs}"])
    assert report.main([SMOKE, "--format=md", f"--runs={runs}"]) == 0


@pytest.mark.parametrize("name", ["result.json", "status.json", "env.json"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(trained, capsys, name):
    (trained.folder / name).unlink()
    os.mkfifo(trained.folder / name)
    assert (
        trained.status()["state"] == ("damaged" if name == "result.json" else "done")
        and trained.environment() is not None
    )
    if name != "result.json":
        return
    assert "it is a pipe or a device, not a file" in capsys.readouterr().err
    assert again(trained)[0] == 0 and (trained.folder / "result.json.damaged").is_fifo()


# ---------------------------------------------------------------------------------------------------------------------
# The study of a search

NO_JOURNALS = [
    b"\x93\xff\xfe\x00binary\n",
    b"hello\nworld\n",
    b"{}\n[1]\n",
    b"null\n",
    lambda whole: whole[:60] + b"\n" + whole[60:],
]


@pytest.mark.parametrize("damaged", NO_JOURNALS)
def test_a_damaged_study_is_set_aside(tmp_path, capsys, damaged):
    search, study = made(tmp_path, lambda drawn: 2.5, trials=2)
    path = tmp_path / "sweeps" / study.study_name / storage.JOURNAL
    path.parent.mkdir(parents=True)
    created = storage.create_study(search, path.parent, None, None, None)
    created.enqueue_trial(search.base_draw)
    content = damaged(path.read_bytes()) if callable(damaged) else damaged
    path.write_bytes(content)
    warn.cache_clear()
    with pytest.raises(InputError, match=rf"{path}: cannot be read: .*; the sweep command sets it aside and begins"):
        storage.find_study(search, path.parent, None)
    assert path.read_bytes() == content
    anew = storage.create_study(search, path.parent, None, None, None)
    assert anew.trials == [] and path.with_name("study.journal.damaged").read_bytes() == content
    assert f"warning: {path}: cannot be read: " in capsys.readouterr().err
    assert storage.find_study(search, path.parent, None).trials == []
    assert SWEEP_FILES.fullmatch("study.journal.damaged")


def test_a_study_whose_last_line_was_cut_goes_on(tmp_path, capsys):
    search, study = made(tmp_path, lambda drawn: 2.5, trials=1)
    path = tmp_path / "sweeps" / study.study_name / storage.JOURNAL
    path.parent.mkdir(parents=True)
    storage.create_study(search, path.parent, None, None, None).enqueue_trial(search.base_draw)
    path.write_bytes(path.read_bytes() + b'{"op_code": 4, "wor')
    assert len(storage.create_study(search, path.parent, None, None, None).trials) == 1
    assert "warning" not in capsys.readouterr().err
