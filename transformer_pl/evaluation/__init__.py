"""How a trained model is scored: the loss of the references, beam search (Section 6.1), sacreBLEU.

What several scores together mean is not here: see `reporting`.
"""
