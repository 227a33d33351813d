"""Which trial a config is: what keeps an identity, what changes it, and how a difference is worded."""

import pytest
import tiny_trials
from helpers import GRIDS
from shipped_components import shipped_sweep

from transformer_pl.config import Config
from transformer_pl.config.levels import Level, resolve, scale_level
from transformer_pl.runtime.environment import TRIAL
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import Corpus
from transformer_pl.trials.identity import describe_difference, identity, same_row
from transformer_pl.trials.runs_folder import RunsFolder
from transformer_pl.trials.trial_folder import TRIAL_FOLDER, folder_name
from transformer_pl.trials.trial_of import trial_of

pytestmark = pytest.mark.core
TEXT = {"kind": "corpus", "version": 1}
LOCAL = {"model.attention": "mine.Local", "model.attention.window": 4}


def config(keys):
    return resolve([Level("here", keys)])


def of(keys, text=TEXT, sources=None):
    return identity(config(keys), text, sources or {})


def hashes(who):
    return who.trial, who.weights


def label(keys):
    return " ".join(f"{key}={value}" for key, value in keys.items()) or "base"


# Each pair: two ways to write one trial.
SAME = [
    ({}, {"trainer.devices": 2, "trainer.num_nodes": 2, "trainer.strategy": "ddp"}),
    ({}, {"trainer.accumulate": 4, "trainer.threads": 1, "trainer.accelerator": "cpu"}),
    ({}, {"trainer.compile": "on"}),
    ({}, {"trainer.log_every": 1, "trainer.eval_tokens": 512}),
    ({}, {"trainer.checkpoint_minutes": 1}),
    ({}, {"trainer.keep_state": "on"}),
    ({}, {"trainer.callbacks": "[{my.Watch: {in_identity: false}}]", "trainer.loggers": "my.Log"}),
    ({}, {"data.path": "here"}),
    ({"data.path": "here"}, {"data.path": "/there"}),
    ({"data.vocabulary_from": "here"}, {"data.vocabulary_from": "/there"}),
    ({"data.path": "here"}, {"data.path": "/there", "data.name": "news"}),
    ({"data.hub": "someone/texts", "data.revision": "main"}, {"data.path": "a/copy/of/it"}),
    ({}, {"model.h": 8, "optim.eps_ls": 0.1, "seed": 1, "model.ffn": "transformer_pl.model.FeedForward"}),
    ({}, {"model.h": "8", "optim.eps": "1e-09", "model.d_k": "None"}),
    ({}, {"model.d_k": 64}),
    ({}, {"model.d_k": 64, "model.d_v": 64}),
    ({"model.h": 4}, {"model.h": 4, "model.d_v": 128}),
    ({"model.width": 0.5}, {"model.d_model": 256, "model.d_ff": 1024}),
    ({"model.width": "1/2", "model.d_k": 48}, {"model.d_model": 256, "model.d_ff": 1024, "model.d_k": 24}),
    ({"model.width": 0.5, "model.d_k": 64}, {"model.width": 0.5}),
    ({"model.depth": "1/3"}, {"model.N": 2}),
    ({"model.N_encoder": 6}, {}),
    ({"model.N_decoder": 4, "model.depth": 0.5}, {"model.N": 3, "model.N_decoder": 2}),
    ({"model.depth": "1/3"}, {"model.depth": 1 / 3}),
    ({"model.width": 2, "model.depth": 2}, {"model.N": 12, "model.d_model": 1024, "model.d_ff": 4096}),
    ({"optim.duration": 3}, {"optim.max_steps": 300_000}),
    ({"optim.duration": 0.5, "optim.max_steps": 200_000}, {}),
]

