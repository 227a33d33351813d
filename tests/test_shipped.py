"""Every shipped sweep: each of its rows differs from base by more than its name, and trains."""

import optuna
import pytest
import torch
import yaml
from conftest import GRIDS, SEARCHES, SHIPPED
from torch.utils.flop_counter import FlopCounterMode

from transformer_pl.batches import BOS, PAD
from transformer_pl.config import sizes
from transformer_pl.cost import cost
from transformer_pl.identity import row_identity
from transformer_pl.loss import smoothed_loss
from transformer_pl.model import Transformer
from transformer_pl.schedule import learning_rate
from transformer_pl.search import file as searches
from transformer_pl.search.study import name
from transformer_pl.sweepfile import load

VOCABULARY = 60
DRAWS = 3  # of each search


def search_of(path):
    return searches.load(path, yaml.safe_load(path.read_text()), None, None, {})


def rows():
    """Every row of any sweep once, with its base."""
    found = {}
    for path in GRIDS:
        sweep = load(path)
        for row in sweep.rows:
            found.setdefault(row_identity(row.configs[0]), (f"{path.stem}: {row.name}", row.configs[0], sweep.base))
    for path in SEARCHES:
        search = search_of(path)
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
        for _ in range(DRAWS):
            trial = study.ask(search.space)
            config, _ = search.config(trial.params)
            found.setdefault(row_identity(config), (f"{path.stem}: {name(trial)}", config, search.base))
    return list(found.values())


ROWS = rows()
every_row = pytest.mark.parametrize(("config", "base"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])


def batch():
    torch.manual_seed(2)
    source, target = torch.randint(4, VOCABULARY, (4, 12)), torch.randint(4, VOCABULARY, (4, 11))
    source[1, 9:] = target[2, 6:] = PAD
    shifted = torch.cat([torch.full((4, 1), BOS), target[:, :-1]], 1).masked_fill(target == PAD, PAD)
    return source, shifted, target


def built(config):
    torch.manual_seed(1)
    return Transformer(sizes(config.model, VOCABULARY))


def training(config):
    """What a trial is made of, in numbers: its weights, a step's logits with dropout, loss, rates, length."""
    model, (source, shifted, _) = built(config), batch()
    torch.manual_seed(3)
    logits = model(source, shifted)
    d_model = sizes(config.model, VOCABULARY).d_model
    rates = [learning_rate(step, d_model, config.optim.warmup, config.optim.lr_scale) for step in (1, 1000)]
    return {
        "shapes": [tuple(p.shape) for p in model.parameters()],
        "logits": logits.detach(),
        "smoothing": smoothed_loss(torch.arange(60.0)[None, None], torch.tensor([[59]]), config.optim.eps_ls).item(),
        "rates": rates,
        "steps": config.steps,
    }


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.shape == b.shape and torch.allclose(a, b, atol=1e-4)
    return a == b


@every_row
def test_a_row_is_more_than_its_name(config, base):
    ours, theirs = training(config), training(base)
    differing = {name for name in ours if not same(ours[name], theirs[name])}
    assert differing or row_identity(config) == row_identity(base)


@every_row
def test_a_row_s_cost_is_known_before_it_is_built(config, base):
    found = cost(sizes(config.model, VOCABULARY), 4, 12, 11)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        built(config)(*(tensor.to("meta") for tensor in batch()[:2]))
    assert found.params == sum(parameter.numel() for parameter in built(config).parameters())
    assert found.flops == pytest.approx(counter.get_total_flops(), rel=0.02)


@every_row
def test_a_row_learns(config, base):
    """Thirty steps on four sentences: the loss of every row falls, and stays a number."""
    model, (source, shifted, target) = built(config), batch()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(30):
        loss = smoothed_loss(model(source, shifted), target, config.optim.eps_ls) / (target != PAD).sum()
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_sweep_opens_with_what_it_is_and_how_to_run_it(path):
    text = path.read_text()
    assert (
        text.startswith("# ") and f"python -m transformer_pl.sweep sweeps/{path.name}" in text.partition("program:")[0]
    )


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_base_is_among_the_rows(path):
    sweep = load(path)
    assert row_identity(sweep.base) in {row_identity(row.configs[0]) for row in sweep.rows}
