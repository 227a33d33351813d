"""Looking back over a runs folder: what is listed, and what is thrown away on a yes."""

import io
import json
import shutil
import subprocess
import sys

import pytest
from forked import command
from helpers import ROOT
from rich.console import Console

from transformer_pl.component_sources import keep_sources
from transformer_pl.data.prepare import digest
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import write_json
from transformer_pl.trials import cleaning
from transformer_pl.trials.cleaning import find_removable
from transformer_pl.trials.identity import CORE_REVISION
from transformer_pl.trials.names import trial_folder
from transformer_pl.trials.runs_folder import runs_lock, trained_config
from transformer_pl.trials.trial import Trial


@pytest.fixture
def runs(smoke, tmp_path):
    """A copy of a finished sweep's folder, to be spoiled."""
    shutil.copytree(smoke[0], tmp_path / "runs", symlinks=True)
    return tmp_path / "runs"


def trials(runs):
    return [Trial(path) for path in sorted((runs / "trials").iterdir())]


def copy_of(trial, trial_id, **changes):
    """Another trial of the same files, but for its id and some keys of its result."""
    other = Trial(trial.folder.with_name(trial.folder.name[:-12] + trial_id))
    shutil.copytree(trial.folder, other.folder, symlinks=True)
    (other.folder / "result.json").write_text(json.dumps(trial.result() | {"id": trial_id} | changes))
    return other


def unused_data(runs, vocab_size=999):
    """The folder of a text that no trial is of."""
    used = next((runs / "data").iterdir())
    meta = json.loads((used / "meta.json").read_text())
    meta["settings"]["vocab_size"] = vocab_size
    folder = used.with_name(digest(meta["fingerprint"], meta["settings"]))
    shutil.copytree(used, folder)
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


def sweep_without_trials(runs, name="gone"):
    """The folder of a sweep whose trials are gone."""
    folder = runs / "sweeps" / f"{name}@demo"
    shutil.copytree(runs / "sweeps" / "smoke@demo", folder, symlinks=True)
    plan = json.loads((folder / "plan.json").read_text()) | {"name": name}
    for trial in plan["trials"]:
        trial["folder"] = f"demo-base-s1-{'0' * 12}"
    (folder / "plan.json").write_text(json.dumps(plan))
    return folder


def clean(runs, answer):
    words = [sys.executable, "-m", "transformer_pl.sweep", "--clean", "--runs", str(runs)]
    return subprocess.run(words, cwd=ROOT, input=answer, capture_output=True, text=True, timeout=60)


def test_a_sweep_keeps_its_trials_when_their_folders_are_renamed(runs, capsys):
    """Before the id, which stays."""
    for trial in trials(runs):
        trial.folder.rename(trial.folder.with_name(f"mine-{trial.folder.name[-12:]}"))
    cleaning.list_runs(runs, Console(width=200))
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("smoke@demo"))
    assert "4 done" in line and "new" not in line
    assert not any("sweeps" in item.path.parts for item in find_removable(runs))


def test_the_list_tells_state_age_size_and_score(runs):
    completed = command("sweep", "--list", "--runs", runs, COLUMNS="160")
    assert completed.returncode == 0
    (sweep,) = [line for line in completed.stdout.splitlines() if line.startswith("smoke@demo ")]
    assert "4 done" in sweep
    for trial in trials(runs):
        (line,) = [line for line in completed.stdout.splitlines() if line.startswith(trial.folder.name)]
        assert " done " in line and f"{trial.result()['metrics']['val/bleu']:.1f}" in line and "kB" in line


def test_a_whole_folder_needs_no_cleaning(runs):
    assert find_removable(runs) == []
    assert "nothing to clean" in clean(runs, "y\n").stdout
    empty = runs / "empty"
    assert "no sweep and no trial" in command("sweep", "--list", "--runs", empty).stdout
    assert "nothing to clean" in clean(empty, "").stdout


