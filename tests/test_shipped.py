"""Every shipped sweep: each of its rows differs from base by more than its name, and trains."""

import itertools
from functools import cache

import lightning as L
import optuna
import pytest
import torch
import yaml
from helpers import GRIDS, SEARCHES, SHIPPED, check_names
from shipped_components import Sample, shipped_sweep

from transformer_pl.config.components import build, evaluated_model, is_core, own_parts
from transformer_pl.data import synthetic
from transformer_pl.data.batches import BOS, PAD, Batch
from transformer_pl.data.prepared import SIDES
from transformer_pl.data.tokenizer import build_tokenizer
from transformer_pl.data.tokens import Split
from transformer_pl.laws.checks import check_all
from transformer_pl.model.slots import tell_step
from transformer_pl.search import space as searches
from transformer_pl.search.study import trial_name
from transformer_pl.train.intervention import intervene
from transformer_pl.train.module import TransformerModule
from transformer_pl.trials.identity import row_identity

VOCABULARY = 60
TRAINER = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)


def search_of(path):
    return searches.read_search(path, yaml.safe_load(path.read_text()), None, None, {})


def rows():
    """Every row of any sweep once, with its base; of a search, each of its keys changed alone."""
    found = {}
    for path in GRIDS:
        sweep = shipped_sweep(path)
        for row in sweep.rows:
            found.setdefault(row_identity(row.configs[0]), (path, row.name, row.configs[0], sweep.base))
    for path in SEARCHES:
        search = search_of(path)
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
        for key, domain in search.space.items():
            config = search.base
            while config.flat()[key] == search.base_draw[key]:
                trial = study.ask({key: domain})
                config, _ = search.config(trial.params)
            found.setdefault(row_identity(config), (path, trial_name(study.trials[-1]), config, search.base))
    return list(found.values())


ROWS = rows()
SAMPLE = Sample()
every_row = pytest.mark.parametrize(
    ("config", "base"),
    [
        pytest.param(config, base, id=f"{path.stem}: {name}", marks=SAMPLE.marks(config.flat(), f"sweeps/{path.name}"))
        for path, name, config, base in ROWS
    ],
)


def batch():
    torch.manual_seed(2)
    source, target = torch.randint(4, VOCABULARY, (4, 12)), torch.randint(4, VOCABULARY, (4, 11))
    source[1, 9:] = target[2, 6:] = PAD
    shifted = torch.cat([torch.full((4, 1), BOS), target[:, :-1]], 1).masked_fill(target == PAD, PAD)
    return Batch(source, shifted, target, int((target != PAD).sum()))


def built(config):
    """What is trained, in the hands of a trainer."""
    torch.manual_seed(1)
    module = TransformerModule(config, VOCABULARY)
    module.trainer = TRAINER
    return module


@cache
def learned(tokenizer, vocab_size):
    """A tokenizer that has learned from all synthetic sentences, and the tokens of a few on both sides."""
    made, pairs = build_tokenizer(tokenizer), synthetic.pairs("val")[:90]
    made.load(made.train(lambda: synthetic.pairs("train"), vocab_size))
    return made, [made.encode(sentences, side) for sentences, side in zip(zip(*pairs, strict=True), SIDES, strict=True)]


def tokens(tokenizer, vocab_size):
    return [side.flat.tolist() for side in learned(tokenizer, vocab_size)[1]]


def first_batches(config):
    """The batches of the first steps, of a few synthetic sentences."""
    tokenizer, sides = learned(config.data.tokenizer, config.data.vocab_size)
    stream = build(config.data.batches, Split(*sides), tokenizer, config, 0, 1)
    return [(batch.source.tolist(), batch.target_in.tolist()) for batch in itertools.islice(stream, 6)]


