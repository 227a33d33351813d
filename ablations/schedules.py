"""Other schedules of the learning rate. `peak` is by default equation (3)'s greatest rate, (d_model warmup)^-0.5.

Each begins with a linear warm-up but the last one.
"""

import math

from transformer_pl.config import Optim, Positive, Sizes


class Constant:
    """The peak, after a linear warm-up."""

    def __init__(self, config: Sizes, optim: Optim, peak: Positive | None = None):
        self.peak = peak or (config.d_model * optim.warmup) ** -0.5
        self.warmup, self.steps = optim.warmup, optim.max_steps

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return self.peak * step / self.warmup
        return self.peak * self.after((step - self.warmup) / max(1, self.steps - self.warmup))

    def after(self, share: float) -> float:
        """The share of the peak, at a share of the steps after the warm-up, 0 to 1."""
        return 1.0


class Cosine(Constant):
    """From the peak to 0 along half a cosine (Loshchilov and Hutter 2017, arXiv:1608.03983, without restarts)."""

    def after(self, share: float) -> float:
        return (1 + math.cos(math.pi * min(1.0, share))) / 2


class Linear(Constant):
    """From the peak to 0 along a line, as BERT's (Devlin et al. 2019, arXiv:1810.04805)."""

    def after(self, share: float) -> float:
        return max(0.0, 1 - share)


class WarmupStableDecay(Constant):
    """The peak until the last `decay` of all steps, then to 0 as one minus a square root.

    A training with a constant rate can become one of these at any step, and pays for the decay alone (Hägele et al.
    2024, arXiv:2405.18392, whose shape this is; the name is that of Hu et al. 2024, arXiv:2404.06395).
    """

    def __init__(self, config: Sizes, optim: Optim, peak: Positive | None = None, decay: Positive = 0.2):
        super().__init__(config, optim, peak)
        self.decay = decay * self.steps

    def __call__(self, step: int) -> float:
        passed = max(0.0, 1 - (self.steps - step) / self.decay)
        return super().__call__(step) * (1 - min(1.0, passed) ** 0.5)


class InverseSquareRootWithoutWarmup(Constant):
    """The peak for the first `warmup` steps, then as equation (3): T5's (Raffel et al. 2020, arXiv:1910.10683)."""

    def __call__(self, step: int) -> float:
        return self.peak * min(1.0, (self.warmup / step) ** 0.5)
