"""A PyTorch Lightning framework for ablation studies of the Transformer (arXiv:1706.03762)."""
