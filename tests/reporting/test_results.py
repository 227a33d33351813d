"""The table of sweeps/README.md at scale multi30k is that of the trials in sweeps/results."""

import tarfile
from pathlib import Path

from transformer_pl.data.prepared import Prepared
from transformer_pl.experiments.plan import PlannedTrial
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.reporting.table import table_of
from transformer_pl.trials.identity import Identity
from transformer_pl.trials.runs_folder import finished_results
from transformer_pl.trials.trial import Trial

SWEEPS = Path(__file__).parents[2] / "sweeps"
HEADING = "## Table 3 at scale multi30k\n"


def test_the_table_is_that_of_the_trials(tmp_path):
    archives = sorted((SWEEPS / "results").glob("multi30k_s*.tar.xz"))
    for archive in archives:
        with tarfile.open(archive) as files:
            files.extractall(tmp_path, filter="data")
    folders = {result["name"]: result["folder"] for result in finished_results(tmp_path)}
    seeds = [archive.name.removeprefix("multi30k_s").removesuffix(".tar.xz") for archive in archives]
    sweep = read_sweep(SWEEPS / "table3.yaml", "multi30k", seeds)
    planned = [
        PlannedTrial(number, name, config, Identity({}), Trial(folders[name]), Prepared(tmp_path))
        for number, row in enumerate(sweep.rows)
        for config in row.configs
        if (name := f"{row.name} s{config.seed}") in folders
    ]
    assert len(planned) == len(folders)
    table = table_of(sweep, planned).markdown().splitlines()
    section = (SWEEPS / "README.md").read_text(encoding="utf-8").split(HEADING)[1].split("\n## ")[0]
    printed = [line for line in section.splitlines() if line.startswith("| ")]
    assert printed == table[: len(printed)] and len(printed) == len(sweep.rows) + 2
