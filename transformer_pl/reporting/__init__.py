"""Tables, statistics, figures and the HTML page, all made from finished results.

What belongs here: everything that turns the results of trials into something to read. What does not: training,
decoding or scoring (training/, evaluation/), and what is special to an Optuna search (search/).
"""
