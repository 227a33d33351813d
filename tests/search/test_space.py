"""How the file of a search is read."""

from operator import attrgetter

import pytest
from tiny_trials import ended
from wandb.sdk.sweeps.scheduler.optuna import sweep_parameter_to_distribution

from tests.search.searches import search_file, search_of
from transformer_pl.runtime.errors import InputError
from transformer_pl.search.samplers import SAMPLERS, check_drawing, pruner, sampler
from transformer_pl.search.space import distribution
from transformer_pl.sweep.__main__ import main
from transformer_pl.task import open_corpus
from transformer_pl.trials.runs_folder import RunsFolder
from transformer_pl.trials.trial_of import trial_of

BATCHES = {"data.batch_tokens": {"values": [512, 256]}}
WORDED = {"data.tokenizer": "tests.search.worded_bpe.WordedBPE"}
PARSING = {"fixed": {"data.task": "transformer_pl.tasks.parsing.Parsing", "data.path": None}}


def test_distributions_are_those_of_wandb():
    for parameter in (
        {"value": 4},
        {"values": [1, "a", None, 0.5]},
        {"distribution": "categorical", "values": ["x", "y"]},
        {"min": 1, "max": 9},
        {"min": 0.0, "max": 1},
        {"distribution": "q_uniform", "min": 0, "max": 100, "q": 10},
        {"distribution": "q_uniform", "min": 0.0, "max": 1.0, "q": 0.25},
        {"distribution": "log_uniform_values", "min": 1e-5, "max": 1e-1},
    ):
        assert distribution(parameter) == sweep_parameter_to_distribution(parameter)
    for parameter, *ends in (  # with steps of their own, which W&B's has not
        ({"min": 2, "max": 8, "q": 2}, 2, 8, 2),
        ({"min": 0, "max": 0.4, "q": 0.1}, 0, 0.4, 0.1),
        ({"min": 1e2, "max": 1e3, "distribution": "int_uniform"}, 100, 1000, 1),
    ):
        assert [getattr(distribution(parameter), name) for name in ("low", "high", "step")] == ends


def test_distributions_that_optuna_lacks_are_refused():
    for parameter in (
        {"distribution": "normal", "mu": 0, "sigma": 1},
        {"distribution": "beta", "min": 0, "max": 1},
        {"values": [1, 2], "probabilities": [0.2, 0.8]},
        {"min": 3, "max": 1},
        {"distribution": "log_uniform_values", "min": 0.0, "max": 1.0},
        {"min": "a", "max": "b"},
        {"min": 0.1, "max": float("inf")},
        {"min": 0, "max": 10**400},
        {"min": 0, "max": 1, "q": 0.5, "distribution": "int_uniform"},
        {"min": 0.5, "max": 1.0, "q": 0.1, "distribution": "uniform"},
        {"min": 0.5, "max": 1.0, "q": 0.1, "distribution": "log_uniform_values"},
        {"values": [8, 4], "min": 1, "max": 3},
        {"value": 8, "values": [8, 4]},
        {"value": 8, "distribution": "uniform"},
        {"min": True, "max": 3},
    ):
        with pytest.raises(ValueError):
            assert not distribution(parameter), parameter


def test_all_mistakes_of_a_file_are_reported_at_once_and_nothing_starts(tmp_path):
    space = {"model.hh": {"values": [1, 2]}, "model.p_drop": {"distribution": "normal", "mu": 0}}
    space |= {"seed": {"values": [1, 2]}}
    goal, early = {"name": "blue", "goal": "maximise"}, {"type": "envelope"}
    path = search_file(tmp_path, space=space, metric=goal, run_cap=0, early_terminate=early)
    code, _, err = ended(main, path, "--runs", tmp_path / "runs")
    assert code == 2 and not (tmp_path / "runs").exists()
    assert all(mistake in err for mistake in ("model.hh", "mu", "blue", "run_cap = 0", "parameters.seed", "envelope"))


