"""How one model is trained (Section 5): the LightningModule, checkpoints, the logger, W&B's process.

Only `wandb_process` imports wandb. Which trials are trained is not decided here: see `experiments`.
"""
