"""What a model costs: the formulas against the model as it is built and counted; and rows that cost the same."""

import pytest
import torch
from helpers import ROOT
from small_models import forward_cost, small
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from transformer_pl.config import custom_components, sizes
from transformer_pl.config.levels import Level, resolve
from transformer_pl.model import ScaledDotProductAttention, SharedEmbedding, Transformer
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.terminal import short_numbers
from transformer_pl.trials.flops import loss_flops, share_of_peak, training_costs
from transformer_pl.trials.trial_config import match_flops

pytestmark = pytest.mark.core
BASE = {"model.N": 6}
# Rows of Table 3, and what none of them shows: d_k apart from d_v, sizes without a common factor.
ROWS = [
    BASE,
    {"model.N": 4},
    {"model.N": 2, "model.h": 1},
    {"model.N": 2, "model.h": 32},
    {"model.N": 2, "model.d_k": 16},
    {"model.N": 2, "model.d_model": 256, "model.d_k": 32, "model.d_v": 32},
    {"model.N": 3, "model.d_model": 1024, "model.d_ff": 4096, "model.h": 16},
    {"model.N": 1, "model.d_k": 40, "model.d_v": 24},
    {"model.N": 1, "model.d_model": 30, "model.d_ff": 77, "model.h": 7, "model.d_k": 5, "model.d_v": 3},
    {"model.width": "1/2", "model.depth": "1/3", "model.d_k": 48},
]
rows = pytest.mark.parametrize("keys", ROWS, ids=lambda keys: " ".join(f"{k[6:]}={v}" for k, v in keys.items()))
SHAPE = {"sentences": 3, "source": 37, "target": 23}  # all different, so that a mix-up shows


def built_from(keys, vocab_size=1009):
    return sizes(resolve([Level("test", keys)]).model, vocab_size)


def counted(config, sentences, source, target):
    """The parameters of the built model, and the operations of its forward pass, on the meta device."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = Transformer(config)
        model(torch.ones(sentences, source, dtype=torch.long), torch.ones(sentences, target, dtype=torch.long))
    return sum(parameter.numel() for parameter in model.parameters()), counter.get_total_flops()


@rows
def test_the_formula_is_what_is_built_and_counted(keys):
    config = built_from(keys)
    assert not custom_components(config)  # so that it is the formula
    params, flops = counted(config, **SHAPE)
    found = forward_cost(config, *SHAPE.values())
    assert found.params == params
    assert found.flops == pytest.approx(flops, rel=1e-3)


# The column of Table 3 in millions, where it prints a number.
PRINTED = [
    ({}, 65),
    ({"model.d_k": 16}, 58),
    ({"model.d_k": 32}, 60),
    ({"model.N": 2}, 36),
    ({"model.N": 4}, 50),
    ({"model.N": 8}, 80),
    ({"model.d_model": 256, "model.d_k": 32, "model.d_v": 32}, 28),
    ({"model.d_model": 1024, "model.d_k": 128, "model.d_v": 128}, 168),
    ({"model.d_ff": 1024}, 53),
    ({"model.d_ff": 4096}, 90),
]


class Biased(ScaledDotProductAttention):
    """Holds the biases of its projections."""

    def __init__(self, config, site):
        super().__init__(config, site)
        self.b_Q, self.b_K, self.b_V, self.b_O = (
            nn.Parameter(torch.zeros(size))
            for size in (config.h * config.d_k, config.h * config.d_k, config.h * config.d_v, config.d_model)
        )


class Padded(SharedEmbedding):
    """A vocabulary padded to 40,960 rows, and a table of 32 rows for the target space."""

    def __init__(self, config, site):
        super().__init__(config._replace(vocab_size=40_960), site)
        self.target_space = nn.Parameter(torch.zeros(32, config.d_model))


@pytest.mark.parametrize(("keys", "millions"), PRINTED, ids=[str(millions) for _, millions in PRINTED])
def test_the_paper_s_column_of_parameters(keys, millions):
    """It counts what the authors' first code had beyond the paper's formulas."""
    firsts = {"model.attention": f"{__name__}.Biased", "model.embedding": f"{__name__}.Padded"}
    with torch.device("meta"):
        model = Transformer(built_from(keys | firsts, 37_000))
    assert round(sum(parameter.numel() for parameter in model.parameters()) / 1e6) == millions


PART = "ablations.learned_position.LearnedPosition"
LSTM = "ablations.recurrent_layer.RecurrentLayer"


def test_a_part_of_another_kind_is_counted():
    """Two tables of learned positions, for the encoder and for the decoder; no matrix product more."""
    small = {"model.N": 2, "model.d_model": 24, "model.d_ff": 40, "model.h": 4}
    paper, config = built_from(small), built_from(small | {"model.position": PART, "model.position.most": 50})
    found = forward_cost(config, *SHAPE.values())
    assert found == counted(config, **SHAPE)
    assert found.params == forward_cost(paper, *SHAPE.values()).params + 2 * 50 * 24
    assert found.flops == pytest.approx(forward_cost(paper, *SHAPE.values()).flops, rel=1e-3)


def test_a_recurrent_layer_is_counted_with_all_its_steps():
    """Four gates of input and state, each way in the encoder over half the width."""
    small = {"model.N": 2, "model.d_model": 24, "model.d_ff": 40, "model.h": 4}
    paper, config = built_from(small), built_from(small | {"model.self_attention": LSTM})
    B, Ls, Lt = SHAPE.values()
    attention = 2 * B * sum(4 * L * 24 * 24 + L * L * 2 * 24 for L in (Ls, Lt))
    recurrent = 2 * B * (Ls * 2 * 4 * 12 * (24 + 12) + Lt * 4 * 24 * (24 + 24))
    assert forward_cost(config, *SHAPE.values()).flops == pytest.approx(
        forward_cost(paper, *SHAPE.values()).flops + 2 * (recurrent - attention), rel=0.02
    )


HEAD = """
import torch
class Head(torch.nn.Module):
    def __init__(self, config, optim, inner: int = 50):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(config.d_model, inner), torch.nn.Linear(inner, config.vocab_size)
    def of_states(self, embedding, x, target):
        return (embedding.logits(x) + self.outer(self.inner(x))).logsumexp(-1).sum()
