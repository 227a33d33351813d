"""The rehearsal of what others plug in, in processes of its own: once for a part, and nothing of it is left."""

import pytest
import tiny_trials
from helpers import processes

from tests.laws import parts
from tests.laws.rehearsals import broken, of_trainings, path
from transformer_pl.laws.checks import check_all
from transformer_pl.runtime.errors import InputError


def test_a_part_is_rehearsed_once_and_named_where_it_fails(row, tmp_path):
    """In child processes, for rows that differ in the model alone once. An error leaves nothing behind."""
    alike = [row({"optim.optimizer": path(parts.Fraction), "model.h": h}) for h in (4, 8)]
    found, other, none = check_all([*alike, row({})], tmp_path)
    (kept,) = (tmp_path / "checks").iterdir()
    assert found == other and "0.5" in "".join(found.notes) and list(none.notes) == []
    time = kept.stat().st_mtime_ns
    assert check_all(alike, tmp_path)[0] == found and kept.stat().st_mtime_ns == time
    with pytest.raises(InputError) as caught:
        check_all([row({"optim.schedule": path(parts.Counts)}), row({"optim.loss": path(parts.Mean)})], tmp_path)
    starts = [f"optim.schedule = {path(parts.Counts)}: ", f"optim.loss = {path(parts.Mean)}: "]
    assert [message[: len(start)] for message, start in zip(caught.value.messages, starts, strict=True)] == starts
    assert all("rehearsal of 20 steps" in message for message in caught.value.messages)
    assert list((tmp_path / "checks").iterdir()) == [kept] and not (tmp_path / "data").exists()


def test_a_rehearsal_leaves_no_process_and_no_output(row, tmp_path, capfd):
    check_all([row({"trainer.callbacks": path(parts.Leaves)})], tmp_path)
    assert "flood" not in "".join(capfd.readouterr())
    assert not [process for process in processes() if "sleep 600.25" in process.command]


def test_a_training_that_begins_with_a_trial_is_rehearsed_with_an_untrained_model_in_its_place(row, tmp_path):
    """And has as many layers as the row: those that are not frozen may be the last ones."""
    start = {"model.start": "0123456789ab", "model.start_with": "all", "optim.optimizer": "torch.optim.SGD"}
    frozen = {"optim.freeze": "encoder.*,embedding.*,decoder.0.*"}
    (steps, _), found = of_trainings(row(start | frozen), tmp_path, is_stopped=True)
    assert steps == 20 and found and not broken(found)


def test_the_cost_of_several_passes_and_of_shared_weights_is_true(tmp_path):
    """FLOPs are those of all passes, parameters those of the trained model; steps cannot be matched to several."""
    for name in ("plain", "twice", "flops"):
        (tmp_path / name).mkdir()
    _, plain = tiny_trials.train(tmp_path / "plain" / "runs", {})
    twice = {"optim.optimizer": path(parts.ClosureTwice), "trainer.callbacks": path(parts.Shares)}
    _, shared = tiny_trials.train(tmp_path / "twice" / "runs", twice)
    before, after = plain.result(), shared.result()
    assert after.flops == 2 * before.flops
    ffn = 2 * 16 * 64 + 64 + 16  # of the second layer, which is the first's
    assert after.params == before.params - ffn == sum(w.numel() for w in plain.weights().values()) - ffn
    with pytest.raises(InputError, match="match=flops"):
        tiny_trials.train(tmp_path / "flops" / "runs", twice | {"optim.match": "flops"})
