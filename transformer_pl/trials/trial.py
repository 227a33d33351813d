"""A trial: one training of a config with one seed."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from transformer_pl.config import Config, effective_sizes
from transformer_pl.config.types import as_word
from transformer_pl.data.prepare import prepared_dataset
from transformer_pl.data.prepared import Prepared
from transformer_pl.runtime.environment import SWEEP
from transformer_pl.task import Corpus
from transformer_pl.trials.identity import Identity
from transformer_pl.trials.trial_folder import STATE, TrialFolder


@dataclass(frozen=True)
class Origin:
    """Where a trial comes from: the row of a sweep, the draw of a search, or a command that trains it alone."""

    row: str = "base"  # what differs from base, or `base`; of a search what was drawn
    name: str = ""  # what plans, tables and W&B call the trial; empty: its row and seed, such as `h=4 s1`
    scale: str = ""  # the name of the scale
    keys: Mapping[str, Any] = field(default_factory=dict)  # of `train`, but scale and seed
    place: int = 0  # the index of its row in the sweep; of a search: the trial's number
    rerun: bool = False  # whether it is trained again if it has ended


ALONE = Origin()


@dataclass(frozen=True, eq=False)
class Trial:
    """A trial that is planned or trained; `trial_of` makes it. Of one that is found, there are folder and result."""

    folder: TrialFolder  # where it lies
    config: Config  # what is trained
    identity: Identity  # what its result depends on
    corpus: Corpus  # its text
    origin: Origin = ALONE
    start: TrialFolder | None = None  # the trial whose weights are where the training begins; None: random weights
    trunk: "Trial | None" = None  # this trial where it is planned, too; None: it is named by its id

    @property
    def id(self) -> str:
        """The hash of its identity."""
        return self.folder.id

    @property
    def name(self) -> str:
        """What plans, tables and W&B call it."""
        return self.origin.name or f"{self.origin.row} s{self.config.seed}"

    @property
    def place(self) -> int:
        """The index of its row in the sweep; of a search: the trial's number."""
        return self.origin.place

    @property
    def runs(self) -> Path:
        """The runs folder."""
        return self.folder.runs

    @cached_property
    def prepared(self) -> Prepared:
        """Its dataset, which need not be prepared yet."""
        return prepared_dataset(self.config.data, self.runs, self.corpus)

    @property
    def argv(self) -> list[str]:
        """The arguments of `python -m transformer_pl.train`, which alone decide its config."""
        options = [f"--{key}={as_word(value)}" for key, value in self.origin.keys.items()]
        rerun = ["--rerun"] if self.origin.rerun else []
        return [f"--scale={self.origin.scale}", *options, f"--seed={self.config.seed}", f"--runs={self.runs}", *rerun]

    @property
    def settings(self) -> dict[str, Any]:
        """The config by dotted keys, with the sizes that its multipliers give."""
        return self.config.flat() | effective_sizes(self.config)

    @property
    def tags(self) -> list[str]:
        return [self.origin.scale, self.origin.row]

    def labels(self) -> dict[str, Any]:
        """The folder of the W&B run, and what it shows from its start."""
        config = self.settings | {"sweep": os.environ.get(SWEEP, "none"), "row": self.origin.row}
        return {"folder": str(self.folder), "name": self.name, "tags": self.tags, "config": config}

    @property
    def continued(self) -> TrialFolder | None:
        """The trial from whose last state this one goes on; None where it begins at step 1."""
        return self.start if self.config.model.start_with == "all" else None

    def begins_after(self) -> int:
        """The step from which it goes on; 0 where it begins at step 1, or where its start has not finished."""
        result = self.continued.result() if self.continued else None
        return result.steps if result else 0

    def needs_training(self) -> bool:
        """Whether it has neither finished nor diverged, or is to be trained again."""
        return self.origin.rerun or self.folder.needs_training()

    @property
    def keeps_state(self) -> bool:
        """Whether its last state stays, so that others can go on from it."""
        return self.config.trainer.keep_state == "on"

    def can_use(self, other: TrialFolder) -> bool:
        """Whether the files lie in the folder of a trial with the same weights that this one takes from it."""
        return other.has_weights() and (not self.keeps_state or (other.path / STATE).exists())

    @property
    def can_share(self) -> bool:
        """Whether it may use the weights of another trial: it has not begun to train, nor is it to be trained again."""
        return not self.origin.rerun and not self.folder.checkpoints.exists()

    def threads(self, share: int) -> int:
        """The number of threads for each process of the trial. Its results depend on it in their last bits.

        It is trainer.threads, or the number an unfinished trial began with, or `share`, a process's share of the
        machine.
        """
        begun = None if self.folder.result() else self.folder.environment().get("threads")
        return self.config.trainer.threads or begun or share


def with_trunks(trials: Sequence[Trial]) -> list[Trial]:
    """Trials, and behind them those that must be trained before one of them can be, each once.

    A trial may be that of two rows.
    """
    by_id = {trial.id: trial for trial in trials}
    found = [*by_id.values()]
    for trial in found:  # which grows
        trunk = trial.trunk
        if trunk and trunk.id not in by_id and trunk.needs_training() and trial.needs_training():
            found.append(trunk)
            by_id[trunk.id] = trunk
    return found
