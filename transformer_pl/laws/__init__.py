"""What every part of a kind keeps. Each kind has a file, in which each function that returns a `Finding` is a law."""