# Each word changes the trial, and its weights with it; so does each of the others.
WORDS = """
seed=2 model.N=2 model.N_encoder=2 model.N_decoder=2 model.d_model=256 model.d_ff=1024 model.h=4 model.d_k=32
model.d_v=32 model.p_drop=0.0 model.width=0.5 model.depth=0.5 model.position=mine.Position optim.max_steps=50000
optim.duration=3 optim.warmup=8000 optim.lr_scale=2 optim.eps_ls=0.0 optim.optimizer=torch.optim.AdamW
optim.schedule=mine.Schedule optim.loss=mine.Loss optim.clip=1.0 optim.beta1=0.8 optim.beta2=0.999 optim.eps=1e-08
data.vocab_size=32000 data.tokenizer=mine.Tokens data.train_pairs=1000 data.max_words=12 data.batch_tokens=4096
data.max_length=128 data.task=copying_task.Copying data.train=half model.N_encoder=0 trainer.callbacks=[my.Stop]
trainer.callbacks=[other.Stop] trainer.precision=bf16-mixed decode.average=2 decode.average=5 decode.average=10
decode.select=best data.pieces=joined
"""
CALLBACK = {"trainer.callbacks": "[my.Stop]"}
SEEN = ({"trainer.accumulate": 2}, {"trainer.log_every": 7}, {"trainer.devices": 2, "trainer.strategy": "ddp"})
OTHER = [
    *(dict([word.split("=", 1)]) for word in WORDS.split()),
    LOCAL,
    LOCAL | {"model.attention.window": 5},
    {"model.ffn": "mine.Local", "model.ffn.window": 4},
    {"optim.optimizer": "torch.optim.AdamW", "optim.optimizer.weight_decay": 0.1},
    {"data.tokenizer": "mine.Tokens", "data.tokenizer.size": 4},
    {"data.source": "de", "data.target": "en"},
    *({"trainer.callbacks": f"[{{my.Stop: {{step: {step}}}}}]"} for step in (5, 8)),
    *(CALLBACK | seen for seen in (*SEEN, {"trainer.num_nodes": 2, "trainer.strategy": "ddp"})),
    *({"model.start": "0123456789ab", "model.start_with": what} for what in ("weights", "all")),
    {"optim.freeze": "encoder.*"},
    {"trainer.val_every": 10},  # each validation draws a number where dropout does
    {"trainer.val_sample": 100},  # which is measured, so that a search can ask for it
]


@pytest.mark.parametrize(("one", "other"), SAME, ids=[f"{label(a)} and {label(b)}" for a, b in SAME])
def test_one_trial_in_two_spellings(one, other):
    assert hashes(of(one)) == hashes(of(other))


def test_whatever_changes_the_result_changes_the_identity():
    """All different from the base and from each other, in trial and in weights."""
    made = [of(keys) for keys in ({}, *OTHER)]
    assert len({who.trial for who in made}) == len({who.weights for who in made}) == len(OTHER) + 1
    assert all(TRIAL_FOLDER.fullmatch(folder_name("base", 1, who.trial)) for who in made)


def test_every_key_of_the_config_either_changes_the_identity_or_is_meant_not_to():
    """A key that is added later must be placed in one of the lists of this file."""
    placed = {key for keys in OTHER for key in keys} | {key for pair in SAME for keys in pair for key in keys}
    placed |= {"model.residual", "model.self_attention", "model.cross_attention"}  # as position and ffn
    placed |= {"model.embedding", "model.architecture", "data.batches"}
    placed |= {*OF_DECODING, "data.subset", "data.val", "data.sets"}
    placed |= {"optim.match"}  # no trial has it: it becomes steps before
    assert set(Config().flat()) <= placed


def test_the_data_and_the_code_of_the_parts_count():
    parts = [{"position": "a"}, {"position": "b"}, {"ffn": "a"}]
    made = [of({}), of({}, TEXT | {"version": 2}), *(of({}, sources=sources) for sources in parts)]
    assert len({who.trial for who in made}) == len({who.weights for who in made}) == len(made)


OF_DECODING = {
    "decode.beam": 1,
    "decode.stride": 2,
    "decode.memory": 2,
    "decode.alpha": 1,
    "decode.extra": 1,
    "decode.intervention": "mine.Cut",
}
OF_DECODING |= {"data.bleu": "char", "data.test": "news"}  # it scores what was decoded, of which text


@pytest.mark.parametrize("key", OF_DECODING)
def test_trials_that_differ_in_evaluation_alone_share_their_weights(key):
    base, other = of({}), of({key: OF_DECODING[key]})
    assert base.trial != other.trial and base.weights == other.weights


def test_further_sets_count_by_their_names_and_content_and_make_no_other_weights():
    sets = [{}, {"sets": {"news": {"files": 1}}}, {"sets": {"news": {"files": 2}}}, {"sets": {"old": {"files": 1}}}]
    made = [of({}, TEXT | further) for further in sets]
    assert len({who.trial for who in made}) == 4 and len({who.weights for who in made}) == 1
    assert hashes(of({"data.sets": "[news=here]"})) == hashes(of({"data.sets": "[news=/there:test]"}))


@pytest.mark.parametrize(("changed", "shares"), [("test", True), ("val", False), ("train", False)])
@pytest.mark.parametrize("place", ["here", "vocabulary_from"])
@pytest.mark.parametrize(
    "text",
    [
        lambda splits: {"files": {f"{name}.de": [digest] for name, digest in splits.items()}, "heading": "test\tde"},
        lambda splits: {"trees": {f"{name}.mrg": [digest] for name, digest in splits.items()}},
        lambda splits: {"hub": "someone/texts", "splits": splits, "test.py": "code"},
    ],
    ids=["files", "trees", "hub"],
)
def test_a_test_set_makes_another_trial_of_the_same_weights(text, place, changed, shares):
    """Also that of the text that the vocabulary is learned from."""
    splits = {"train": "a", "val": "b", "test": "c"}
    texts = [text(splits), text(splits | {changed: "d"})]
    one, other = (of({}, made if place == "here" else {"vocabulary_from": made}) for made in texts)
    assert one.trial != other.trial and (one.weights == other.weights) == shares


