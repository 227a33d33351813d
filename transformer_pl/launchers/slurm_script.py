"""The batch script of a job array: what a user asks of SLURM, and how a task trains its trial."""

import math
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from transformer_pl.config import Trainer
from transformer_pl.key_types import constraint_of
from transformer_pl.launchers import TRAIN
from transformer_pl.runtime.errors import InputError, shown, suggestion
from transformer_pl.runtime.terminal import counted
from transformer_pl.runtime.yaml_file import read_yaml

SAVE_S = 60  # before its time limit a trial is told to save: it has this many seconds for a step and a checkpoint


def _word(text: str) -> str:
    """Refuse what would end an #SBATCH line's option."""
    if not re.fullmatch(r"[\w.,:;@%+=/\[\]|&*()!~^-]+", text):
        raise ValueError("must be one word without quotes")
    return text


def _time(text: str) -> str:
    if _minutes(text) is None:
        raise ValueError('must be a time as sbatch reads it, in quotes, such as "2:00:00" or "1-12:00:00"')
    return text


def _gpus(value: int | str) -> int | str:
    if not re.fullmatch(r"([\w.-]+:)?[0-9]+", str(value)):
        raise ValueError("must be a number, or a type and a number such as a100:4")
    return value


Word = Annotated[str, AfterValidator(_word)]


class Resources(BaseModel):
    """What a trial needs: the options of sbatch that a user may set, by sbatch's own names."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "-")
    )

    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    reservation: Word | None = None
    constraint: Word | None = None
    exclude: Word | None = None
    time: Annotated[str, AfterValidator(_time)] | None = None
    mem: Word | None = None  # of each node
    cpus_per_task: int = Field(default=1, ge=1, le=1024)  # of each process of a trial
    gpus_per_node: Annotated[int | str, AfterValidator(_gpus)] | None = None
    gres: Word | None = None  # such as gpu:2, where --gpus-per-node does not exist

    @classmethod
    def read(cls, path: Path | None) -> "Resources":
        """Those of a YAML file; without one the cluster's own defaults. Raises an InputError that names the key."""
        content = read_yaml(path) if path else {}
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            known = [name.replace("_", "-") for name in cls.model_fields]
            messages = []
            for one in error.errors():
                key = ".".join(map(str, one["loc"][:1]))
                if one["type"] == "extra_forbidden":
                    messages.append(f"{path}: {key}: is no key of a --slurm file{suggestion(key, known)}")
                elif key == "time" and one["type"] == "string_type":  # YAML reads 2:00:00 as 7200
                    messages.append(
                        f'{path}: time: must be in quotes, or YAML reads another number; write "2:00:00" for two hours'
                    )
                else:
                    quotes = "; write it in quotes" if one["type"] == "string_type" else ""
                    messages.append(f"{path}: {key} = {shown(one['input'])}: {constraint_of(one)}{quotes}")
            raise InputError(*messages) from None

    @property
    def gpus(self) -> int:
        """How many GPUs a trial has on each node."""
        if self.gpus_per_node is not None:
            return int(str(self.gpus_per_node).rpartition(":")[2])
        for one in (self.gres or "").split(","):
            name, *type_and_number = one.split(":")
            if name == "gpu":
                return int(type_and_number[-1]) if type_and_number and type_and_number[-1].isdecimal() else 1
        return 0

    @property
    def hours(self) -> float | None:
        """The time limit of a trial; None: the partition's."""
        minutes = self.time and _minutes(self.time)
        return minutes / 60 if minutes else None

    def lines(self) -> list[str]:
        """`--partition=long`, and so on."""
        return [f"--{key}={value}" for key, value in self.model_dump(by_alias=True).items() if value is not None]


def _minutes(text: str) -> float | None:
    """The forms of sbatch's --time: minutes, m:s, h:m:s, d-h, d-h:m, d-h:m:s; None for any other."""
    if not re.fullmatch(r"(\d{1,4}-\d{1,2}(:\d{1,2}){0,2}|\d{1,6}(:\d{1,2}){0,2})", text):
        return None
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, seconds = [*parts, 0, 0][:3]
        return int(days) * 1440 + hours * 60 + minutes + seconds / 60
    if len(parts) == 3:
        return parts[0] * 60 + parts[1] + parts[2] / 60
    return parts[0] + (parts[1] / 60 if len(parts) == 2 else 0)


