"""The report command: the table beside published numbers, its statistics, figures, the page. It changes no trial."""