@pytest.mark.parametrize(
    ("keys", "mistake"),
    [
        ({"seeds": ["1", "2"]}, "--seeds 1,2"),
        ({"metric": None}, "metric: "),
        ({"metric": {"name": "val/bleu"}}, "metric.goal = minimize"),
        ({"metric": {"name": "val/blue", "goal": "maximize"}}, "did you mean val/bleu"),
        ({"metric": {"name": "bleu", "goal": "maximize"}}, "val/bleu"),
        ({"metric": {"goal": "maximize"}}, "val/ppl"),
        ({"run_cap": None}, "run_cap = None: must be given"),
        (PARSING | {"metric": {"name": "val/bleu", "goal": "maximize"}}, "val/bleu"),
        ({"metric": {"name": "val/bleu_sample", "goal": "maximize"}}, "trainer.val_sample"),
        ({"run_cap": True}, "run_cap = True"),
        ({"early_terminate": {"type": "hyperband", "max_iter": 9}}, "early_terminate.min_iter = None"),
        ({"metric": {"name": "val/ppl", "goal": "minimize", "target": 5}}, "metric.target = 5"),
        ({"space": {}}, "parameters"),
        ({"space": {"scale": {"values": ["demo", "multi30k"]}}}, "parameters.scale"),
        ({"space": {"model.h": {"values": [2, 4]}}}, "parameters.model.h: must include 8"),
        ({"space": {"model.p_drop": {"min": 0.2, "max": 0.4}}}, "parameters.model.p_drop: must include 0.1"),
        ({"space": {"model.h": {"values": [8, [4]]}}}, "parameters.model.h"),
        ({"space": {"model.h": {"values": {2: "a", 8: "b"}}}}, "parameters.model.h"),
        ({"space": {"model.h": {"values": "248"}}}, "parameters.model.h"),
        ({"space": {"optim.freeze": {"values": [None, "encoder.*, embedding.*"]}}}, "parameters.optim.freeze"),
        ({"space": {"variant": {"values": ["base", "seed=3"]}}}, "seed = 3"),
        ({"space": {"model.d_ff": {"min": 64, "max": 4096.0}}}, "parameters.model.d_ff"),
        ({"space": {"data.path": {"values": [None, "x"]}}}, "data.path = x"),
        ({"space": {"variant": {"values": ["base", "data.train_pairs=9"]}}}, "data.train_pairs = 9"),
        ({"space": {"data.tokenizer.words": {"values": ["", "x"]}}, "fixed": WORDED}, "data.tokenizer = "),
        ({"space": {"data.vocab_size": {"values": [1000, 300]}}}, "data.vocab_size = 300"),
        ({"space": BATCHES, "fixed": {"optim.match": "flops"}}, "data.batch_tokens = 256"),
        ({"space": BATCHES | {"optim.match": {"values": ["steps", "flops"]}}}, "data.batch_tokens = 256"),
        ({"method": "custom", "scheduler": "optuna"}, "scheduler = optuna"),
        ({"sets": {"seed": "5"}}, "seed = 5"),
        ({"sets": {"model.h": "4"}}, "--set model.h=4"),
    ],
)
def test_a_mistake_of_a_search_is_named(keys, mistake):
    with pytest.raises(InputError) as caught:
        search_of(**keys)
    assert any(mistake in message for message in caught.value.messages), caught.value.messages


OPTIMIZERS = {"optim.optimizer": {"values": ["torch.optim.Adam", "ablations.muon.Muon"]}}


def test_an_option_counts_for_those_classes_that_have_it():
    search = search_of(space=OPTIMIZERS | {"optim.optimizer.momentum": {"min": 0.9, "max": 0.99}})
    for optimizer, options in (("torch.optim.Adam", {}), ("ablations.muon.Muon", {"momentum": 0.91})):
        drawn = {"optim.optimizer": optimizer, "optim.optimizer.momentum": 0.91}
        assert search.config(drawn)[0].optim.optimizer.options == options
        assert ("optim.optimizer.momentum" in search.taken(drawn)) == bool(options)
    assert search.config(search.base_draw)[0] == search.base
    with pytest.raises(InputError):  # no class has it
        search_of(space=OPTIMIZERS | {"optim.optimizer.momentom": {"min": 0.9, "max": 0.99}})


EARLY = "lightning.pytorch.callbacks.EarlyStopping"
MUON = {"optim.optimizer": "ablations.muon.Muon", "optim.loss": "ablations.focal_loss.FocalLoss"}
DROPPED = {"data.batches": "ablations.word_dropout.TargetWordDropout"}
OPTIONS = [  # the key of an option, how it is drawn, what the file states, the option of base, and another
    *(("trainer.callbacks.patience", drawn, {"trainer.callbacks": EARLY, "trainer.callbacks.monitor": "val/loss"}, 3, 5)
      for drawn in ({"min": 2, "max": 6}, {"values": [3, 5]})),
    ("optim.optimizer.momentum", {"min": 0.9, "max": 0.99}, MUON, 0.95, 0.91),
    ("optim.optimizer.weight_decay", {"min": 0, "max": 0.1}, {}, 0, 0.05),
    ("data.batches.p", {"min": 0.0, "max": 0.2}, DROPPED, 0.1, 0.2),
]  # fmt: skip


