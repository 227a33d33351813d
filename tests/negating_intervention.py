"""An intervention that no translation survives."""

from transformer_pl.train.intervention import Intervention


class Negated(Intervention):
    """The embeddings change their sign."""

    def __call__(self, model):
        model.embedding.weight.neg_()
