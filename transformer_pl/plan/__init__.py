"""From a sweep file to planned trials: rows, their configs, what is done of them, cost and time, retuning."""
