"""What a reader sees of a sweep: the table beside published numbers, its statistics, figures, the HTML page.

Nothing here trains or changes a trial.
"""
