"""A user's components that keep something in Python, each in another way, which a CUDA graph would not see."""

import itertools
import random

import numpy as np
import torch
import torch.nn.functional as F

from transformer_pl.model import FeedForward


class Scaled(FeedForward):
    """A sub-layer whose output is multiplied by a number that is computed in Python."""

    def forward(self, x):
        return super().forward(x) * (self.scale() if self.training else 1.0)


class Numpy(Scaled):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.generator = np.random.default_rng(1)

    def scale(self):
        return float(self.generator.random() < 0.7)


class Python(Scaled):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.generator = random.Random(1)

    def scale(self):
        return float(self.generator.random() < 0.7)


class Global(Scaled):
    """Draws from the generator of the whole process."""

    def scale(self):
        return float(random.random() < 0.7)


class Schedule:
    def __init__(self):
        self.calls = 0


class AnObject(Scaled):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.schedule = Schedule()

    def scale(self):
        self.schedule.calls += 1
        return min(1.0, self.schedule.calls / 100)


class ADictionary(Scaled):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.state = {"calls": [0]}

    def scale(self):
        self.state["calls"][0] += 1
        return min(1.0, self.state["calls"][0] / 100)


class AClosure(Scaled):
    def __init__(self, config, site):
        super().__init__(config, site)
        calls = 0

        def scale():
            nonlocal calls
            calls += 1
            return min(1.0, calls / 100)

        self.scale = scale


class AnIterator(Scaled):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.scales = (min(1.0, calls / 100) for calls in itertools.count(1))

    def scale(self):
        return next(self.scales)


class AClass(Scaled):
    calls = 0

    def scale(self):
        AClass.calls += 1
        return min(1.0, AClass.calls / 100)


CALLS = itertools.count(1)


class AGlobal(FeedForward):
    """The gradients alone are annealed, by a number of the module that nothing here refers to."""

    def forward(self, x):
        y = super().forward(x)
        scaled = y / next(CALLS)
        return scaled + (y - scaled).detach()


class ATensor(FeedForward):
    """A running mean in a plain attribute."""

    def __init__(self, config, site):
        super().__init__(config, site)
        self.mean = torch.ones(())

    def forward(self, x):
        y = super().forward(x)
        if self.training:
            self.mean = 0.99 * self.mean + 0.01 * y.detach().square().mean()
        return y / (self.mean.sqrt() + 1e-3)


class ABuffer(ATensor):
    """A running mean in a buffer that is assigned anew."""

    def __init__(self, config, site):
        super().__init__(config, site)
        del self.mean
        self.register_buffer("mean", torch.ones(()))


class Validated(FeedForward):
    """What a graph may read: a buffer that each validation replaces."""

    def __init__(self, config, site):
        super().__init__(config, site)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        if not self.training:
            self.scale = self.scale * 0.9
        return super().forward(x) * self.scale


SEEN = []


class Hooked(FeedForward):
    """A forward hook notes something in a list of the module."""

    def __init__(self, config, site):
        super().__init__(config, site)
        self.register_forward_hook(lambda module, inputs, output: SEEN.append(output.shape))


class Waiting(FeedForward):
    """Chooses by a number that the device has computed."""

    def forward(self, x):
        return super().forward(x) * (1 + float(x.square().sum() > 0))


class AnnealedLoss:
    """Anneals its smoothing by counting its calls."""

    def __init__(self, config, optim):
        self.calls = 0

    def __call__(self, logits, target):
        self.calls += 1
        smoothing = 0.3 * max(0.0, 1 - self.calls / 100)
        options = {"ignore_index": 0, "reduction": "sum", "label_smoothing": smoothing}
        return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten(), **options)
