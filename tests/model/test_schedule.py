"""The learning rate of Section 5.3."""

import pytest

from transformer_pl.model.schedule import learning_rate

pytestmark = pytest.mark.core


def test_the_learning_rate_is_equation_3():
    assert learning_rate(4000, 512, 4000, 1) == pytest.approx(512**-0.5 * 4000**-0.5)
    rates = [learning_rate(step, 512, 4000, 1) for step in (1, 2000, 4000, 16000)]
    assert rates[:2] == pytest.approx([rates[2] / 4000, rates[2] / 2])  # linear until the end of the warmup
    assert rates[3] == pytest.approx(rates[2] / 2)  # then as the inverse square root
    assert learning_rate(7, 512, 4000, 3) == pytest.approx(3 * learning_rate(7, 512, 4000, 1))