@pytest.fixture
def spoiled(runs):
    """Five kinds of waste, beside two trials that must stay; returns the folder and what should go."""
    kept, broken, failed, stopped = trials(runs)
    (broken.folder / "result.json").write_text('{"id": ')
    failed.clear()
    failed.set_status("failed", why="[enforce fail] at [/a/path]: the part is broken")
    (stopped.folder / "result.json").unlink()
    stopped.set_status("stopped")
    again = copy_of(kept, "0123456789ab", finished="2999-01-01 00:00:00")  # as after a change of the core
    write_json(kept.folder / "identity.json", kept.identity_inputs() | {"core": CORE_REVISION - 1})
    (kept.folder / "checkpoints").mkdir()  # goes with its trial, not by itself
    unused, gone = unused_data(runs), sweep_without_trials(runs)
    return runs, {broken.folder, failed.folder, kept.folder, unused, gone}, {again.folder, stopped.folder}


def test_waste_is_listed_and_goes_only_on_a_yes(spoiled):
    runs, waste, kept = spoiled
    for answer in ("", "n\n", "\n"):
        completed = clean(runs, answer)
        assert completed.returncode == 0 and "nothing was removed" in completed.stdout
        assert all(path.exists() for path in waste)
    words = "".join(completed.stdout.split())  # a narrow table folds
    assert all("".join(str(path.relative_to(runs)).split()) in words for path in waste if path.parent.name != "trials")
    assert "superseded" in completed.stdout and "orphaned" in completed.stdout and "broken" in completed.stdout
    completed = clean(runs, "y\n")
    assert "removed 5" in completed.stdout
    assert not any(path.exists() for path in waste) and all(path.exists() for path in kept)
    assert find_removable(runs) == []


def test_a_trial_of_the_present_core_and_components_is_not_superseded(runs, module):
    """Somebody trained with an edited component, and then took the edit back."""
    path = module("from ablations.no_position import NoPosition\n\n\nclass Mine(NoPosition):\n    rate = 1\n")
    (older,) = (trial for trial in trials(runs) if "position" in trial.folder.name)
    result = older.result()
    config = result["config"] | {"model.position": "stranger.Mine"}
    write_json(older.folder / "result.json", result | {"config": config})
    newer = copy_of(older, "0123456789ab", finished="2999-01-01 00:00:00")
    model = trained_config(newer.result() | {"folder": newer.folder}).model
    keep_sources(model, older.sources)
    path.write_text(path.read_text().replace("1", "2"))
    keep_sources(model, newer.sources)
    assert [item.path for item in find_removable(runs) if "superseded" in item.reason] == [older.folder]
    path.write_text(path.read_text().replace("2", "1"))
    assert [item.path for item in find_removable(runs) if "superseded" in item.reason] == []


def test_nothing_is_cleaned_while_something_is_at_work(spoiled):
    runs, waste, _ = spoiled
    with runs_lock(runs):
        completed = clean(runs, "y\n")
    assert completed.returncode == 2 and "is running there" in completed.stderr
    assert all(path.exists() for path in waste)
    with runs_lock(runs, alone=True):
        completed = command("train", "--runs", runs)
    assert completed.returncode == 2 and "being cleaned" in completed.stderr


def test_what_goes_on_from_a_checkpoint_stays(spoiled):
    """A trial that failed for want of room may be the reason for cleaning, and has most of its work behind it."""
    runs, _, _ = spoiled
    failed = next(trial for trial in trials(runs) if trial.status()["state"] == "failed")
    (failed.folder / "checkpoints").mkdir()
    (failed.folder / "checkpoints" / "last.sha256").write_text("0")
    assert failed.folder not in {one.path for one in find_removable(runs)}


def test_one_thing_at_a_time():
    for argv, told in (
        ([], "one of FILE, --list, --clean and --schema must be given"),
        (["--list", "--clean"], "give --list or --clean, not both"),
        (["sweeps/smoke.yaml", "--list"], "give FILE or --list, not both"),
    ):
        completed = command("sweep", *argv)
        assert completed.returncode == 2 and told in completed.stderr


# ---------------------------------------------------------------------------------------------------------------------
# What others have put there