def training(config):
    """What a trial is made of, in numbers: its weights, a step's logits and loss with dropout, rates, length; and the
    logits of an evaluation."""
    module = built(config)
    torch.manual_seed(3)
    module.on_train_batch_start(batch(), 0)
    tell_step(1, config.steps, module.model, module.loss)  # as a training does once it has begun
    loss = module.training_step(batch(), 0)
    torch.manual_seed(3)
    logits = module.model.double()(*batch()[:2])  # so that an epsilon, too, is more than rounding
    intervene(module.model, config)
    made = module.configure_optimizers()
    law, *_ = made["lr_scheduler"]["scheduler"].lr_lambdas
    group, *_ = made["optimizer"].param_groups
    return {
        "shapes": [tuple(p.shape) for p in module.parameters()],
        "logits": logits.detach(),
        "evaluated": module.model(*batch()[:2]).detach(),
        "loss": loss.detach(),
        "rates": [law(done) for done in (0, 999)],
        "steps": config.steps,
        "batch": config.data.batch_tokens,
        "batches": first_batches(config),
        "languages": (config.data.source, config.data.target),
        "optimizer": (type(made["optimizer"]), {name: value for name, value in group.items() if name != "params"}),
        "clip": config.optim.clip,
        "read in evaluation": (config.decode.stride, evaluated_model(config)),
        "tokens": tokens(config.data.tokenizer, config.data.vocab_size),
    }


def same(a, b):
    if isinstance(a, torch.Tensor):
        close = {"rtol": 0, "atol": 1e-9} if a.dtype == torch.float64 else {"atol": 1e-4}
        return a.shape == b.shape and torch.allclose(a, b, **close)
    return a == b


@pytest.fixture(scope="module")
def base_trainings():
    """By base: what `training` says of it. Many rows have the same base."""
    return {}


@every_row
def test_a_row_is_more_than_its_name(base_trainings, config, base):
    if str(base) not in base_trainings:
        base_trainings[str(base)] = training(base)
    ours, theirs = training(config), base_trainings[str(base)]
    differing = {name for name in ours if not same(ours[name], theirs[name])}
    assert differing or row_identity(config) == row_identity(base)


@every_row
def test_a_row_learns(config, base):
    """Twelve steps on four sentences: the loss of every row falls, and stays a number."""
    module, losses = built(config), []
    adam = module.configure_optimizers()["optimizer"]
    for group in adam.param_groups:
        group["lr"] = 1e-3 if "betas" in group else 0.1  # the law's first are too small to tell
    for step in range(12):
        loss = module.training_step(batch(), step)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert losses[-1] < (0.95 if config.optim.freeze else 0.9) * losses[0]


def test_a_sweep_opens_with_what_it_is_and_how_to_run_it():
    heads = {path.name: path.read_text().partition("program:")[0] for path in SHIPPED}
    opened = [
        name
        for name, head in heads.items()
        if head.startswith("# ") and f"python -m transformer_pl.sweep sweeps/{name}" in head
    ]
    remedy = "begin the file with a comment that says what it is, and has `python -m transformer_pl.sweep sweeps/FILE`"
    check_names(opened, heads, remedy)


def test_base_is_among_the_rows():
    with_base = [path.name for path in GRIDS if shipped_sweep(path).base_row is not None]
    check_names(with_base, [path.name for path in GRIDS], "add `base` to the values of `variant` in the file")


PARTS = {repr(own_parts(config)): config for *_, config, _ in ROWS if own_parts(config)}


@pytest.mark.slow
@pytest.mark.parametrize("config", PARTS.values(), ids=PARTS)
def test_what_ships_beside_the_model_passes_its_rehearsal(config, tmp_path):
    (found,) = check_all([config], tmp_path)
    passes = 2 if config.optim.loss.path.endswith(".RDrop") else 1  # of the model for each batch of the core's
    passes = passes if is_core(config.data.batches.path) else None
    notes = [note for note in found.notes if "give back the whole text" not in note]  # which is not the row's own here
    assert found.passes == passes and not notes


@pytest.mark.slow
def test_every_intervention_that_ships_is_of_the_model_of_its_row(tmp_path):
    check_all([config for *_, config, _ in ROWS if not is_core(config.decode.intervention.path)], tmp_path)
