"""Draws the sentences of scale demo when it is imported, so that forks of a process that has imported it need not."""

from transformer_pl.data import synthetic

for split in synthetic.SIZES:
    synthetic.pairs(split)
