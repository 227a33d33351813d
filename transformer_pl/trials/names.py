"""Patterns of the names that the project gives to files and folders.

A runs folder may hold files of other programs. Nothing is removed whose name matches no pattern.
"""

import hashlib
import re
from pathlib import Path

TRIAL_FOLDER = re.compile(r".*-(?P<id>[0-9a-f]{12})")  # a user may change what stands before the id
TRIAL_FOLDER_AS_MADE = re.compile(r"([A-Za-z0-9.-]{60}|[A-Za-z0-9.-]+-s\d+)-[0-9a-f]{12}")  # see `trial_folder`
DATA_FOLDER = re.compile(r"[0-9a-f]{16}")
UNFINISHED_DATA_FOLDER = re.compile(r"\.[0-9a-f]{16}\.(unfinished|[0-9a-f]{8})")  # the second: of older versions

# The contents of the folders, as paths below each. `write_atomically` names an unfinished file `.NAME.NUMBER`.
_WANDB = r"wandb(/(run-id|settings|latest-run(/.*)?|debug[\w.-]*|((offline-)?run|sweep)-.*))?"
_TRIAL_TEXTS = (
    r"(config\.yaml|(env|identity|status|result)\.json|metrics\.jsonl|hyp\.(val|test)\.txt|scores\.(val|test)\.jsonl)"
)
_SWEEP_TEXTS = r"(plan\.json|results\.csv|table\.(md|tex)|report\.html)"
_FIGURES = (
    r"figures(/(differences|curves_(steps|flops)|front(_(params|flops))?|grid|(history|parallel|importances)(_\d+)?|"
    r"expected_best)\.(svg|pdf|png))?"
)
_DAMAGED = r"\.damaged(-\d+)?"  # see `files.set_aside`
DAMAGED_FILES = re.compile(rf".+{_DAMAGED}")
_CHECKPOINTS = r"(last|previous|new)\.(ckpt|sha256)|new\.weights|weights\.\d+\.(pt|sha256)"
CHECKPOINT_FILES = re.compile(rf"({_CHECKPOINTS})({_DAMAGED})?|\.(new|last|previous|weights\.\d+)\.sha256\.\d+")
CLAIM_FILES = re.compile(r"claim\.[1-9]\d*")  # see runtime/lease.py
UNFINISHED_TRIAL_FILES = re.compile(rf"\.({_TRIAL_TEXTS}|{CLAIM_FILES.pattern})\.\d+|\.weights\.pt")
LOG_FILES = re.compile(r"log(\.(?P<attempt>\d+))?\.txt")  # the last attempt's has no number
TRIAL_FILES = re.compile(
    rf"({_TRIAL_TEXTS}|weights\.pt)({_DAMAGED})?|log(\.\d+)?\.txt|lock|{CLAIM_FILES.pattern}|{UNFINISHED_TRIAL_FILES.pattern}|"
    rf"checkpoints(/({CHECKPOINT_FILES.pattern}))?|sources(/.*)?|{_WANDB}",
    re.DOTALL,
)
SWEEP_FILES = re.compile(
    rf"{_SWEEP_TEXTS}({_DAMAGED})?|lock|slurm(/.*)?|\.{_SWEEP_TEXTS}\.\d+|study\.journal({_DAMAGED}|\.lock.*)?|{_FIGURES}|{_WANDB}",
    re.DOTALL,
)
DATA_FILES = re.compile(
    r"(meta\.json|tokenizer\.model|(train|val|test)\.(source|target)(\.offsets)?\.npy|"
    rf"(val|test)\.(source|target)\.txt)({_DAMAGED})?|train\.kept|(counts|progress)\.json|lock|"
    r"\.(tokenizer\.model|(counts|progress)\.json)\.\d+"
)
SUBFOLDERS = re.compile(r"checkpoints|figures|slurm|(sources|wandb)(/.*)?", re.DOTALL)  # everything else is a file
LINKS = re.compile(r"wandb/.*|study\.journal\.lock.*", re.DOTALL)  # some of these are symbolic links


def as_folder(name: str) -> str:
    """A sweep's title as the name of its folder; with a short hash where characters were replaced, as others may be."""
    folder = re.sub(r"[^A-Za-z0-9@._-]+", "-", name)
    return folder if folder == name else f"{folder}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def sweep_title(name: str, scale: str) -> str:
    """The name of a sweep's folder, and of its report at W&B: `table3-A@demo`."""
    return f"{name}@{Path(scale).stem}"


def trial_id(folder: str) -> str:
    """The id of a trial whose folder has this name, whatever a user has made of what stands before it."""
    return folder.rpartition("-")[2]


def trial_folder(readable: str, id_: str) -> str:
    """The name of a trial's folder: `readable`, shortened to 60 characters before its `-s` and seed; and the id."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", readable).strip("-")
    seed = re.search(r"-s\d+$", name)
    end = seed[0] if seed else ""
    return f"{name.removesuffix(end)[: 60 - len(end)].strip('-')}{end}-{id_}"