def test_the_code_of_all_callbacks_of_one_class_counts(tmp_path, monkeypatch):
    """Their options name it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    files = [tmp_path / f"noted_{name}.py" for name in "ab"]
    entries = [{"lightning.pytorch.callbacks.LambdaCallback": {"on_fit_end": f"{file.stem}.note"}} for file in files]
    callbacks = config({"trainer.callbacks": entries})
    ids = set[str]()
    for edited in (None, *files):
        for file in files:
            file.write_text(f"def note(*given):\n    return {file == edited}\n")
        found = trial_of(callbacks, Corpus(TEXT, "", lambda split: iter(())), RunsFolder(tmp_path / "runs"))
        ids.add(found.id)
    assert len(ids) == 3


def test_options_and_code_of_an_intervention_make_another_trial_of_the_same_weights():
    """The code of a component of the model makes other weights, whatever the intervention."""
    cut = {"decode.intervention": "mine.Cut"}
    options = [{}, {"decode.intervention.layer": 1}, {"decode.intervention.layer": 2}]
    made = [of(cut | more, sources={"intervention": code}) for more in options for code in ("a", "b")]
    assert len({who.trial for who in made}) == 6 and {who.weights for who in made} == {of({}).weights}
    other = of(cut, sources={"intervention": "a", "ffn": "x"})
    assert other.weights == of({}, sources={"ffn": "x"}).weights != of({}).weights


def test_a_trial_is_refused_that_is_another_than_its_sweep_has_planned(tmp_path, monkeypatch):
    """A component may be edited while the trial waits. The sweep would wait for a result that does not come."""
    monkeypatch.setenv(TRIAL, "0123456789ab")
    with pytest.raises(InputError):
        tiny_trials.train(tmp_path / "runs", {})
    assert not list((tmp_path / "runs").glob("trials/*"))


def test_the_order_in_which_things_are_said_does_not_count():
    keys = {"model.h": 4, "model.N": 2, **LOCAL, "model.attention.mode": "near"}
    there = of(keys, {"a": 1, "b": 2}, {"ffn": "x", "attention": "y"})
    back = of(dict(reversed(keys.items())), {"b": 2, "a": 1}, {"attention": "y", "ffn": "x"})
    assert hashes(there) == hashes(back)


# In words


@pytest.mark.parametrize(
    ("keys", "completed"),
    [
        ({}, "base"),
        ({"seed": 5}, "base"),
        ({"trainer.devices": 4, "trainer.precision": "bf16-mixed"}, "precision=bf16-mixed"),
        ({"model.h": 1, "model.p_drop": "0.0"}, "h=1 p_drop=0.0"),
        ({"model.N": 2, "model.position": "mine.deep.LearnedPosition"}, "N=2 position=LearnedPosition"),
        (LOCAL, "attention=Local attention.window=4"),
        ({"optim.eps_ls": 0.2, "decode.beam": 1}, "eps_ls=0.2 beam=1"),
        ({"data.path": "/home/me/data/fr/", "data.target": "fr"}, "data=fr target=fr"),
        ({"data.path": "/home/me/data/fr", "data.name": "news"}, "data=news"),
        ({"data.hub": "wmt/wmt14", "data.subset": "de-en"}, "data=wmt14 subset=de-en"),
        (
            {"trainer.callbacks": "[{my.Stop: {step: 5, when: [1, 2]}}, my.Log]"},
            "callbacks=Stop(step=5,when=[1,2])+Log",
        ),
    ],
    ids=lambda x: label(x) if isinstance(x, dict) else None,
)
def test_a_difference_in_words(keys, completed):
    assert describe_difference(config(keys), Config()) == completed


def test_a_text_of_one_s_own_is_told_by_its_name_alone():
    """Scale wmt14 has a dataset with a subset and a revision, which another text has not."""
    scale = scale_level("wmt14")
    own = resolve([scale, Level("test", {"data.path": "my/text"})])
    assert describe_difference(own, resolve([scale])) == "data=text"


def test_words_are_relative_to_the_base_that_is_given():
    assert describe_difference(Config(), config({"model.h": 4})) == "h=8"


def test_in_every_shipped_sweep_the_base_row_is_the_row_without_a_difference():
    """Equal identities and equal settings answer alike which row is base."""
    for sweep in map(shipped_sweep, GRIDS):
        for config in sweep.configs:
            assert same_row(config, sweep.base) == (describe_difference(config, sweep.base) == "base"), sweep.name
