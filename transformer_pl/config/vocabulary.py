"""The first tokens of every vocabulary: padding, the beginning and the end of a sequence, and an unknown token."""

PAD, BOS, EOS, UNK = 0, 1, 2, 3
