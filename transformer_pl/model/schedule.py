"""The learning-rate schedule of Section 5.3."""


def learning_rate(step: int, d_model: int, warmup: int, lr_scale: float) -> float:
    """lr_scale * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5), equation (3); the first step is step 1."""
    return lr_scale * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
