"""The training speed of one commit against that of another:

    python tests/benchmarks/history.py OLD [NEW] [--scale demo] [--set key=value ...]

Each is checked out in a temporary folder, and its train command runs in turn with the other's, one new trial a round.
Of both only the command line and metrics.jsonl are used, which are the same for all versions.
"""

import argparse
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from rounds import CLOCK_HELP, CLOCKS, ROOT, compare, errors_of, train_command

from transformer_pl.levels import parse_variant
from transformer_pl.runtime.environment import avoid_spinning_threads, describe_environment
from transformer_pl.runtime.errors import InputError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD", help="a commit, tag or branch")
    parser.add_argument("new", metavar="NEW", nargs="?", default="HEAD", help="the same (%(default)s)")
    parser.add_argument("--scale", default="demo", help="the name of a scale that both have (%(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="training steps a round, after as many of warm-up")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help=CLOCK_HELP)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="keys of the config, for both")
    options = parser.parse_args()
    with errors_of(parser):
        measure(options)


def measure(options: argparse.Namespace) -> None:
    avoid_spinning_threads()
    os.environ.setdefault("WANDB_MODE", "offline")
    keys = {"scale": options.scale} | parse_variant(" ".join(options.set) or "base", "--set").values
    print(f"{describe_environment([])['cpu']}, {options.threads} thread(s)")
    with TemporaryDirectory() as folder, ExitStack() as stack:
        settings = {}
        for side, revision in (("old", options.old), ("new", options.new)):
            tree, runs = Path(folder) / side, Path(folder) / f"{side}-runs"
            stack.enter_context(checked_out(revision, tree))
            runs.mkdir()
            name = f"{side}: {git(tree, 'log', '-1', '--format=%h').strip()}"
            settings[name] = train_command(tree, runs, keys, options.steps, options.threads, options.clock)
        compare(f"training at scale {options.scale}, target tokens/s ({options.clock} time)", settings, options.rounds)


@contextmanager
def checked_out(revision: str, tree: Path) -> Iterator[Path]:
    """A git worktree of a revision, removed at the end."""
    try:
        git(ROOT, "worktree", "add", "--detach", str(tree), revision)
    except subprocess.CalledProcessError as error:
        raise InputError(f"{revision}: must be a commit of this repository, but: {error.stderr.strip()}") from None
    try:
        yield tree
    finally:
        git(ROOT, "worktree", "remove", "--force", str(tree))


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
