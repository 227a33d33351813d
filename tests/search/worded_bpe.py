"""A tokenizer for searches."""

from transformer_pl.data.tokenizer import JointBPE


class WordedBPE(JointBPE):
    """A tokenizer with an option that is any text."""

    def __init__(self, words=""):
        super().__init__()
