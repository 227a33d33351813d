"""Optuna's distributions of the parameters in a sweep file."""

from collections.abc import Mapping
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

Distribution = CategoricalDistribution | FloatDistribution | IntDistribution


def distribution(parameter: Mapping[str, Any]) -> Distribution:
    """Return the distribution that W&B's own Optuna engine makes of a parameter.

    Raises a ValueError or TypeError with the constraint that the parameter breaks.
    """
    if unknown := parameter.keys() - {"distribution", "min", "max", "q", "value", "values"}:
        raise ValueError(f"{', '.join(sorted(unknown))}: Optuna has nothing like it; use min, max and q, or values")
    name = parameter.get("distribution")
    if "value" in parameter or ("values" in parameter and name in (None, "categorical", "constant")):
        values = [parameter["value"]] if "value" in parameter else list(parameter["values"])
        if any(not isinstance(value, str | int | float | None) for value in values):
            raise ValueError("each value must be a number, text, true, false or null")
        return CategoricalDistribution(values)
    low, high, q = parameter.get("min", ""), parameter.get("max", ""), parameter.get("q", 1)
    if not all(type(number) in (int, float) for number in (low, high, q)):
        raise ValueError("must have value, values, or numbers as min and max")
    are_whole = isinstance(low, int) and isinstance(high, int)
    match name or ("int_uniform" if are_whole else "uniform"):
        case "int_uniform":
            return IntDistribution(int(low), int(high))
        case "q_uniform" if are_whole and isinstance(q, int):
            return IntDistribution(low, high, step=q)
        case "uniform":
            return FloatDistribution(low, high)
        case "q_uniform":
            return FloatDistribution(low, high, step=q)
        case "q_log_uniform_values" if q == 1 and low >= 1:  # on a logarithmic scale Optuna has no steps but 1
            return IntDistribution(int(low), int(high), log=True)
        case "log_uniform_values" | "q_log_uniform_values":
            return FloatDistribution(low, high, log=True)
    raise ValueError(f"distribution {name}: Optuna has nothing like it; use uniform or log_uniform_values")


def choices_or_ends(distribution: Distribution) -> tuple[Any, ...]:
    """Return all choices, or the two ends of a range."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    return distribution.low, distribution.high
