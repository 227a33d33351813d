"""What a search draws, and what it tells Optuna: no trial is lost, or trained twice, also where processes share it."""

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from helpers import a_result
from optuna.samplers import RandomSampler
from optuna.trial import TrialState
from shipped_components import marks_of
from tiny_trials import ended

from tests.search.searches import DROPOUT, OPTUNA, finish, queue_of, search_file, search_of, study_folder
from transformer_pl.report import __main__ as report
from transformer_pl.runtime.errors import InputError
from transformer_pl.search import drawing
from transformer_pl.search.results import SearchResults
from transformer_pl.search.samplers import SAMPLERS, construct, pruner
from transformer_pl.search.study import answering_database, counted_trials, create_study, find_study, shown_number
from transformer_pl.sweep import __main__ as sweep

SECRET = "s3cret"
SAMPLED = marks_of("transformer_pl/search/samplers.py", "transformer_pl/search/drawing.py")


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    """A queue that had nothing to train asks the study again at once."""
    monkeypatch.setattr(drawing, "RETRY_DRAW_S", 0.0)


ONE, TWO = [("val/ppl", "minimize")], [("val/bleu", "maximize"), ("flops", "minimize")]


SLOW = [pytest.param("gp", goals, marks=pytest.mark.slow) for goals in (ONE, TWO)]  # fits Gaussian processes


@pytest.mark.parametrize(("sampler", "goals"), [("tpe", ONE), ("tpe", TWO), ("cma-es", ONE), *SLOW])
def test_a_diverged_trial_is_the_worst_in_every_goal_and_never_the_best(tmp_path, goals, sampler):
    """Even if it is the cheapest. The next command tries a failed trial again, and not a diverged one."""
    keys = OPTUNA | {"metrics": [{"name": name, "goal": direction} for name, direction in goals]}
    keys |= {"run_cap": 5, "space": DROPOUT}
    drawn_by = construct(SAMPLERS, [sampler, "seed=1", "n_startup_trials=4"], "--sampler")
    queue = queue_of(tmp_path, sampler=drawn_by, **keys)
    for index, ending in enumerate(["diverged", "done", "failed", "diverged"]):
        planned = queue.next(set())
        if ending == "done":
            finish(queue, planned, **{"val/bleu": 1.0})
        else:
            planned.folder.make()
            planned.folder.set_status(ending, **({"step": index + 1} if ending == "diverged" else {}))
            queue.ended(planned, ending)
        assert (queue.ended_count(), queue.remaining().trials) == (index + 1, 5 - (index + 1))
    queue.next(set())
    trials = queue.study.get_trials()
    assert [t.user_attrs.get("diverged") for t in trials] == [1, None, None, 4, None]
    worst = [float("inf") if direction == "minimize" else -float("inf") for _, direction in goals]
    assert all(t.values == worst for t in trials if "diverged" in t.user_attrs)
    states = [record["state"] for record in SearchResults(queue.search, queue.study, queue.runs).records]
    assert states == ["best" if goals is ONE else "front", *["diverged"] * 2, "failed", "new"]
    (retry,) = queue_of(tmp_path, **keys).study.get_trials(states=(TrialState.WAITING,))
    assert shown_number(retry) == 2


def test_a_repeated_draw_has_the_same_outcome_and_counts(tmp_path):
    """Of two values each is trained once, and one of them is pruned."""
    queue = queue_of(tmp_path, space={"model.h": {"values": [4, 8]}}, run_cap=6)
    trained = 0
    while planned := queue.next(set()):
        trained += 1
        if planned.config.model.h == 8:
            finish(queue, planned)
        else:
            planned.folder.make()
            queue.ended(planned, "pruned")
    assert trained == 2 and queue.waits() is None
    outcomes = [(trial.params["model.h"], trial.state, trial.value) for trial in counted_trials(queue.study)]
    assert len(outcomes) == 6 and outcomes[0][0] == 8
    assert set(outcomes) == {(8, TrialState.COMPLETE, 2.0), (4, TrialState.PRUNED, None)}


