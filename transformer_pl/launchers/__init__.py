"""Where trials are trained: on this machine (`local.py`), or by a SLURM cluster (`slurm.py`)."""