@pytest.mark.parametrize(("key", "drawn", "fixed", "of_base", "other"), OPTIONS, ids=lambda part: str(part)[:40])
def test_the_options_of_every_slot_can_be_drawn(key, drawn, fixed, of_base, other):
    """Of a class that the file names, of the default one, and of a callback. Base has their defaults."""
    search = search_of(space={key: drawn}, fixed=fixed)
    assert search.base_draw == {key: of_base}
    slot, _, option = key.rpartition(".")
    part = attrgetter(slot)(search.config({key: other})[0])
    stated = {key.removeprefix(f"{slot}."): value for key, value in fixed.items() if key.startswith(f"{slot}.")}
    assert (part[0] if slot == "trainer.callbacks" else part).options == stated | {option: other}


@pytest.mark.parametrize(
    ("words", "of_pruner", "mistake"),
    [
        (["tpe", "n_startup_trials=-1", "n_ei_candidates=0"], None, None),
        (["tpe", "startup=5"], None, "startup"),
        (["nsga-ii", "population_size=1"], None, None),
        (["random", "seed=-1"], None, None),
        (["nope"], None, "tpe"),
        (["tpe", "bogus=1"], None, "bogus"),
        (["tpe", "n_startup_trials=1", "n_startup_trials=2"], None, "trials=2"),
        (None, ["median", "n_startup_trials=few"], None),
    ],
    ids=str,
)
def test_a_sampler_that_cannot_draw_and_a_pruner_that_cannot_prune_are_refused_by_the_plan(words, of_pruner, mistake):
    search = search_of(space={"model.p_drop": {"min": 0.0, "max": 0.3}})
    with pytest.raises(InputError, match=mistake):
        check_drawing(search, sampler(search, words), pruner(search, of_pruner))


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_that_can_draw_is_not_refused(name):
    search = search_of(space={"model.p_drop": {"min": 0.0, "max": 0.3}})
    check_drawing(search, sampler(search, [name, "seed=3"]), pruner(search, ["median", "n_startup_trials=2"]))


@pytest.mark.parametrize("window", [{"min": 4, "max": 32}, {"values": [8, 16]}], ids=str)
def test_options_and_widths_of_heads_can_be_drawn(window, tmp_path):
    """Base has their defaults: those of the constructor, and d_model / h."""
    fixed = {"model.attention": "ablations.local_attention.LocalAttention", "optim.duration": None}
    space = {"model.attention.window": window, "model.d_k": {"min": 16, "max": 64}}
    search = search_of(space=space | {"optim.duration": {"min": 1, "max": 3}}, fixed=fixed)
    assert search.base_draw == {"model.attention.window": 16, "model.d_k": 64, "optim.duration": 1.0}
    assert search.config(search.base_draw)[0].model.attention == search.base.model.attention
    corpus = open_corpus(search.base.data)
    draws = [search.config(draw) for draw in ({}, search.base_draw)]
    drawn = [trial_of(config, corpus, RunsFolder(tmp_path)) for config, _ in draws]
    assert drawn[0].identity == drawn[1].identity


def test_what_leaves_the_goal_comparable_can_be_drawn():
    bleu, flops = {"metric": {"name": "val/bleu", "goal": "maximize"}}, {"optim.match": {"values": ["steps", "flops"]}}
    assert search_of(space=BATCHES)
    assert search_of(space={"data.vocab_size": {"values": [1000, 300]}} | BATCHES, **bleu)
    assert search_of(space=flops)


def test_the_value_of_all_trials_may_be_a_list():
    search = search_of(fixed={"optim.optimizer.betas": [0.9, 0.99]})
    assert search.base.optim.optimizer.options["betas"] == [0.9, 0.99]


@pytest.mark.parametrize(
    ("key", "of_base", "other"),
    [
        ("model.width", "1/8", "1/16"),
        ("model.d_k", None, 32),
        ("optim.warmup", "400", "300"),
        ("trainer.callbacks", "[]", "lightning.pytorch.callbacks.DeviceStatsMonitor"),
        ("variant", "model.h=8", "model.h=4"),
    ],
)
def test_the_value_of_base_may_be_written_in_any_form(key, of_base, other):
    search = search_of(space={key: {"values": [other, of_base]}})
    assert search.base_draw == {key: of_base} and search.config(search.base_draw)[0] == search.base


def test_a_sampler_that_cannot_have_two_goals_is_refused():
    goals = [{"name": "val/ppl", "goal": "minimize"}, {"name": "params", "goal": "minimize"}]
    two, single = search_of(metric=None, metrics=goals), search_of()
    with pytest.raises(InputError, match="val/ppl, params"):
        sampler(two, ["cma-es"])
    assert sampler(single, ["cma-es"]) and sampler(two, None)


@pytest.mark.parametrize("words", [None, ["median"]])
def test_a_search_is_pruned_only_by_what_every_validation_measures(words):
    early, final = {"type": "hyperband", "min_iter": 1}, {"name": "val/bleu", "goal": "maximize"}
    with pytest.raises(InputError):
        pruner(search_of(early_terminate=early, metric=final), words)
    assert pruner(search_of(early_terminate=early), words)
