"""Runs of anyone in a CSV file: made for tests, and what the command says of them."""

import tiny_trials

from transformer_pl.report import __main__ as report
from transformer_pl.report.report_options import RunsReport
from transformer_pl.report.runs import runs_rows
from transformer_pl.table.table import make_table

HEADING = "Name,State,h,lr,seed,acc"
SCORES = {"1": [0.90, 0.91, 0.89], "4": [0.93, 0.94, 0.92], "8": [0.88, 0.91, 0.90]}
OPTIONS = {"row": ("h",), "metric": ("acc",)}


def runs_table(path, options):
    return make_table(*runs_rows(path, RunsReport(files=(path,), **options)))


def lines_of(scores=SCORES, form="run-{h}-{s},finished,{h},0.1,{s},{acc}"):
    return [form.format(h=h, s=s, acc=acc) for h, values in scores.items() for s, acc in enumerate(values, start=1)]


def write(folder, *lines, heading=HEADING):
    path = folder / "runs.csv"
    path.write_text("\n".join([heading, *lines]) + "\n")
    return path


def printed(*words):
    code, out, err = tiny_trials.ended(report.main, *words)
    assert code == 0, err
    return out


def refused(*words):
    code, out, err = tiny_trials.ended(report.main, *words)
    assert (code, out) == (2, "") and err.count("\n") == 1, err
    return err


def values_of(records, key):
    return [record[key] for record in records]


def values(table, key):
    return values_of(table.records, key)


def cells_of(table, name):
    return next(column.cells for column in table.columns if column.name == name)
