"""Why a trial is new though it resembles a finished one."""

from dataclasses import replace

import pytest
from helpers import a_result, a_trial

from transformer_pl.config.levels import Level, resolve
from transformer_pl.runtime.files import write_json
from transformer_pl.trials.identity import CORE_REVISION, Identity, identity
from transformer_pl.trials.runs_folder import RunsFolder
from transformer_pl.trials.trial_folder import TrialFolder, folder_name
from transformer_pl.trials.why_new import differences, why_new

FFN = {"model.ffn": "mine.Sign"}


def inputs(keys=(), data="text", sources=()):
    config = resolve([Level("test", dict(keys))])
    return dict(identity(config, {"files": data}, dict(sources)).inputs)


@pytest.mark.parametrize(
    ("new", "old", "told"),
    [
        (inputs({"optim.warmup": 800}), inputs({"optim.warmup": 400}), ["optim.warmup 400 -> 800"]),
        (inputs({"model.d_ff": 1024}), inputs(), ["d_ff 2048 -> 1024"]),
        (inputs() | {"core": CORE_REVISION + 1}, inputs(), [f"core revision {CORE_REVISION} -> {CORE_REVISION + 1}"]),
        (
            inputs(FFN, sources={"ffn": {"a.py": "1", "b.py": "2"}}),
            inputs(FFN, sources={"ffn": {"a.py": "1"}}),
            ["the code of ffn changed in b.py"],
        ),
        (
            inputs(FFN, sources={"ffn": {"b.py": "1"}}),
            inputs(),
            ["model.ffn transformer_pl.model.FeedForward -> mine.Sign"],
        ),
        (inputs(data="other"), inputs(), ["the dataset or its preparation changed"]),
        (inputs(), inputs(), []),
    ],
)
def test_what_differs_is_named(new, old, told):
    assert differences(new, old) == told


def test_the_most_similar_finished_trial_of_the_same_row_and_seed_is_compared(tmp_path):
    def trial(row, seed, id_, keys=(), finished=True):
        one = TrialFolder(tmp_path / "trials" / folder_name(row, seed, id_))
        one.make()
        write_json(one.path / "identity.json", inputs(keys))
        if finished:
            one.finish(a_result())
        return one

    trial("base", 1, "0" * 12)
    trial("base", 1, "1" * 12, {"optim.warmup": 8})
    trial("base", 1, "2" * 12, {"optim.warmup": 8, "decode.beam": 2}, finished=False)

    def why(row, seed, keys=()):
        folder = tmp_path / "trials" / folder_name(row, seed, "3" * 12)
        trial = replace(a_trial(folder, resolve([])), identity=Identity(inputs(keys)))
        return why_new(trial, RunsFolder(tmp_path))

    assert why("base", 1, {"optim.warmup": 8, "decode.beam": 1}) == "decode.beam 4 -> 1"
    long = {"optim.freeze": "x" * 300, "decode.beam": 1, "optim.warmup": 8}  # each change is shortened by itself
    assert len(why("base", 1, long)) < 300 and {"decode.beam 4 -> 1"} < {*why("base", 1, long).split("; ")}
    far = {"optim.warmup": 9, "decode.beam": 1, "optim.eps": 1e-8, "optim.beta1": 0.5}
    assert why("base", 1, far) is None
    assert why("h=4", 1) is None and why("base", 2) is None
