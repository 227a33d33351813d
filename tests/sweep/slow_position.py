"""A positional encoding that takes so many seconds as SLOW says, so that a trial can be interrupted."""

import os
import time

from torch import nn


class Slow(nn.Module):
    def __init__(self, config, site):
        super().__init__()
        self.site = site

    def forward(self, x, start=0):
        if self.site == "encoder" and self.training and x.requires_grad:
            time.sleep(float(os.environ.get("SLOW", "0")))
        return x
