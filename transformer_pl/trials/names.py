"""What files and folders are called: the rule for names that users give, and the names of our own.

Whoever removes something takes nothing that is called otherwise: a runs folder may hold the files of others.
"""

import re
from pathlib import Path

LONGEST = 128  # characters: W&B's bound for a project and a group, and about half of what a file system takes

TRIAL_FOLDER = re.compile(r".*-(?P<id>[0-9a-f]{12})")  # a user may change what stands before the id
TRIAL_FOLDER_AS_MADE = re.compile(r"([A-Za-z0-9.-]{60}|[A-Za-z0-9.-]+-s\d+)-[0-9a-f]{12}")  # see `trial_folder`
DATA_FOLDER = re.compile(r"[0-9a-f]{16}")
UNFINISHED_DATA_FOLDER = re.compile(r"\.[0-9a-f]{16}\.[0-9a-f]{8}")

# What the folders hold, by the path below each. `write` of results.py calls a file `.NAME.PID` until it is whole.
_WANDB = r"wandb(/(run-id|settings|latest-run(/.*)?|debug[\w.-]*|((offline-)?run|sweep)-.*))?"
_TRIAL_TEXTS = (
    r"(config\.yaml|(env|identity|status|result)\.json|metrics\.jsonl|hyp\.(val|test)\.txt|scores\.(val|test)\.jsonl)"
)
_SWEEP_TEXTS = r"(plan\.json|results\.csv|table\.(md|tex)|report\.html)"
_FIGURES = (
    r"figures(/(differences|curves_(steps|flops)|front(_(params|flops))?|grid|(history|parallel|importances)(_\d+)?|"
    r"expected_best)\.(svg|pdf|png))?"
)
CHECKPOINT_FILES = re.compile(r"(last|previous|new)\.(ckpt|sha256)|new\.weights|weights\.\d+\.(pt|sha256)")
UNFINISHED_TRIAL_FILES = re.compile(rf"\.{_TRIAL_TEXTS}\.\d+|\.weights\.pt")
TRIAL_FILES = re.compile(
    rf"{_TRIAL_TEXTS}|result\.json\.damaged|log\.txt|lock|weights\.pt|{UNFINISHED_TRIAL_FILES.pattern}|"
    rf"checkpoints(/({CHECKPOINT_FILES.pattern}))?|{_WANDB}",
    re.DOTALL,
)
SWEEP_FILES = re.compile(
    rf"{_SWEEP_TEXTS}|\.{_SWEEP_TEXTS}\.\d+|study\.journal(\.lock.*)?|{_FIGURES}|{_WANDB}", re.DOTALL
)
DATA_FILES = re.compile(
    r"meta\.json|tokenizer\.model|(train|val|test)\.(source|target)(\.offsets)?\.npy|(val|test)\.(source|target)\.txt"
)
SUBFOLDERS = re.compile(r"checkpoints|figures|wandb(/.*)?", re.DOTALL)  # whatever else is there is a file
LINKS = re.compile(r"wandb/.*|study\.journal\.lock.*", re.DOTALL)  # of these some are symbolic links


def broken_rule(name: str, without: str = "") -> str | None:
    r"""What is wrong with a name that must stay in the folder where it stands; None where nothing is.

    without: characters that it must not have, beside `/` and `\`.
    """
    forbidden = "/\\" + without
    if 0 < len(name) <= LONGEST and name.isprintable() and name not in (".", "..") and not set(name) & set(forbidden):
        return None
    return f"must be a plain name: 1 to {LONGEST} printable characters, none of {' '.join(forbidden)}, not . or .."


def as_folder(name: str) -> str:
    """What the folder of a sweep is called, its name and more."""
    return re.sub(r"[^A-Za-z0-9@._-]+", "-", name)


def sweep_title(name: str, scale: str) -> str:
    """A sweep at a scale, as its folder and its report at W&B are called: `table3-A@demo`."""
    return f"{name}@{Path(scale).stem}"


def trial_folder(readable: str, trial_id: str) -> str:
    """What the folder of a trial is called. `readable` ends with `-s` and the seed, unless it is cut off."""
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', readable).strip('-')[:60]}-{trial_id}"
