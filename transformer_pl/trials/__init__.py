"""One trial on disk: its folder and result, the identity that names it, and what may be cleaned up.

Everything that writes or reads a trial's folder goes through `trial`.
"""
