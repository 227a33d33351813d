"""Tables of rows: what differs from base, how sure that is, and how to print it. Needs arrays and names alone."""