class Task(NamedTuple):
    """A task of an array: one trial."""

    argv: Sequence[str]
    variables: Mapping[str, str]
    checkpoint: Path  # that the trial writes last when it is told to stop


HEAD = """\
#!/bin/bash
{options}

case $SLURM_ARRAY_TASK_ID in
"""
TAIL = """\
esac

# SLURM sends USR1 to this script {save_s} s before the time limit: the trial saves and stops, and continues in a
# requeued job, unless this job has saved nothing. A preemption sends TERM to the trial as well, and SLURM requeues.
saved() {{ stat -c %y "$checkpoint" 2>/dev/null; }}
before=$(saved)
trap 'at_limit=yes; {tell}' USR1
trap : TERM
{command} "$@" &
trial=$!
while kill -0 $trial 2>/dev/null; do sleep 1; done  # a signal may end wait, and bash 5.2 may then lose the exit code
wait $trial
code=$?
if [ "$at_limit" ] && [ $code = 143 ]; then
    if [ "$(saved)" = "$before" ]; then
        echo "the time limit came before anything was saved: the trial needs more time"
    else
        scontrol requeue "$SLURM_JOB_ID" && sleep 60
    fi
fi
exit $code
"""


def batch_script(
    name: str, tasks: Sequence[Task], resources: Resources, trainer: Trainer, output: Path, at_once: int | None = None
) -> str:
    """The script of an array whose i-th task trains the i-th trial.

    name: of the job. trainer: of every trial, which says how many nodes and processes it has. output: the folder of
    what the tasks print. at_once: how many tasks run at once; None: as many as SLURM lets.
    """
    several = trainer.num_nodes * trainer.devices > 1
    throttle = f"%{at_once}" if at_once else ""
    options = [
        f"--job-name={name}",
        f"--array=0-{len(tasks) - 1}{throttle}",
        f"--nodes={trainer.num_nodes}",
        f"--ntasks-per-node={trainer.devices}",
        *resources.lines(),
        f"--output={shlex.quote(str(output).replace('%', '%%'))}/%x.%a.txt",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:USR1@{SAVE_S}",
    ]
    cases = []
    for number, task in enumerate(tasks):
        variables = " ".join(f"{key}={shlex.quote(value)}" for key, value in task.variables.items())
        checkpoint = shlex.quote(str(task.checkpoint))
        cases.append(f"{number}) export {variables}; checkpoint={checkpoint}; set -- {shlex.join(task.argv)} ;;\n")
    command = shlex.join([sys.executable, "-m", TRAIN])
    if several:
        command = f"srun --kill-on-bad-exit=1 --cpus-per-task={resources.cpus_per_task} {command}"
    tell = 'scancel --signal=TERM "$SLURM_JOB_ID"' if several else "kill -TERM $trial"  # of a job: to its steps
    head = HEAD.format(options="\n".join(f"#SBATCH {option}" for option in options))
    return head + "".join(cases) + TAIL.format(save_s=SAVE_S, tell=tell, command=command)


def asked_hours(trial_count: int, resources: Resources, trainer: Trainer) -> str:
    """What so many trials ask for at most, for people."""
    kind, each = ("GPU", resources.gpus) if resources.gpus else ("core", trainer.devices * resources.cpus_per_task)
    each *= trainer.num_nodes
    devices = f"{trial_count} x {counted(each, kind)}"
    if resources.hours is None:
        return f"asks SLURM for {devices}, for as long as the partition allows: time is not set"
    total = trial_count * each * resources.hours
    shown_total = f"{total:.1f}" if total < 10 else f"{math.ceil(total):,}"
    return (
        f"asks SLURM for at most {devices} x {timedelta(hours=resources.hours)} = {shown_total} {kind}-hours, more if "
        "a trial reaches this limit and continues"
    )