class SlowSampler(RandomSampler):
    """So slow that all others ask while one does."""

    def before_trial(self, study, trial):
        time.sleep(0.2)


def test_processes_that_draw_at_once_stay_within_run_cap(tmp_path):
    keys = {"space": DROPOUT, "run_cap": 2, "url": f"sqlite:///{tmp_path}/study.db"}
    queues = [queue_of(tmp_path, sampler=SlowSampler(seed=seed), **keys) for seed in range(4)]
    with ThreadPoolExecutor(4) as threads:
        drawn = list(threads.map(lambda queue: queue.next(set()), queues))
    assert sum(planned is not None for planned in drawn) == 2 and len(queues[0].study.get_trials()) == 2


def test_who_only_looks_for_a_study_makes_no_database(tmp_path):
    assert find_study(search_of(), tmp_path, f"sqlite:///{tmp_path}/study.db") is None
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("url", [None, "sqlite:///{}/study.db"], ids=["journal", "database"])
def test_a_trial_is_drawn_again_when_no_living_process_holds_it(tmp_path, url):
    """Not while the command lives that has drawn it, nor while a process trains it. It keeps its number and folder."""
    keys = {"space": DROPOUT, "run_cap": 2, "url": url and url.format(tmp_path)}
    first, second = queue_of(tmp_path, **keys), queue_of(tmp_path, **keys)
    drawn = [first.next(set()), first.next(set())]
    drawn[0].folder.make()
    with drawn[0].folder.lock.hold():
        assert second.next(set()) is None and second.waits() is not None
        first.close()
        again = second.next(set())
        assert again.id == drawn[1].id and second.next(set()) is None
    again = [second.next(set()), again]
    assert [(trial.name, trial.id) for trial in again] == [(trial.name, trial.id) for trial in drawn]
    for trial in again:
        finish(second, trial)
    finish(first, drawn[0], **{"val/ppl": 9.0})  # it had been alive, and changes nothing
    assert second.next(set()) is None and second.waits() is None
    assert [trial.value for trial in counted_trials(second.study)] == [2.0, 2.0]


def test_a_search_goes_on_while_another_command_trains_what_it_has_drawn(tmp_path):
    """As a grid that trains base. That config is waited for, and not trained twice."""
    queue = queue_of(tmp_path, space=DROPOUT, run_cap=3)
    for folder in (tmp_path / "runs" / "trials", tmp_path / "other" / "runs"):
        folder.mkdir(parents=True)
    (tmp_path / "other" / "runs" / "trials").symlink_to(tmp_path / "runs" / "trials")
    other = queue_of(tmp_path / "other", space=DROPOUT)
    base = other.next(set())
    base.folder.make()
    with base.folder.lock.hold():
        second = queue.next(set())
        assert second.id != base.id
        assert [draw.trial.id for draw in queue.held] == [base.id]
    finish(other, base)
    third = queue.next(set())
    assert len({trial.id for trial in (base, second, third)}) == 3 and not queue.held
    assert queue.study.get_trials()[0].value == 2.0


# What becomes of four trials of which each is worse than those before: C is complete, P pruned. Base is not pruned.
HALVING = {"type": "hyperband", "min_iter": 1, "eta": 2}  # so W&B calls it


