"""Parallel text in three splits, and how the splits of a folder or a dataset are found by their names."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from transformer_pl.config import Data
from transformer_pl.runtime.errors import InputError, shown

Pair = tuple[str, str]  # source and target

SPLITS = ("train", "val", "test")
EVALUATION = ("val", "test")  # the splits that keep every pair, and whose text is stored beside their tokens
BEGINNINGS = {"train": ("train",), "val": ("val", "dev"), "test": ("test",)}


@dataclass(frozen=True)
class Corpus:
    """Parallel text in three splits.

    fingerprint: plain values that identify the text, wherever it lies.
    description: one line for people.
    pairs: train, val or test -> its sentences (source, target) from the beginning; no sentence holds a newline.
    is_local: whether it can be read without a download.
    """

    fingerprint: dict[str, Any]
    description: str
    pairs: Callable[[str], Iterator[Pair]]
    is_local: bool = True


def choose_splits(names: Iterable[str], data: Data, place: str, hint: str = "") -> dict[str, str]:
    """Return the name of each split: the name in `data`, or else the only one with the usual beginning.

    hint: what an error message adds about names.
    """
    names = list(names)
    chosen, mistakes = {}, []
    for role in SPLITS:
        wanted = getattr(data, role)
        candidates = [name for name in names if (name == wanted if wanted else name.startswith(BEGINNINGS[role]))]
        if len(candidates) == 1:
            chosen[role] = candidates[0]
            continue
        rule = f"named {wanted}" if wanted else f"that begins with {' or '.join(BEGINNINGS[role])}"
        holds = shown(", ".join(candidates or names) or "nothing")
        remedy = f"name it with data.{role}=NAME{hint}"
        mistakes.append(f"{place}: must hold one split {rule}, but holds {holds}; {remedy}")
    if mistakes:
        raise InputError(*mistakes)
    return chosen