class Twice(Head):
    of_states = None
    def of_batch(self, model, batch):
        for _ in range(2):
            model(batch.source, batch.target_in)
        return self.outer(self.inner(model.embedding.embed(batch.target_in, "decoder"))).sum()
class Plain:
    def __init__(self, config, optim): ...
    def __call__(self, logits, target):
        return logits.sum()
"""


@pytest.mark.parametrize(("name", "inner"), [("Head", 50), ("Twice", 7), ("Plain", 0)])
def test_the_products_of_a_loss_with_weights_are_counted_once_for_each_target_token(module, name, inner):
    module(HEAD)
    options = {"optim.loss.inner": inner} if inner else {}
    config = resolve([Level("test", BASE | {"optim.loss": f"stranger.{name}"} | options)])
    expected = 2 * 23 * inner * (config.model.d_model + 1009)
    assert loss_flops(config.optim, sizes(config.model, 1009), 1, 37, 23) == expected
    paper = resolve([Level("test", BASE)])
    ours, others = training_costs([(config, (37, 23)), (paper, (37, 23))])
    assert (ours.flops > others.flops) == bool(inner)


def test_training_is_three_forward_passes_over_every_token():
    """Batches are filled to 25 pieces a side: 40 sentences of 1000 tokens."""
    forward = forward_cost(built_from(BASE, 37_000), 1, 20, 25).flops
    steps_and_tokens = ((1, 1000), (7, 3000))
    configs = [
        resolve([Level("test", BASE | {"optim.max_steps": steps, "data.batch_tokens": tokens})])
        for steps, tokens in steps_and_tokens
    ]
    short, long = training_costs([(config, (20, 25)) for config in configs])
    assert short.flops == pytest.approx(3 * 40 * forward)
    assert long.flops == pytest.approx(3 * 7 * 120 * forward)


@pytest.mark.parametrize(
    ("gpus", "keys", "peak"),
    [
        (["NVIDIA H200"], {}, 989e12),
        (["NVIDIA A100-SXM4-80GB"] * 2, {"trainer.num_nodes": 2}, 4 * 312e12),
        (["NVIDIA H100 PCIe"], {}, 756e12),
        (["Tesla T4"], {"trainer.precision": "32-true"}, None),
        (["NVIDIA A1000"], {}, None),
        ([], {}, None),
    ],
    ids=str,
)
def test_the_share_of_the_peak_is_of_the_products_of_the_tokens_of_a_second(gpus, keys, peak):
    """1,000 tokens a batch, 25 a source and 20 a target: 40 pairs a step, with 800 target tokens."""
    keys = BASE | {"optim.max_steps": 7, "data.batch_tokens": 1000, "trainer.precision": "bf16-mixed"} | keys
    config = resolve([Level("test", keys)])
    [cost] = training_costs([(config, (25, 20))])
    share = share_of_peak(config, cost, (25, 20), 8000, gpus)  # ten steps a second
    assert share == (peak and pytest.approx(10 * cost.flops / 7 / peak))


def test_counts_that_differ_look_different():
    assert short_numbers([430_976, 430_976, 431_040]) == ["430.98K", "430.98K", "431.04K"]
    assert short_numbers([430_976, 199_000]) == ["431K", "199K"]
    assert short_numbers([213_000_001, 213_000_000]) == ["213.000001M", "213M"]
    assert short_numbers([7, 9]) == ["7", "9"] and short_numbers([]) == []


# Equal budgets


def spent(config):
    return training_costs([(config, (25, 25))])[0].flops


@pytest.mark.parametrize("name", ["table3", pytest.param("layers", marks=pytest.mark.slow)])  # an LSTM takes 10 s
def test_rows_of_a_matched_sweep_cost_the_same(name):
    path = ROOT / "sweeps" / f"{name}.yaml"
    rows = read_sweep(path, seeds=["1"], sets={"optim.match": "flops"}).rows
    costs = [spent(row.configs[0]) for row in rows]
    assert max(costs) / min(costs) < 1.01  # steps are whole
    plain = read_sweep(path)
    assert [row.name for row in rows] == [row.name for row in plain.rows]
    assert max(map(spent, (row.configs[0] for row in plain.rows))) > 1.05 * min(costs)


def test_a_matched_row_is_the_trial_that_has_so_many_steps():
    keys = {"model.N": 2, "optim.duration": 3, "optim.max_steps": 1000}
    row = match_flops(resolve([Level("test", keys | {"optim.match": "flops"})]))
    assert row.steps > 1000
    assert row == resolve([Level("test", {"model.N": 2, "optim.max_steps": row.steps})])
    assert match_flops(row) == row
    for sizes_of_scale in ({}, {"model.width": 0.5, "model.depth": 0.5}):
        base = resolve([Level("test", {"optim.match": "flops"} | sizes_of_scale)])
        assert match_flops(base) == resolve([Level("test", sizes_of_scale)])


@pytest.mark.parametrize(
    ("key", "value"), [("data.batch_tokens", "2048"), ("model.width", "1.0"), ("optim.max_steps", "3000")]
)
def test_rows_of_other_batches_or_another_budget_cannot_be_matched(tmp_path, key, value):
    path = tmp_path / "sweep.yaml"
    path.write_text((ROOT / "sweeps" / "table3_B.yaml").read_text().replace("model.d_k=16", f"{key}={value}"))
    with pytest.raises(InputError, match=f"{key} = {value}"):
        read_sweep(path, sets={"optim.match": "flops"})


@pytest.mark.parametrize("memory", [0, 40, 100])
def test_the_keys_that_are_carried_are_counted(memory):
    """As many as there are in the middle of a long document, in pieces of 30 tokens."""
    keys = {"model.N_encoder": 0, "model.self_attention": "ablations.segment_memory.SegmentMemory"}
    c = small(keys | {"model.self_attention.memory": memory})
    base = forward_cost(small({"model.N_encoder": 0}), 2, 1, 30)
    for_each_key = (c.d_model + 30) * c.h * (c.d_k + c.d_v)  # its projections, and its products with queries
    expected = base.flops + 2 * 2 * c.N_decoder * memory * for_each_key
    assert forward_cost(c, 2, 1, 30) == (base.params, expected)
