"""One trial on disk: its folder and its result, the identity that names it, and what `--list` and `--clean` see.

How a trial is trained is not here: see `training`.
"""
