"""The report command: the table beside published numbers, with its statistics, figures and page; it trains nothing."""