def write(path, content=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def everything(folder):
    """Every file and link below a folder, with what it holds; links are not followed."""
    below = {path.relative_to(folder): path for path in folder.rglob("*")}
    return {
        name: path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes()
        for name, path in below.items()
    }


def others_files(runs):
    """Files and folders that no command has made, each as like one of ours as can be."""
    failed = json.dumps({"state": "failed", "why": "the court was closed"})
    plan = {"name": "my-notes", "scale": "demo", "trials": []}
    prepared = next(path for path in (runs / "data").iterdir() if path.name != "my_corpus")
    meta = (prepared / "meta.json").read_text()
    result = json.dumps({"id": "fedcba987654", "metrics": {"val/bleu": 12.0}, "scale": "demo", "config": {}})
    files = {
        "data/notes.txt": "mine",
        "data/.gitignore": "*",
        "data/my_corpus/train.en": "a sentence\n",
        "data/my_corpus/meta.json": meta,  # of another folder
        "data/0123456789abcdef/train.source.npy": "mine",
        "data/fedcba9876543210/meta.json": meta,
        "data/aaaaaaaaaaaaaaaa/meta.json": "[1, 2]",
        "data/.0123456789abcdef.backup/meta.json": meta,
        "trials/notes.txt": "mine",
        "trials/court-cases/case-1.txt": "the people against",
        "trials/court-cases/status.json": failed,
        "trials/hearings/result.json": '{"id": ',
        "trials/run-202611211530/lock": "",  # a date, and twelve digits
        "trials/run-202611211530/log.txt": "a log of another program",
        "trials/demo-base-s1-0a0a0a0a0a0a/status.json": failed,  # no time and no process
        "trials/demo-base-s1-0b0b0b0b0b0b/result.json": result,  # of another id
        "trials/demo-base-s1-0c0c0c0c0c0c/log.txt": "no lock beside it",
        "sweeps/notes@demo/notes.md": "mine",
        "sweeps/my-notes/plan.json": json.dumps(plan),  # the folder would be called my-notes@demo
        "sweeps/other@demo/plan.json": json.dumps(plan),
        "sweeps/notes-1@demo/plan.json": json.dumps(
            plan | {"name": "notes-1", "trials": [{"folder": "../../elsewhere"}]}
        ),
        "sweeps/notes-2@demo/plan.json": json.dumps({"trials": [{"folder": "nothing"}]}),
        "sweeps/notes-3@demo/plan.json": "plan: buy milk",
        "sweeps/notes-4@demo/plan.json": "[]",
        "sweeps/notes-5@demo/plan.json": json.dumps(plan | {"name": "notes-5", "trials": {"folder": 1}}),
        "complexity/notes.txt": "mine",
        "notes.txt": "mine",
    }
    return [write(runs / name, content) for name, content in files.items()]


def test_files_of_others_are_no_trials_and_stay(spoiled):
    """Beside waste, which goes; in a trial that stays, only what was never finished goes."""
    runs, waste, (kept, stopped) = spoiled
    theirs = others_files(runs)
    theirs += [write(kept / name, "mine") for name in (".notes", ".status.json.old", ".weights.pt.123", ".git/config")]
    unfinished = [write(stopped / name, "half") for name in (".weights.pt", ".metrics.jsonl.123", ".hyp.val.txt.9")]
    unfinished.append(write(runs / "data" / ".0123456789abcdef.01234567" / "tokenizer.model", "half").parent)
    completed = command("sweep", "--list", "--runs", runs, COLUMNS="200")
    assert completed.returncode == 0, completed.stderr
    assert "\n5 trials, " in completed.stdout and "smoke@demo" in completed.stdout and "gone@demo" in completed.stdout
    names = {path.relative_to(runs).parts[1] for path in theirs if len(path.relative_to(runs).parts) > 1}
    assert not [name for name in names - {kept.name} if name in completed.stdout]
    before = {path: path.read_bytes() for path in theirs}
    assert {one.path for one in find_removable(runs)} == waste | set(unfinished)
    completed = clean(runs, "y\n")
    assert completed.returncode == 0 and f"removed {len(waste) + len(unfinished)}" in completed.stdout, (
        completed.stdout + completed.stderr
    )
    assert {path: path.read_bytes() for path in theirs} == before
    assert not any(path.exists() for path in (*waste, *unfinished)) and kept.exists() and stopped.exists()


@pytest.fixture
def failed(runs):
    """A folder of each kind that is waste as a whole: a trial, a text, a sweep."""
    trial = trials(runs)[0]
    trial.clear()
    trial.set_status("failed")
    (trial.folder / "checkpoints").mkdir()
    (trial.folder / "checkpoints" / "new.ckpt").write_bytes(b"half")
    return {"trials": trial.folder, "data": unused_data(runs), "sweeps": sweep_without_trials(runs)}


def clean_here(runs, monkeypatch, answer=lambda: "y"):
    """`--clean` in this process; what it says."""
    monkeypatch.setattr("builtins.input", answer)
    output = io.StringIO()
    assert cleaning.clean(runs, Console(file=output, width=200)) == 0
    return output.getvalue()


FOREIGN = [
    *(("trials", name) for name in ("notes.md", ".hidden", "plots/a.png", "checkpoints/best.ckpt", "wandb/notes.txt")),
    *(("trials", name) for name in ("checkpoints/old/last.ckpt", "figures/grid.png", "weights.pt.bak", "a\nb")),
    *(("data", name) for name in ("train.en", "notes/a.txt", "train.source.txt", "checkpoints/last.ckpt")),
    *(("sweeps", name) for name in ("notes.md", "figures/mine.png", "figures/more/grid.png", "my/wandb/run-id")),
]


@pytest.mark.parametrize(("kind", "name"), FOREIGN)
def test_a_folder_with_a_file_of_others_in_it_stays_whole(failed, runs, monkeypatch, kind, name):
    write(failed[kind] / name, "mine")
    before = everything(failed[kind])
    output = clean_here(runs, monkeypatch)
    assert everything(failed.pop(kind)) == before
    assert f"left alone: {kind}/" in output and name in output and "which this project has not made" in output
    assert "removed 2" in output and not any(folder.exists() for folder in failed.values())


def test_what_cannot_be_removed_is_named_and_the_rest_is_removed(failed, runs, monkeypatch):
    remove = shutil.rmtree

    def refuse(path, *options, **more):
        if path == failed["trials"]:
            raise PermissionError(13, "Permission denied")
        remove(path, *options, **more)

    monkeypatch.setattr(cleaning.shutil, "rmtree", refuse)
    monkeypatch.setattr("builtins.input", lambda: "y")
    output = io.StringIO()
    assert cleaning.clean(runs, Console(file=output, width=200)) == 1
    assert failed.pop("trials").exists() and not any(folder.exists() for folder in failed.values())
    assert "Permission denied" in output.getvalue() and "removed 2" in output.getvalue()


def test_a_file_that_comes_while_the_question_waits_stays(failed, runs, monkeypatch):
    def answer():
        write(failed["trials"] / "notes.md", "mine")
        return "yes"

    assert "removed 2" in clean_here(runs, monkeypatch, answer)
    assert (failed["trials"] / "notes.md").exists() and (failed["trials"] / "status.json").exists()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("trials", ""),  # the folder itself
        ("trials", "checkpoints"),
        ("trials", "status.json"),
        ("trials", "wandb"),
        ("data", ""),
        ("data", "tokenizer.model"),
        ("sweeps", ""),
        ("sweeps", "figures"),
        ("sweeps", "table.md"),
    ],
)
def test_nothing_is_removed_behind_a_link_or_beside_one(failed, runs, tmp_path, monkeypatch, kind, name):
    (failed["trials"] / "wandb").mkdir()
    path, elsewhere = failed[kind] / name, tmp_path / "elsewhere" / (name or failed[kind].name)
    elsewhere.parent.mkdir()
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    before = everything(tmp_path / "elsewhere")
    output = clean_here(runs, monkeypatch)
    assert everything(tmp_path / "elsewhere") == before and path.is_symlink()
    assert f"left alone: {kind}/" in output and "removed 2" in output
    assert not any(folder.exists() for of, folder in failed.items() if of != kind)


