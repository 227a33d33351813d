"""Small searches for tests: their files, studies and queues."""

from functools import partial
from pathlib import Path

import optuna
import yaml
from helpers import a_result, shared_text

from transformer_pl.search import samplers
from transformer_pl.search.drawing import SearchQueue
from transformer_pl.search.space import read_search
from transformer_pl.search.study import JOURNAL, create_study

SMALL = {"model.width": 0.0625, "optim.max_steps": 20, "trainer.val_every": 10, "decode.beam": 1, "decode.extra": 2}
SMALL |= {"data.path": str(shared_text()), "data.vocab_size": 400}
DROPOUT = {"model.p_drop": {"min": 0.0, "max": 0.3}}
SPACE = {"model.h": {"values": [3, 4, 8]}} | DROPOUT
OPTUNA = {"method": "custom", "scheduler": {"engine": "optuna"}, "metric": None}


def content(space=SPACE, run_cap=4, method="random", **more):
    """The content of a small sweep file that searches; None takes a key out."""
    fixed = {key: {"value": value} for key, value in (SMALL | more.pop("fixed", {})).items()}
    goal = {"metric": {"name": "val/ppl", "goal": "minimize"}}
    keys = {"name": "try", "method": method, "run_cap": run_cap, "parameters": fixed | space} | goal | more
    return {key: value for key, value in keys.items() if value is not None}


def search_file(folder, **keys):
    path = folder / "search.yaml"
    path.write_text(yaml.safe_dump(content(**keys), sort_keys=False))
    return path


def search_of(sets=None, seeds=None, **keys):
    return read_search(Path("search.yaml"), content(**keys), None, seeds, sets or {})


def study_folder(folder):
    return folder / "runs" / "sweeps" / "try@demo"


def queue_of(folder, sampler=None, url=None, words=None, **keys):
    """The queue of a search in `folder`, as the next process has it. words: of --sampler."""
    study_folder(folder).mkdir(parents=True, exist_ok=True)
    search = search_of(**keys)
    study = create_study(search, study_folder(folder), url)
    of_number = partial(samplers.sampler, search, words) if words else None
    study.sampler = sampler or (of_number(0) if of_number else optuna.samplers.RandomSampler(seed=1))
    is_seeded = words and samplers.seed_of(words) is not None
    return SearchQueue(search, study, folder / "runs", of_number if is_seeded else None)


def study_of(folder):
    """The study of a search that was run in `folder`."""
    backend = optuna.storages.journal.JournalFileBackend(str(study_folder(folder) / JOURNAL))
    return optuna.load_study(study_name=None, storage=optuna.storages.JournalStorage(backend))


def finish(queue, planned, **metrics):
    """End a trial as its training would."""
    planned.folder.make()
    planned.folder.finish(a_result(metrics={"val/ppl": 2.0, "val/bleu": 30.0} | metrics))
    queue.ended(planned, "done")
