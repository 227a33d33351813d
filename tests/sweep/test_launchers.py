"""A launcher is a line of one table, as CONTRIBUTING says, and the command needs to know nothing else of it."""

from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from grids import small_grid
from helpers import check_names
from tiny_trials import in_a_command

from tests.search.searches import DROPOUT, search_file
from transformer_pl.plan.sweep_file import located
from transformer_pl.runtime.errors import InputError
from transformer_pl.sweep import __main__ as sweep
from transformer_pl.sweep.launchers import LAUNCHERS, Launcher
from transformer_pl.sweep.sweep_options import SweepOptions, read_options
from transformer_pl.tasks.translation import Translation


@pytest.fixture
def submitted(monkeypatch):
    """What a launcher that only the table has was asked to start: file, count, words, and the datasets by then."""
    asked, started = [], []

    def script_of(folder, *job):
        asked.append(job)
        return "a script"

    def submit(folder, script):
        started.append((*asked[-1], list(folder.parents[1].glob("data/*"))))
        return "started"

    monkeypatch.setitem(LAUNCHERS, "other", SimpleNamespace(script_of=script_of, submit=submit))
    return started


def run(*words):
    with in_a_command():
        return sweep.main(list(map(str, words)))


def test_a_line_in_the_table_is_a_launcher_of_grids_and_of_searches(submitted, tmp_path, capsys):
    grid, search = small_grid(tmp_path / "grid"), search_file(tmp_path, space=DROPOUT, run_cap=3)
    for file in (grid, search):
        assert run(file, "--launcher", "other", "--runs", tmp_path / "r", "--plan") == 0
        assert "a script" in capsys.readouterr().out and not submitted
    assert run(grid, "--launcher", "other", "--runs", tmp_path / "r") == 0
    assert run(search, "--launcher", "other", "--runs", tmp_path / "r") == 0
    assert [count for _, count, *_ in submitted] == [2, 3]
    assert all("--worker" in words and "--launcher" not in words for _, _, words, _ in submitted)
    with pytest.raises(InputError, match="--slurm"):
        read_options(["grid.yaml", "--launcher", "other", "--slurm", "slurm.yaml"])


def test_a_worker_has_the_devices_of_the_command_and_absolute_paths(submitted, tmp_path, monkeypatch):
    grid = small_grid(tmp_path / "grid", seeds=(1, 2, 3))
    (tmp_path / "my.yaml").write_text("optim.max_steps: 4\n")
    monkeypatch.chdir(tmp_path)
    words = ["grid/grid.yaml", "--scale", "my.yaml", "--runs", "r", "--devices", "1", "--per-device", "2"]
    assert run(*words, "--launcher", "other") == 0
    ((file, count, worker, _),) = submitted
    options = read_options(worker)
    assert (options.devices, options.per_device, count, file) == (1, 2, 2, None)  # three trials, two on a GPU
    assert (options.file, options.scale, options.runs) == (grid, str(tmp_path / "my.yaml"), tmp_path / "r")
    assert run("smoke", "--runs", "r", "--launcher", "other") == 0
    assert read_options(submitted[-1][2]).file == located(Path("smoke")).absolute()  # a name is no path elsewhere


@pytest.mark.parametrize("is_local", [True, False])
def test_what_is_downloaded_is_prepared_before_workers_start(submitted, tmp_path, monkeypatch, is_local):
    corpus = Translation.corpus
    monkeypatch.setattr(Translation, "corpus", lambda task, data: replace(corpus(task, data), is_local=is_local))
    assert run(small_grid(tmp_path / "grid"), "--launcher", "other", "--runs", tmp_path / "r") == 0
    ((*_, prepared),) = submitted
    assert bool(prepared) != is_local


@pytest.mark.parametrize("name", [name for name in LAUNCHERS if name != "local"])
def test_each_launcher_is_given_its_file_and_shows_its_workers(name, tmp_path):
    functions = {call for call in vars(Launcher) if not call.startswith("_")}
    remedy = f"write these functions of Launcher (sweep/launchers.py) into the module of {name}"
    check_names(functions & {*dir(LAUNCHERS[name])}, functions, remedy)
    options = {stated.name for stated in fields(SweepOptions)}
    check_names(options, options | {name}, f"add the option --{name}, the file of {name}, to sweep/sweep_options.py")
    options = read_options(["grid.yaml", "--launcher", name, f"--{name}", str(tmp_path / "site.yaml")])
    assert isinstance(options, SweepOptions) and getattr(options, name) == tmp_path / "site.yaml"
    script = LAUNCHERS[name].script_of(tmp_path, None, 3, ["a grid.yaml", "--worker"])
    assert "'a grid.yaml' --worker" in script