@pytest.mark.parametrize("place", ["trials", "data", "sweeps"])
def test_a_whole_place_behind_a_link_stays_and_is_counted(failed, runs, tmp_path, monkeypatch, place):
    """What is used from there is in use; where the link leads nowhere, nobody knows what is."""
    (runs / place).rename(tmp_path / "elsewhere")
    (runs / place).symlink_to(tmp_path / "elsewhere")
    before, kept = everything(tmp_path / "elsewhere"), {path.name for path in (runs / "data").iterdir()}
    output = clean_here(runs, monkeypatch)
    assert everything(tmp_path / "elsewhere") == before
    assert f"{place} is a link" in output and "removed 2" in output
    assert {path.name for path in (runs / "data").iterdir()} >= kept - {failed["data"].name}
    (tmp_path / "elsewhere").rename(tmp_path / "not there")
    before = everything(runs)
    with pytest.raises(InputError, match=f"/{place}: must be a folder that can be read, but: No such file"):
        clean_here(runs, monkeypatch)
    assert everything(runs) == before


def test_a_trial_on_another_disk_uses_its_text_and_its_table(runs, tmp_path, monkeypatch):
    """Also while that disk is not there."""
    (tmp_path / "elsewhere").mkdir()
    for trial in trials(runs):
        trial.folder.rename(tmp_path / "elsewhere" / trial.folder.name)
        trial.folder.symlink_to(tmp_path / "elsewhere" / trial.folder.name)
    assert find_removable(runs) == []
    output = io.StringIO()
    cleaning.list_runs(runs, Console(file=output, width=200))
    assert "4 trials" in output.getvalue() and "4 done" in output.getvalue()
    (tmp_path / "elsewhere").rename(tmp_path / "not there")
    assert find_removable(runs) == []


