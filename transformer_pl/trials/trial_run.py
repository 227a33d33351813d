"""One trial that a command trains: its config, its identity, and where it lies on disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_pl.config import Config, effective_sizes
from transformer_pl.config.component_sources import source_digests, task_digest
from transformer_pl.runtime.environment import sweep_and_row
from transformer_pl.task import Corpus
from transformer_pl.trials.identity import Identity, identity
from transformer_pl.trials.trial import Trial


@dataclass(frozen=True)
class TrialRun:
    """A trial as the train command works on it."""

    config: Config
    runs: Path  # the runs folder
    scale: str  # its name
    difference: str  # how the config differs from the scale: `base`, or such as `h=4`
    corpus: Corpus
    identity: Identity
    trial: Trial

    @classmethod
    def of(cls, config: Config, runs: Path, scale: str, difference: str, corpus: Corpus) -> "TrialRun":
        """The run of a config on a corpus: equal identities share one folder."""
        trial_identity = identity(config, corpus.fingerprint, source_digests(config.model) | task_digest(config.data))
        trial = Trial.at(runs, trial_identity.trial, lambda: f"{scale}-{difference}-s{config.seed}")
        return cls(config, runs, scale, difference, corpus, trial_identity, trial)

    @property
    def name(self) -> str:
        """What tables and W&B call it, such as `h=4 s1`."""
        return f"{self.difference} s{self.config.seed}"

    @property
    def tags(self) -> list[str]:
        return [self.scale, self.difference]

    @property
    def settings(self) -> dict[str, Any]:
        """The config by dotted keys, with the sizes that its multipliers give."""
        return self.config.flat() | effective_sizes(self.config)

    def labels(self) -> dict[str, Any]:
        """The folder of the W&B run, and what it shows from its start."""
        config = self.settings | sweep_and_row(self.difference)
        return {"folder": str(self.trial.folder), "name": self.name, "tags": self.tags, "config": config}
