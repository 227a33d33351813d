"""A trial trained again: what differs from then in its surroundings, and whether the results are equal."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from transformer_pl.config import is_known_key
from transformer_pl.levels import Level
from transformer_pl.runtime.errors import InputError, shown
from transformer_pl.runtime.files import load_json
from transformer_pl.trials.identity import mapping_difference
from transformer_pl.trials.runs_folder import DEFAULT_RUNS, find, trained_level
from transformer_pl.trials.schemas import Environment, IdentityInputs
from transformer_pl.trials.trial import Trial
from transformer_pl.trials.why_new import describe_inputs

# What env.json has of the things that a result may depend on, and what people call it
SURROUNDINGS = {
    "python": "Python",
    "system": "system",
    "cpu": "CPU",
    "gpus": "GPUs",
    "threads": "threads of each process",
    "commit": "git commit",
    "data": "prepared text",
    "tokenizer": "tokenizer",
}
TIMED = "metrics.jsonl"  # holds times, so no two trainings write the same


class Earlier(NamedTuple):
    """A finished trial that is to be repeated, with what it recorded."""

    trial: Trial
    result: dict[str, Any]
    environment: dict[str, Any]
    inputs: dict[str, Any]  # of its identity

    @classmethod
    def named(cls, name: str, runs: Path) -> "Earlier":
        """The trial of a folder, or of an id or a part of a name in the default runs folder.

        runs: where it will be trained again. Raises an InputError unless the name means one finished trial whose files
        can be read, in another runs folder.
        """
        result = find(DEFAULT_RUNS, name)
        trial = Trial(result["folder"])
        home = trial.folder.parents[1]
        if home.resolve() == runs.resolve():
            raise InputError(
                f"--runs {runs}: must be another folder than the one that holds {trial.folder.name}, where this trial "
                "has finished; add --runs=FOLDER"
            )
        environment = _content(trial.folder / "env.json", Environment)
        return cls(trial, result, environment, _content(trial.folder / "identity.json", IdentityInputs))

    @property
    def level(self) -> Level:
        """The keys that the trial was trained with. Results depend on the threads in their last bits, so these too."""
        level = trained_level(self.result)
        return level._replace(values={"trainer.threads": self.environment.get("threads")} | dict(level.values))

    @property
    def difference(self) -> str:
        """How its config differs from its scale: `base`, or such as `h=4`."""
        return self.result["name"].rpartition(" s")[0]

    def differences(self, trial: Trial) -> list[str]:
        """What differs between the surroundings of this trial and those of its repetition, one line for each thing."""
        now = trial.environment()
        changes = mapping_difference(_surroundings(now), _surroundings(self.environment))
        lines = [f"{name}: {_said(then)} -> {_said(new)}" for name, (new, then) in changes.items()]
        config = self.result["config"]
        unknown = [key for key in config if not (is_known_key(key) or key.startswith("effective."))]
        lines += [f"{key} = {shown(config[key])}: this version has no such key" for key in unknown]
        if inputs := trial.identity_inputs():
            lines += describe_inputs(_without_text(inputs), _without_text(self.inputs), self.trial)
        return lines

    def compared(self, result: Mapping[str, Any]) -> list[str]:
        """Whether the result of the repetition is equal: one line if it is, else one for each thing that differs."""
        metrics = mapping_difference(result["metrics"], self.result["metrics"])
        ours, theirs = (one.get("digests", {}) for one in (result, self.result))
        files = [name for name in theirs if name != TIMED]
        differing = [name for name in files if ours.get(name) != theirs[name]]
        if not metrics and not differing:
            same_files = f", and the bytes of {', '.join(files)}" if files else ""
            return [f"equal to {self.trial.folder}: {len(result['metrics'])} metrics{same_files}"]
        lines = [f"not equal to {self.trial.folder}:"]
        lines += [f"  {name} {_apart(then, now)}" for name, (now, then) in metrics.items()]
        lines += [f"  every metric is equal, all {len(result['metrics'])}"] if not metrics else []
        return [*lines, *([f"  other bytes: {', '.join(differing)}"] if differing else [])]


def _content(path: Path, schema: type[BaseModel]) -> dict[str, Any]:
    try:
        return load_json(path, schema)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{path}: must be what the trial recorded, to tell what differs from then, but: {reason}; repeat another "
            "trial, or train this one by its keys"
        ) from None


def _surroundings(environment: Mapping[str, Any]) -> dict[str, Any]:
    """By what people call it; None where it was not recorded."""
    changed = environment.get("changed")
    state = {None: None, False: "no", True: f"yes ({environment.get('diff') or 'which, was not recorded'})"}[changed]
    own = {name: environment.get(key) for key, name in SURROUNDINGS.items()}
    return own | {"files changed since that commit": state} | environment.get("packages", {})


def _said(value: Any) -> str:
    if value is None:
        return "not recorded"
    return shown((", ".join(map(str, value)) or "none") if isinstance(value, list) else value)


def _without_text(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Without the text's fingerprint: the prepared text is named after it and the tokenizer's settings."""
    return {key: value for key, value in inputs.items() if key != "data"}


def _apart(then: float | None, now: float | None) -> str:
    """Two values of a metric, and how far they are apart; None where it was not measured."""
    values = " -> ".join("not measured" if value is None else f"{value:.6g}" for value in (then, now))
    return values if then is None or now is None else f"{values} ({now - then:+.2g})"
