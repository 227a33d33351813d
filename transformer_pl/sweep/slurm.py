"""Submits a sweep to SLURM as a job array. Each task of the array runs the same sweep command, as a worker.

A worker uses all resources of its task. It trains trials that no other worker is training, and ends when none is left.
Before its time limit, and when it is preempted, it saves and is requeued. Workers share a sweep as all commands with
one runs folder do.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_pl.config.types import TEXT
from transformer_pl.runtime.errors import InputError, shown
from transformer_pl.runtime.files import read_yaml, write_atomically
from transformer_pl.runtime.signals import JOB_GRACE_S

OURS = ("array", "job-name", "output", "open-mode", "requeue", "signal", "nodes", "ntasks", "ntasks-per-node", "wait")
OWN = {  # keys of the site's file that are no options of sbatch, and what the script can have as it stands
    "setup": (r"[^\x00-\x08\x0b-\x1f\x7f-\x9f]*", "lines of bash, as `setup: |` begins them"),
    "python": (TEXT, "a command on one line"),
}
SCRIPT = """\
#!/bin/bash
{options}

{setup}set +eu  # whatever the lines of setup have set
export PYTHONPATH={here}${{PYTHONPATH:+:$PYTHONPATH}}  # your own modules, wherever chdir goes
trap 'at_limit=yes; kill -TERM $sweep' USR1  # SLURM sends it {save_s} s before the time limit
trap : TERM  # of a preemption or scancel: SLURM sends it to the sweep as well
{command} &
sweep=$!
while kill -0 $sweep 2> /dev/null; do sleep 1; done  # a signal may end `wait`, and bash may then lose the exit code
wait $sweep
code=$?
if [ "$at_limit" ] && [ $code = 143 ]; then
    scontrol requeue "$SLURM_JOB_ID" && sleep 60
fi
exit $code
"""


def submit(folder: Path, script: str) -> str:
    """Submit a script to sbatch, and return how its job is seen and ended. Raises an InputError where it is refused."""
    path = folder / "slurm" / "array.sh"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, script)
    try:
        done = subprocess.run(["sbatch", "--parsable", str(path)], capture_output=True, text=True)
    except FileNotFoundError:
        raise InputError("--launcher slurm: needs the command sbatch; start this on a login node") from None
    if done.returncode:
        reason = " ".join(done.stderr.split())
        raise InputError(f"--launcher slurm: sbatch must take {path}, but: {reason}; correct the file of --slurm")
    job = done.stdout.strip().partition(";")[0]
    return f"job {job}: see it by squeue --job {job}, cancel it by scancel {job}; its output: {folder}/slurm"


class Site(NamedTuple):
    """What the file of --slurm says of a cluster. setup: lines of bash before the command. python: the command."""

    options: Mapping[str, str | None]
    setup: str
    python: str


def read_site(path: Path | None) -> Site:
    """Read a YAML file: `setup`, `python`, and the options of sbatch for one task, as `partition: long`.

    sbatch itself checks the names of its options, and gets values as they are written. `exclusive: true` and
    `exclusive:` give None, and `exclusive: false` is left out. Raises an InputError for options that the sweep sets
    itself, and for what cannot be an option.
    """
    content = read_yaml(path, numbers=False) if path else {}
    options: dict[str, Any] = {str(key): value for key, value in content.items()}
    own = {"setup": "", "python": shlex.quote(sys.executable)}
    own |= {key: options.pop(key) for key in own if key in options}
    mistakes = [
        f"{path}: {key} = {shown(own[key])}: must be {rule}; correct it"
        for key, (pattern, rule) in OWN.items()
        if not (isinstance(own[key], str) and re.fullmatch(pattern, own[key]))
    ]
    mistakes += [f"{path}: {wrong}" for key, value in options.items() if (wrong := _mistake_in(key, value))]
    if mistakes:
        raise InputError(*mistakes)
    given = {key: value for key, value in options.items() if value is not False}
    return Site({key: None if value is True else value for key, value in given.items()}, **own)


def _mistake_in(key: str, value: object) -> str:
    """What is wrong with an option of sbatch, and what to do; empty for nothing."""
    if key in OURS:
        return f"{key}: is set by the sweep itself; leave it out"
    if not re.fullmatch("[A-Za-z][A-Za-z0-9-]*", key):
        return f"{shown(key)}: must be an option of sbatch, without its dashes; correct it"
    is_plain = isinstance(value, str | bool | None)
    return "" if is_plain else f"{key} = {shown(value)}: must be a text, a number, true or false; correct it"


def script_of(folder: Path, file: Path | None, count: int, words: Sequence[str]) -> str:
    """The batch script of an array of so many workers.

    folder: of the sweep, where the tasks print. file: of --slurm. words: the arguments of each worker's sweep command.
    Raises an InputError for mistakes in the file, and for an option of several lines.
    """
    site, output = read_site(file), str(folder.absolute() / "slurm").replace("%", "%%")
    lines = [
        f"--job-name={_quoted(folder.name)}",
        f"--array=0-{count - 1}",
        *(f"--{key}" if value is None else f"--{key}={_quoted(value)}" for key, value in site.options.items()),
        "--ntasks=1",
        f"--output={_quoted(output)}/%A.%a.txt",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:USR1@{JOB_GRACE_S}",
    ]
    if broken := [line for line in lines if not re.fullmatch(TEXT, line)]:
        rule = "must be text without control characters; correct it"
        raise InputError(*(f"--launcher slurm: {shown(line)}: {rule}" for line in broken))
    return SCRIPT.format(
        options="\n".join(f"#SBATCH {line}" for line in lines),
        setup=site.setup and f"{site.setup.rstrip()}\n",
        here=shlex.quote(os.getcwd()),
        save_s=JOB_GRACE_S,
        command=f"{site.python} -m transformer_pl.sweep {shlex.join(words)}",
    )


def _quoted(value: str) -> str:
    """A value quoted for sbatch, which reads quotes as a shell does, but with a backslash as an escape inside, too."""
    return value if value == shlex.quote(value) else "'" + re.sub(r"([\\'])", r"\\\1", value) + "'"
