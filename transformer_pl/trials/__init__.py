"""One trial on disk: its folder, its result, its identity, what divergence is, and what `--list` and `--clean` see.

How a trial is trained is not here: see `training`.
"""
