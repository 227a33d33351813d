"""Why a trial is new though it resembles a finished one."""

import pytest
from helpers import a_result

from transformer_pl.config.levels import Level, resolve
from transformer_pl.runtime.files import write_json
from transformer_pl.trials.identity import CORE_REVISION, identity
from transformer_pl.trials.trial import Trial
from transformer_pl.trials.why_new import reasons_by_names, why_new

FFN = {"model.ffn": "mine.Sign"}


def inputs(keys=(), data="text", sources=()):
    config = resolve([Level("test", dict(keys))])
    return dict(identity(config, {"files": data}, dict(sources)).inputs)


@pytest.mark.parametrize(
    ("new", "old", "reason"),
    [
        (inputs({"optim.warmup": 800}), inputs({"optim.warmup": 400}), "optim.warmup 400 -> 800"),
        (inputs({"optim.warmup": 800}), inputs(), "optim.warmup 4000 -> 800"),
        (inputs({"model.d_ff": 1024}), inputs(), "d_ff 2048 -> 1024"),
        (inputs() | {"core": CORE_REVISION + 1}, inputs(), f"core revision {CORE_REVISION} -> {CORE_REVISION + 1}"),
        (inputs(FFN, sources={"ffn": "b"}), inputs(FFN, sources={"ffn": "a"}), "the code of ffn changed since demo-1"),
        (inputs(FFN, sources={"ffn": "b"}), inputs(), "model.ffn transformer_pl.model.FeedForward -> mine.Sign"),
        (inputs(data="other"), inputs(), "the dataset or its preparation changed"),
        (inputs(), inputs(), None),
    ],
)
def test_the_difference_from_a_finished_trial_is_named(tmp_path, new, old, reason):
    assert why_new(new, [(Trial(tmp_path / "demo-1"), old)]) == reason


def test_the_most_similar_trial_is_compared(tmp_path):
    base, near = ((Trial(tmp_path), inputs(keys)) for keys in ({}, {"optim.warmup": 8}))
    assert why_new(inputs({"optim.warmup": 8, "decode.beam": 1}), [base, near]) == "decode.beam 4 -> 1"
    far = inputs({"optim.warmup": 8, "decode.beam": 1, "optim.eps": 1e-8, "optim.beta1": 0.5})
    assert why_new(far, [base]) is None


def test_finished_trials_of_the_same_row_and_seed_are_compared(tmp_path):
    for name, warmup in (("finished-0123456789ab", 400), ("stopped-0123456789cd", 700)):
        trial = Trial(tmp_path / "trials" / name)
        trial.make()
        write_json(trial.folder / "identity.json", inputs({"optim.warmup": warmup}))
        if name.startswith("finished"):
            trial.finish(a_result())
    new = {
        "base s1": inputs({"optim.warmup": 800}),
        "base s2": inputs({"optim.warmup": 800, "seed": 2}),
        "h=4 s1": inputs({"optim.warmup": 800, "model.h": 4}),
    }
    assert reasons_by_names(new, list(new.values()), tmp_path) == {"optim.warmup 400 -> 800": ["base s1"]}
    assert reasons_by_names({}, [], tmp_path) == {}
