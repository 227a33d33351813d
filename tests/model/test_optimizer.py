"""The optimizer and the schedule of Section 5.3, and others in their slots."""

import pytest
import torch

from transformer_pl.config import sizes
from transformer_pl.config.levels import Level, resolve
from transformer_pl.model import Transformer
from transformer_pl.model.optimizer import InverseSquareRoot, build_optimizer
from transformer_pl.trials.trial_config import as_trained, mistakes_of_parts

pytestmark = pytest.mark.core
SMALL = {"model.d_model": 8, "model.d_ff": 8, "model.h": 2, "model.N": 1, "optim.warmup": 40, "optim.max_steps": 100}


def config_of(**keys):
    return resolve([Level("test", SMALL | {f"optim.{key.replace('__', '.')}": value for key, value in keys.items()})])


def built(**keys):
    return built_from(config_of(**keys))


def built_from(config):
    """The optimizer, its model and the rates of the first 101 steps."""
    model = Transformer(sizes(config.model, 20))
    optimizer, scheduler = build_optimizer(config.optim, sizes(config.model, 20), model)
    (law, *_) = scheduler.lr_lambdas
    return optimizer, model, [law(done) for done in range(101)]


def test_the_learning_rate_is_equation_3():
    config = resolve([Level("test", {"optim.warmup": 4000})])
    rate = InverseSquareRoot(sizes(config.model, 20), config.optim)
    assert rate(4000) == pytest.approx(512**-0.5 * 4000**-0.5)
    assert [rate(1), rate(2000)] == pytest.approx([rate(4000) / 4000, rate(4000) / 2])  # linear until the warmup's end
    assert rate(16000) == pytest.approx(rate(4000) / 2)  # then as the inverse square root


def test_lr_scale_multiplies_the_rate_of_any_schedule():
    for schedule in ("transformer_pl.model.optimizer.InverseSquareRoot", "ablations.schedules.Cosine"):
        (_, _, once), (_, _, thrice) = built(schedule=schedule), built(schedule=schedule, lr_scale=3)
        assert thrice == pytest.approx([3 * rate for rate in once])


def test_the_keys_of_adam_are_given_to_an_optimizer_that_has_them():
    for path in ("torch.optim.Adam", "torch.optim.AdamW"):
        optimizer, _, _ = built(optimizer=path, beta1=0.8, beta2=0.7, eps=1e-3)
        (group,) = optimizer.param_groups
        assert (group["betas"], group["eps"]) == ((0.8, 0.7), 1e-3)
    optimizer, _, _ = built(optimizer="torch.optim.Adafactor", optimizer__eps="[1e-20,0.002]")
    (group,) = optimizer.param_groups
    assert group["eps"] == (1e-20, 0.002)
    optimizer, _, _ = built(optimizer="torch.optim.Adafactor")  # whose eps is a pair
    optimizer, _, rates = built(optimizer="torch.optim.SGD", optimizer__momentum=0.5)
    (group,) = optimizer.param_groups
    assert isinstance(optimizer, torch.optim.SGD) and group["momentum"] == 0.5 and group["lr"] == rates[0]


@pytest.mark.parametrize("other", ["foreach", "differentiable"])
def test_another_implementation_of_an_optimizer_can_be_chosen(other):
    optimizer, _, _ = built(optimizer="torch.optim.AdamW", **{f"optimizer__{other}": True})
    assert optimizer.defaults[other] and not optimizer.defaults["fused"]


def test_an_option_counts_that_is_the_class_s_default_and_not_what_it_would_get():
    """AdamW alone has betas (0.9, 0.999) and an eps of 1e-8; here it would get those of the paper."""

    def trained(**options):
        return as_trained(config_of(optimizer="torch.optim.AdamW", **options))

    for options in ({"optimizer__betas": "[0.9,0.999]"}, {"optimizer__eps": 1e-8}):
        assert trained(**options) != trained()
        optimizer, _, _ = built_from(trained(**options))
        (group,) = optimizer.param_groups
        assert (group["betas"] == (0.9, 0.999)) == ("optimizer__betas" in options)
        assert (group["eps"] == 1e-8) == ("optimizer__eps" in options)
    assert trained(optimizer__betas="[0.9,0.98]", optimizer__eps=1e-9) == trained()
    assert trained(optimizer__betas="[0.9,0.999]", beta2=0.999) == trained(beta2=0.999)


TABLE = """
class Table:
    def __init__(self, config, optim):
        self.rates = [step / 100 for step in range(1, optim.max_steps + 1)]
    def __call__(self, step):
        return self.rates[step - 1]
"""


def test_a_schedule_is_asked_for_the_steps_of_the_training_alone(module):
    """After the last step torch asks once more, where a table has nothing left."""
    module(TABLE)
    assert built(schedule="stranger.Table")[2] == [*(step / 100 for step in range(1, 101)), 1.0]


@pytest.mark.parametrize(
    "name", ["Cosine", "Linear", "Constant", "WarmupStableDecay", "InverseSquareRootWithoutWarmup"]
)
def test_a_schedule_begins_and_ends_as_its_name_says(name):
    """Without options each has equation 3's greatest rate, so that a row changes the shape alone."""
    (_, _, paper), (_, _, rates) = built(), built(schedule=f"ablations.schedules.{name}")
    assert max(rates) == pytest.approx(max(paper), rel=0.03)
    if name != "InverseSquareRootWithoutWarmup":
        assert rates[:40] == sorted(rates[:40]) and rates[39] == max(rates)
    assert rates[40:] == sorted(rates[40:], reverse=True)
    assert (rates[99] < 1e-9) == (name in ("Cosine", "Linear", "WarmupStableDecay"))
    assert (rates[99] == rates[39]) == (name == "Constant")
    assert (rates[79] == rates[39]) == (name in ("Constant", "WarmupStableDecay"))


def test_an_optimizer_of_one_s_own_can_group_parameters():
    optimizer, model, _ = built(optimizer="ablations.muon.Muon")
    assert len(optimizer.param_groups) == 2
    grouped = [id(one) for group in optimizer.param_groups for one in group["params"]]
    assert sorted(grouped) == sorted(map(id, model.parameters()))


SCALED = """
import torch
class Scaled(torch.optim.AdamW):
    def __init__(self, params, lr, weight_decay: float = 0.01, amsgrad: bool = False):
        super().__init__(params, lr, weight_decay=weight_decay, amsgrad=amsgrad)
    @staticmethod
    def groups(named_parameters, base_width: int, weight_decay: float = 0.01):
        return [{"params": [one], "lr": base_width / one.shape[-1], "weight_decay": weight_decay / one.shape[-1]}
                for _, one in named_parameters]
"""


def test_the_groups_of_an_optimizer_get_the_options_that_they_declare(module):
    """Those that the constructor declares as well, and others."""
    module(SCALED)
    options = {"optimizer__base_width": "16", "optimizer__weight_decay": 0.5, "optimizer__amsgrad": "true"}
    optimizer, model, rates = built(optimizer="stranger.Scaled", **options)
    for weight, group in zip(model.parameters(), optimizer.param_groups, strict=True):
        assert group["lr"] == pytest.approx(16 / weight.shape[-1] * rates[0])
        assert group["weight_decay"] == 0.5 / weight.shape[-1] and group["amsgrad"]
    for wrong in ({}, options | {"optimizer__base_width": "wide"}, options | {"optimizer__width": 3}):
        assert mistakes_of_parts(config_of(optimizer="stranger.Scaled", **wrong))
