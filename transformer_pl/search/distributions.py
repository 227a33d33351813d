"""Optuna's distributions of the parameters in a sweep file."""

from collections.abc import Mapping
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

Range = FloatDistribution | IntDistribution
Distribution = CategoricalDistribution | Range


def distribution(parameter: Mapping[str, Any]) -> Distribution:
    """Return the distribution that W&B's own Optuna engine makes of a parameter.

    Raises a ValueError or TypeError with the constraint that the parameter breaks.
    """
    if unknown := parameter.keys() - {"distribution", "min", "max", "q", "value", "values"}:
        raise ValueError(f"{', '.join(sorted(unknown))}: Optuna has nothing like it; use min, max and q, or values")
    if "value" in parameter:
        return _categorical([parameter["value"]])
    name = parameter.get("distribution")
    if "values" in parameter and name in (None, "categorical", "constant"):
        return _categorical(list(parameter["values"]))
    low, high, q = (_number(parameter.get(key, default)) for key, default in (("min", None), ("max", None), ("q", 1)))
    if isinstance(low, int) and isinstance(high, int):
        return _whole_range(name or "int_uniform", low, high, q)
    return _range(name or "uniform", low, high, q)


def _categorical(values: list[Any]) -> CategoricalDistribution:
    if any(not isinstance(value, str | int | float | None) for value in values):
        raise ValueError("each value must be a number, text, true, false or null")
    return CategoricalDistribution(values)


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must have value, values, or numbers as min and max")
    return value


def _whole_range(name: str, low: int, high: int, q: int | float) -> Range:
    if name == "int_uniform":
        return IntDistribution(low, high)
    if name == "q_uniform" and isinstance(q, int):
        return IntDistribution(low, high, step=q)
    return _range(name, low, high, q)


def _range(name: str, low: int | float, high: int | float, q: int | float) -> Range:
    match name:
        case "int_uniform":
            return IntDistribution(int(low), int(high))
        case "uniform":
            return FloatDistribution(low, high)
        case "q_uniform":
            return FloatDistribution(low, high, step=q)
        case "log_uniform_values":
            return FloatDistribution(low, high, log=True)
        case "q_log_uniform_values":  # on a logarithmic scale Optuna has no steps but 1
            if q == 1 and low >= 1:
                return IntDistribution(int(low), int(high), log=True)
            return FloatDistribution(low, high, log=True)
    raise ValueError(f"distribution {name}: Optuna has nothing like it; use uniform or log_uniform_values")


def contains(distribution: Distribution, value: Any) -> bool:
    """Whether a distribution can draw a value."""
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    if not isinstance(value, int | float) or not distribution.low <= value <= distribution.high:
        return False
    if not distribution.step or distribution.log:
        return True
    steps = (value - distribution.low) / distribution.step
    return abs(steps - round(steps)) < 1e-9


def choices_or_ends(distribution: Distribution) -> tuple[Any, ...]:
    """Return all choices, or the two ends of a range."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    return distribution.low, distribution.high


def describe(distribution: Distribution) -> str:
    """Return a distribution as people write it: `2, 4, 8` or `0.1 to 10, on a logarithmic scale`."""
    if isinstance(distribution, CategoricalDistribution):
        return ", ".join(map(str, distribution.choices))
    scale = ", on a logarithmic scale" if distribution.log else ""
    steps = f", in steps of {distribution.step:g}" if distribution.step not in (None, 1) else ""
    return f"{distribution.low:g} to {distribution.high:g}{scale}{steps}"
