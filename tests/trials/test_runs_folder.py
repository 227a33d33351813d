"""The names of trials' folders, and finding a finished trial by what a user calls it."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from helpers import a_result, write_sweep
from tiny_trials import ended

from transformer_pl.api import load_trial
from transformer_pl.config import Config
from transformer_pl.plan.plan import plan_trials
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.report import __main__ as report
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import write_json
from transformer_pl.sweep import __main__ as sweep
from transformer_pl.trials.identity import Identity
from transformer_pl.trials.runs_folder import MOST_LISTED, RunsFolder, find
from transformer_pl.trials.trial_folder import TRIAL_FOLDER, TrialFolder, folder_name, trial_id

ID = "0123456789ab"


@pytest.fixture
def runs(tmp_path):
    for number in range(MOST_LISTED + 3):
        trial = TrialFolder(tmp_path / "trials" / f"base-s{number}-{number:012x}")
        trial.make()
        write_json(trial.path / "identity.json", {"parts": {}})
        trial.finish(a_result(id=f"{number:012x}"))
    return tmp_path


@pytest.mark.parametrize("name", ["nothing", "base", "s1", "x" * 5000, "\0"])
def test_a_name_of_no_trial_or_of_several_lists_the_trials(runs, name):
    with pytest.raises(InputError) as caught:
        find(runs, name)
    assert len(caught.value.messages) == 1
    assert 1 < str(caught.value).count("base-s") <= MOST_LISTED


def test_a_trial_is_found_by_its_id_its_name_a_part_of_it_or_its_folder(runs, tmp_path):
    name = f"base-s7-{7:012x}"
    for word in (f"{7:012x}", name, "base-s7-", str(runs / "trials" / name)):
        assert find(runs, word)[0].path == runs / "trials" / name
    assert find(tmp_path / "empty", str(runs / "trials" / name))[0].id == f"{7:012x}"


@pytest.fixture
def planned(runs):
    """Two sweeps that share trials: table3-A at two scales, its second scale with other trials."""
    for scale, first in (("demo", 0), ("multi30k", 5)):
        rows = [{"row": row, "seed": seed, "id": f"{first + n:012x}"} for n, (row, seed) in enumerate(ROWS)]
        folder = runs / "sweeps" / f"table3-A@{scale}"
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text(json.dumps({"name": "table3-A", "trials": rows}))
    return runs


ROWS = [("base", 1), ("base", 2), ("N=2 h=4", 1)]


def test_a_trial_is_found_by_its_sweep_its_row_and_its_seed(planned):
    assert find(planned, "table3-A@demo/base/s2")[0].id == f"{1:012x}"
    assert find(planned, "table3-A@multi30k/N=2 h=4/s1")[0].id == f"{7:012x}"
    assert find(planned, "table3-A@multi30k/N=2 h=4")[0].id == f"{7:012x}"  # its only seed
    for several in ("table3-A/base/s1", "table3-A@demo/base"):  # two scales, two seeds
        with pytest.raises(InputError, match="but 2 match"):
            find(planned, several)


@pytest.mark.parametrize("seed", [1, 4_294_967_295])
@pytest.mark.parametrize("row", ["base", "x" * 200, "-x" * 90, "a-s1 " * 40, "h=4 " + "y" * 60, "a/b ..", "é ☃"])
def test_a_folder_has_whole_words_of_its_row_and_its_seed_and_id(row, seed):
    name = folder_name(row, seed, ID)
    assert TRIAL_FOLDER.fullmatch(name) and trial_id(name) == ID and name.endswith(f"s{seed}-{ID}")
    assert len(name) < 80 and Path(name).name == name and name.isascii()


def test_a_folder_is_called_like_its_row():
    assert folder_name("base", 3, ID) == f"base-s3-{ID}"
    assert folder_name("h=1 p_drop=0.0", 12, ID) == f"h=1-p_drop=0.0-s12-{ID}"
    assert folder_name("N=2 " + "y" * 60, 1, ID) == f"N=2-s1-{ID}"


def test_a_trial_that_was_found_keeps_its_config_while_another_command_trains_it_again(runs):
    trial = TrialFolder(runs / "trials" / f"base-s1-{1:012x}")
    trial.finish(a_result(id=f"{1:012x}", config={"model.h": 4, "decode.beam": 3}))
    found = load_trial(trial.id, runs)
    trial.clear()
    assert (found.config.model.h, found.decoding(alpha=0.5).decode.beam) == (4, 3)


WATCHED: list[list[tuple[str, str]]] = []  # the list that collects what the process opens and lists


def _watch(event, arguments):
    if WATCHED and event in ("open", "os.listdir", "os.scandir"):
        WATCHED[0].append((event, str(arguments[0])))


sys.addaudithook(_watch)


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """A function that makes a runs folder with finished trials of so many rows, and counts what a command does there.

    It returns how often the command lists the folders of trials, how often it reads each result, and how often it asks
    a config for its keys, as every hash and comparison of rows does.
    """
    flat, calls = Config.flat, []
    monkeypatch.setattr(Config, "flat", lambda config: calls.append(1) or flat(config))

    def count(rows, main, words):
        runs, file = tmp_path / f"{rows}" / "runs", tmp_path / f"{rows}" / "grid.yaml"
        file.parent.mkdir(exist_ok=True)
        variants = [*(f"optim.warmup={50 + row}" for row in range(rows - 1)), "base"]
        planned = read_sweep(write_sweep(file, {"variant": variants, "seed": [1, 2, 3]}))
        for trial in plan_trials(planned, RunsFolder(runs)):
            trial.folder.make()
            trial.folder.set_status("done")
            trial.folder.finish(a_result(id=trial.id, weights_id=trial.identity.weights, config=trial.settings))
        calls.clear()
        monkeypatch.chdir(file.parent)
        WATCHED[:] = [[]]
        try:
            assert ended(main, *words, "--runs", runs)[0] == 0
        finally:
            seen = WATCHED.pop()
        listings = sum(event != "open" and Path(path) == runs / "trials" for event, path in seen)
        reads = Counter(path for event, path in seen if event == "open" and path.endswith("result.json"))
        assert len(reads) == 3 * rows
        return listings, {*reads.values()}, len(calls)

    return count


def test_weights_are_looked_up_in_results_that_are_read_once(runs):
    """Also those of a trial that has finished since the runs folder was listed."""
    folders, weights, late = (
        RunsFolder(runs),
        Identity({"parts": {}}).weights,  # whatever the result says
        TrialFolder(runs / "trials" / f"late-s1-{99:012x}"),
    )
    WATCHED[:] = [[]]
    try:
        before = {folder.id for _ in range(3) for folder in folders.with_weights(weights)}
        late.make()
        write_json(late.path / "identity.json", {"parts": {}})
        late.finish(a_result(id=late.id))
        assert {folder.id for folder in folders.with_weights(weights)} - before == {late.id}
    finally:
        opened = Counter(path for event, path in WATCHED.pop() if event == "open" and path.endswith("result.json"))
    assert {*opened.values()} == {1} and len(opened) == len(before) + 1 == MOST_LISTED + 4


@pytest.mark.parametrize(
    ("main", "words"),
    [(sweep.main, ["grid.yaml", "--plan"]), (report.main, ["grid.yaml"]), (sweep.main, ["--list"])],
    ids=["plan", "report", "list"],
)
def test_no_trial_costs_a_pass_over_the_others(counted, main, words):
    """A command lists the folder as often whatever is in it, reads each result once, and compares each row once."""
    (listings, reads, few), (again, _, many) = counted(4, main, words), counted(12, main, words)
    assert listings == again <= 2 and reads == {1}
    assert many <= 3.3 * few