def test_what_a_launcher_has_is_listed_as_that_before_it_has_written_anything(runs):
    """Unless it has ended, such as a trial that has just done so."""
    done, other, third = trials(runs)[:3]
    for trial in (other, third):
        trial.clear()
    ids = [trial.folder.name.rpartition("-")[2] for trial in (done, other, third)]
    output = io.StringIO()
    told = dict(zip(ids, ("running", "running", "queued"), strict=True))
    cleaning.list_runs(runs, Console(file=output, width=200), told)
    states = {line.split()[0]: line.split()[1] for line in output.getvalue().splitlines() if line.startswith("demo-")}
    assert [states[trial.folder.name] for trial in (done, other, third)] == ["done", "running", "queued"]


def test_the_runs_folder_may_be_a_link(failed, runs):
    link = runs.with_name("link")
    link.symlink_to(runs)
    completed = clean(link, "y\n")
    assert completed.returncode == 0 and "removed 3" in completed.stdout, completed.stdout + completed.stderr
    assert not any(folder.exists() for folder in failed.values()) and find_removable(runs) == []


def test_a_copy_of_a_trial_is_no_trial_but_uses_its_text(runs):
    first, *others = trials(runs)
    first.folder.rename(first.folder.with_name("the good one"))
    for trial in others:
        shutil.rmtree(trial.folder)
    assert {one.path.parent.name for one in find_removable(runs)} == {"sweeps"}
    assert "4 trials" not in command("sweep", "--list", "--runs", runs).stdout


def test_a_trial_that_was_never_begun_goes(runs):
    """Such as one whose process died before it had the lock."""
    new = Trial(runs / "trials" / trial_folder("demo-base-s1", "0123456789ab"))
    new.take_lease().close()
    new.log.write_text("killed")
    assert [(one.path, one.reason) for one in find_removable(runs)] == [(new.folder, "broken: never begun")]


def test_what_a_launcher_has_queued_stays(runs):
    """It may not have begun. Neither does its sweep lose its folder, with the launcher's records."""
    queued = Trial(runs / "trials" / trial_folder("demo-base-s1", "0" * 12))
    queued.take_lease().close()
    sweep = sweep_without_trials(runs)  # but for this one
    text = unused_data(runs)  # but by this one, which has not written it down
    assert {one.path for one in find_removable(runs)} == {queued.folder, sweep, text}
    assert not find_removable(runs, {"0" * 12})


def test_to_train_anew_leaves_the_files_of_others(runs):
    trial = trials(runs)[0]
    notes = [write(trial.folder / name, "mine") for name in ("notes.md", "plots/a.png", "checkpoints/best.ckpt")]
    write(trial.folder / "checkpoints" / "last.ckpt")
    trial.finish(trial.result())
    assert not (trial.folder / "checkpoints" / "last.ckpt").exists()
    before = (trial.folder / "config.yaml").read_text()
    (trial.folder / "config.yaml").rename(runs / "config.yaml")
    (trial.folder / "config.yaml").symlink_to(runs / "config.yaml")
    trial.clear()
    claims = trial.folder.glob("claim.*")
    assert {path for path in trial.folder.rglob("*") if path.is_file()} == {*notes, trial.log, *claims}
    assert (runs / "config.yaml").read_text() == before
