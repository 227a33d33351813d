"""Whether a training had converged: on made curves, of which the answer is known, and of real trials."""

import math

import numpy as np
import pytest
from scipy.stats import linregress
from tiny_trials import train

from transformer_pl.trials.convergence import (
    LIMIT,
    Convergence,
    convergence,
    mean_convergence,
    trial_convergence,
    validation_losses,
)

pytestmark = pytest.mark.core

STEPS = 1000
# The loss at a share u of the steps, the noise of a validation in nats, and whether it still falls at the end.
CURVES = {
    "converged": (lambda u: 2 + 3 * math.exp(-20 * u), 0.002, False),
    "converged, with noise": (lambda u: 2 + 3 * math.exp(-20 * u), 0.01, False),
    "almost converged": (lambda u: 2 - 0.005 / math.log(1.25) * math.log(u), 0.001, False),
    "slowly falling": (lambda u: 2 - 0.015 / math.log(1.25) * math.log(u), 0.001, True),
    "slowly falling towards zero": (lambda u: 0.15 - 0.015 / math.log(1.25) * math.log(u), 0.001, True),
    "falling": (lambda u: 1.5 + 0.5 * math.exp(-3 * u), 0.005, True),
    "overfitting": (lambda u: 2 + 0.3 * abs(u - 0.5), 0.005, False),
    "diverging": (lambda u: 2 + math.exp(20 * (u - 0.9)), 0.005, False),
    "noise alone": (lambda u: 2.0, 0.05, False),
}


def spaced(losses, steps=STEPS):
    """The losses of validations that are evenly spaced, by step."""
    return {round(steps * (i + 1) / len(losses)): float(loss) for i, loss in enumerate(losses)}


def made(curve, noise, validations, seed):
    rng = np.random.default_rng(seed)
    shares = np.arange(1, validations + 1) / validations
    return convergence(spaced([curve(u) + noise * rng.normal() for u in shares]), STEPS)


@pytest.mark.parametrize("validations", [5, 10, 20])
@pytest.mark.parametrize("name", CURVES)
def test_made_curves_of_three_seeds_are_told_apart(name, validations):
    curve, noise, falls = CURVES[name]
    verdicts = [
        mean_convergence([made(curve, noise, validations, 3 * row + seed) for seed in range(3)]).still_falls
        for row in range(200)
    ]
    assert np.mean(verdicts) >= 0.95 if falls else np.mean(verdicts) <= (0.12 if noise > LIMIT else 0.02)


def test_the_fall_is_that_over_the_last_fifth():
    """Exactly, where the loss is a line over the logarithm of the step."""
    for fall in (-0.02, 0.0, 0.004, 0.1):
        ended = made(lambda u, fall=fall: 3 - fall / math.log(1.25) * math.log(u), 0, 10, 1)
        assert ended.fall == pytest.approx(fall, abs=1e-12) and ended.noise == pytest.approx(0, abs=1e-9)
    assert Convergence(0.01, None, 2).share == pytest.approx(1 - math.exp(-0.01))


def test_one_bad_validation_does_not_decide():
    """A least-squares line would fall by 0.04 with the first of them raised, and rise with the last."""
    flat, falling = np.full(10, 2.0), 2 - 0.03 / math.log(1.25) * np.log(np.arange(1, 11) / 10)
    for bad in (6, 9):
        one = flat.copy()
        one[bad] += 0.3
        assert abs(convergence(spaced(one), STEPS).fall) < LIMIT
        one = falling.copy()
        one[bad] += 0.3
        assert convergence(spaced(one), STEPS).fall > LIMIT


def test_the_noise_of_three_validations_is_that_of_a_line_with_two_unknowns():
    """The median slope is that of least squares here, so the textbook's error of a slope is the reference."""
    at, losses = (640, 800, 1000), (2.0, 2.03, 2.0)
    ended = convergence(dict(zip(at, losses, strict=True)), STEPS)
    assert ended.fall == pytest.approx(0) and ended.validations == 3
    assert ended.noise == pytest.approx(math.log(1.25) * linregress(np.log(at), losses).stderr)


@pytest.mark.parametrize(("steps", "first"), [(1000, 600), (1001, 601), (7, 4)])
def test_the_line_goes_through_the_last_two_fifths(steps, first):
    """Their first step, rounded, is one of them; the step before is not."""
    for step, validations in ((first - 1, 2), (first, 3)):
        assert convergence(dict.fromkeys((step, steps - 1, steps), 2.0), steps).validations == validations


def test_a_fall_within_its_noise_is_none():
    assert Convergence(0.03, 0.01, 9).still_falls and not Convergence(0.03, 0.02, 9).still_falls
    assert Convergence(0.03, None, 2).still_falls and not Convergence(0.009, 0.0001, 9).still_falls


def test_a_best_validation_before_the_last_tenth_shows_that_the_training_had_ended():
    """Another one leaves the mark of a training that still falls where it is."""
    assert not Convergence(0.03, 0.01, 9, 0.9).still_falls and Convergence(0.03, 0.01, 9, 0.95).still_falls
    assert not Convergence(0.001, 0.01, 9, 1.0).still_falls


def test_seeds_are_averaged():
    seeds = [Convergence(0.03, 0.003, 5, 0.5), None, Convergence(0.01, 0.004, 5, 0.9)]
    assert mean_convergence(seeds) == pytest.approx((0.02, 0.0025, 10, 0.7))
    assert mean_convergence([Convergence(0.03, None, 2), seeds[2]]).noise is None
    assert mean_convergence([]) is mean_convergence([None]) is None


@pytest.mark.parametrize("losses", [[], [2.0], [3.0, 2.0], [4.0, 3.0, 2.0, math.inf]])
def test_it_is_not_known_without_validations_late_in_the_training(losses):
    assert convergence(spaced(losses), STEPS) is None


def test_only_validations_during_the_training_count():
    """The final evaluation is of other weights where checkpoints are averaged."""
    curve = spaced([4, 3, 2.5, 2.2, 2.1])
    lines = [{"step": step, "kind": "validation", "val/loss": loss} for step, loss in curve.items()]
    others = [{"step": STEPS, "kind": "final", "val/loss": 1.0}, {"step": STEPS, "kind": "train", "train/loss": 1.0}]
    others += [{"step": STEPS, "kind": "validation", "val/bleu_sample": 3.0}]
    assert validation_losses([*lines, *others]) == curve


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    code, trial = train(tmp_path_factory.mktemp("converged") / "runs", {"optim.max_steps": 10})
    assert code == 0
    return trial


def test_a_trial_keeps_how_it_ended(trial):
    losses = validation_losses(trial.metrics())
    ended = convergence(losses, 10)
    assert trial.result().losses == losses and list(losses) == [2, 4, 6, 8, 10]
    assert ended.validations == 3 and trial.result().convergence == ended.as_record()
    assert trial_convergence(trial.result()) == ended and trial_convergence(None) is None
