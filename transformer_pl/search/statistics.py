"""Statistics of a search: which keys matter, and how good the best of k trials is expected to be."""

import math
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import optuna
from optuna.trial import FrozenTrial
from scipy import special

from transformer_pl.search.space import Direction

BEST_QUANTILE = 0.25  # PED-ANOVA compares these trials with all trials
KNOWN_BEFORE_TRAINING = ("params", "flops")  # goals that need no importance


def importances(study: optuna.Study, goals: Mapping[str, Direction]) -> dict[str, dict[str, float]]:
    """Return each key's share in which trials are among the best quarter, by goal; the shares of a goal sum to 1.

    PED-ANOVA (Watanabe, Bansal and Hutter 2023, arXiv:2304.10255): the importance of a key is the Pearson divergence of
    its density p(x) among the best quarter from its density q(x) among all trials,

        D = integral of (p(x) / q(x) - 1)^2 q(x) dx,

    divided by the sum over all keys. Only the ranks of the values matter. A diverged trial, which has an infinite value
    and which Optuna would leave out, is ranked below all others.
    """
    trials = study.get_trials(deepcopy=False)
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=BEST_QUANTILE)
    shares = {}
    for index, (goal, direction) in enumerate(goals.items()):
        if goal in KNOWN_BEFORE_TRAINING:
            continue
        sign = 1 if direction == "minimize" else -1
        costs = [sign * trial.values[index] for trial in trials]
        worst = max((cost for cost in costs if math.isfinite(cost)), default=0.0) + 1

        def cost(trial: FrozenTrial, index: int = index, sign: int = sign, worst: float = worst) -> float:
            return min(sign * trial.values[index], worst)

        with warnings.catch_warnings():  # Optuna warns that it takes less for better; the sign makes that true
            warnings.simplefilter("ignore", UserWarning)
            shares[goal] = optuna.importance.get_param_importances(study, evaluator=evaluator, target=cost)
    return shares


def expected_best(values: Sequence[float], direction: Direction) -> np.ndarray:
    """Return the expected best of k of these n values, for k = 1 to n (n,).

    Tang et al. 2020 (arXiv:2004.13705): with v_(1) <= ... <= v_(n), where the highest is best, the mean over all
    choices of k different values is

        E[best of k] = sum over i = k..n of C(i - 1, k - 1) / C(n, k) * v_(i),

    as v_(i) is the best of C(i - 1, k - 1) of the C(n, k) choices. Where the lowest is best, the values are negated.
    Unbiased, unlike the estimate from the empirical distribution.
    """
    sign, n = -1 if direction == "minimize" else 1, len(values)
    ranked = np.sort(sign * np.asarray(values))
    k, i = np.arange(1, n + 1)[:, None], np.arange(1, n + 1)[None, :]
    log_below = special.gammaln(i) - special.gammaln(k) - special.gammaln(np.maximum(i - k + 1, 1))  # log C(i-1, k-1)
    log_all = special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)  # log C(n, k)
    return sign * (np.where(i >= k, np.exp(log_below - log_all), 0.0) @ ranked)