@pytest.mark.parametrize(
    ("words", "early", "expected"),
    [
        (["none"], HALVING, "CCCC"),
        (["median", "n_startup_trials=1"], None, "CPPP"),
        (["median", "n_startup_trials=99"], None, "CCCC"),
        (["halving", "min_resource=1", "reduction_factor=2"], None, "CCPP"),
        (["hyperband", "min_resource=1", "max_resource=1", "reduction_factor=2"], None, "CCPP"),
        (None, HALVING, "CCPP"),
        (None, None, "CCCC"),
    ],
)
def test_a_pruner_ends_the_trials_that_it_is_to_end(tmp_path, words, early, expected):
    """By the validations during the training: the final evaluation, as bad as it may be, comes too late."""
    queue = queue_of(tmp_path, space=DROPOUT, run_cap=4, early_terminate=early)
    queue.study.pruner = pruner(queue.search, words)
    while planned := queue.next(set()):
        value = 10.0 + planned.place  # the trial's number
        planned.folder.make()
        (planned.folder.path / "metrics.jsonl").write_text(f'{{"step": 2, "val/ppl": {value}}}\n')
        if queue.watch(planned):
            queue.ended(planned, "pruned")
        else:
            with (planned.folder.path / "metrics.jsonl").open("a") as file:
                file.write(f'{{"step": 20, "kind": "final", "val/ppl": {value + 99}, "val/bleu": 1.0}}\n')
            assert not queue.watch(planned)
            planned.folder.finish(a_result(metrics={"val/ppl": value, "val/bleu": 1.0}))
            queue.ended(planned, "done")
    trials = counted_trials(queue.study)
    assert "".join(trial.state.name[0] for trial in trials) == expected
    assert [trial.intermediate_values for trial in trials] == [{1: 10.0 + number} for number in range(4)]


@pytest.mark.parametrize(
    "name", ["tpe", *(pytest.param(name, marks=SAMPLED) for name in ("random", "qmc", "cma-es", "gp", "nsga-ii"))]
)
def test_a_seeded_sampler_goes_on_after_a_restart(tmp_path, name):
    """No point is drawn again, and those of two processes are those of one."""
    words, keys = [name, "seed=1"], {"space": DROPOUT, "run_cap": 7}
    drawn = {}
    for folder, restarts in (("calm", ()), ("restarted", (3, 5))):
        queue, values = queue_of(tmp_path / folder, words=words, **keys), []
        while planned := queue.next(set()):
            values.append(planned.config.model.p_drop)
            finish(queue, planned, **{"val/ppl": 2 + values[-1]})
            if len(values) in restarts:
                queue = queue_of(tmp_path / folder, words=words, **keys)
        drawn[folder] = values
    assert len(set(drawn["calm"])) == 7 and drawn["restarted"] == drawn["calm"]


def test_a_database_that_does_not_answer_ends_a_search_which_the_same_command_continues(tmp_path):
    """Here another process locks it. A restart of PostgreSQL is in tests/search/test_search.py."""
    file = tmp_path / "study.db"
    keys = {"url": f"sqlite:///{file}?timeout=0.1", "space": DROPOUT, "run_cap": 3}
    queue = queue_of(tmp_path, **keys)
    drawn = queue.next(set())
    with closing(sqlite3.connect(file)) as locked:
        locked.execute("BEGIN EXCLUSIVE")
        with pytest.raises(InputError, match="database"), answering_database(), closing(queue):
            queue.next(set())
        locked.rollback()
    assert queue_of(tmp_path, **keys).next(set()).id == drawn.id


def test_a_study_is_of_one_search(tmp_path):
    """Which may have a greater run_cap, and nothing else that is new."""
    folder, queue = study_folder(tmp_path), queue_of(tmp_path)
    for same, search in (
        (True, search_of(run_cap=9)),
        (False, search_of(space=DROPOUT | {"model.h": {"values": [4, 8]}})),
        (False, search_of(fixed={"optim.warmup": 7})),
    ):
        assert (find_study(search, folder, None) is not None) == same
        assert (create_study(search, folder, None).study_name == queue.study.study_name) == same


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgresql://me:{SECRET}@h/x", "PGPASSWORD"),
        (f"postgresql://h/x?user=me&password={SECRET}", "PGPASSWORD"),
        (f"postgresql://me:{SECRET}@h:54x/x", "--storage"),
        (f"nonsense {SECRET}", "--storage"),
        ("sqlite:////nowhere/at/all.db", "--storage"),
    ],
)
def test_an_invalid_storage_is_refused_and_no_password_printed(tmp_path, url, shown):
    for main in (sweep.main, report.main):
        (tmp_path / "runs").mkdir(exist_ok=True)
        code, out, err = ended(main, search_file(tmp_path), "--runs", tmp_path / "runs", f"--storage={url}")
        assert code == 2 and shown in err and "Traceback" not in err and SECRET not in out + err
    assert not (tmp_path / "runs" / "trials").exists()
