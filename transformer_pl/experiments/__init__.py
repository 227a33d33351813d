"""From a sweep file to trained trials: reading, planning, cost, launching, progress and the end of a sweep.

What a single trial is lives in `trials`, searches in `search`, tables and pages in `reporting`.
"""
