"""The trained model with weights of 8 bits, rounded symmetrically for each output, as in section 2 of Nagel et al. 2021
(arXiv:2106.08295), "A White Paper on Neural Network Quantization".
"""

from torch import finfo

from transformer_pl.model import Transformer
from transformer_pl.train.intervention import Intervention

LARGEST = 127  # -128 is left out, so that the grid is symmetric


class Int8Weights(Intervention):
    """Each row of each matrix, w, becomes s round(w / s) with s = max |w| / 127. Vectors stay, such as biases."""

    def __call__(self, model: Transformer) -> None:
        for weight in model.parameters():
            if weight.ndim == 2:
                s = (weight.abs().amax(1, keepdim=True) / LARGEST).clamp(min=finfo(weight.dtype).tiny)
                weight.copy_((weight / s).round() * s)
