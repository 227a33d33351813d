"""What a CSV file of runs may look like: as programs write them. What is none is refused in one line."""

import numpy as np
import pytest
import tiny_trials
from helpers import ROOT

from tests.report.csv_runs import HEADING, OPTIONS, lines_of, printed, refused, runs_table, values, write
from transformer_pl.report import __main__ as report
from transformer_pl.report.reading import read_runs


def of_text(tmp_path, text, **options):
    """The runs of a file with this text."""
    path = tmp_path / "runs.csv"
    path.write_bytes(text.encode())
    return read_runs(path, ["h"], ["acc"], **options)[0]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    "text",
    [
        "\ufeffh,acc|1,0.5|1,-2",
        "h;acc; note|1;0.5;|1;-2;a, b",
        "h\tacc|1\t+.5|1\t-2e0",
        "sep=;|h;acc|1;0.5|1;-2",
        '"SEP=,"|h,acc||1, 0.5 ||1, -2.',
        'note, acc,h,"a ""quoted""; heading"|"x, y",0.50,1,|"two|lines",-20E-1,1,\u2028',
    ],
)
def test_files_as_programs_write_them(tmp_path, text, end):
    runs = of_text(tmp_path, text.replace("|", end))
    assert [(run.row, run.values["acc"]) for run in runs] == [("1", 0.5), ("1", -2.0)]


MISSING = ["", "NaN", "-nan", "+Infinity", "-INF", "1e400", "-1.#IND", "nan(ind)", "None", "N/A"]


@pytest.mark.parametrize("missing", MISSING)
def test_what_is_not_finite_is_a_run_without_a_number(tmp_path, missing):
    assert [run.values["acc"] for run in of_text(tmp_path, f"h,acc\n1,{missing}\n1,3\n")] == [None, 3.0]


@pytest.mark.parametrize("unit", [1e60, 1e-59])
def test_the_p_of_numbers_does_not_depend_on_their_unit(tmp_path, unit):
    shares, p = {"base": [0.1, 0.12, 0.11], "a": [0.4, 0.43, 0.39]}, []
    for size in (1.0, unit):
        lines = lines_of({h: [score * size for score in scores] for h, scores in shares.items()})
        p.append(values(runs_table(write(tmp_path, *lines), OPTIONS), "acc.difference.p")[1])
    assert p[1] == pytest.approx(p[0], rel=1e-6)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0,5", 0.5), ("1.234,5", 1234.5), ("-1.300", -1300), (",25", 0.25), ("12,", 12), ("1,5e-3", 0.0015)],
)
def test_decimal_commas_are_read_where_the_option_says_so(tmp_path, text, value):
    (run,) = of_text(tmp_path, f'h;acc\n1;"{text}"\n', decimal_comma=True)
    assert run.values["acc"] == value


NO_NUMBERS = ["0,5", "1,234.5", "12,000", "85%", "1_000", "0x10", "5ms", "1e", ".", "٣", "five"]


@pytest.mark.parametrize(
    "names",
    [
        "0.1 1e-1 .1",
        "1.1 1.10",
        "1_2 12",
        "7e12345 31e9876",
        "007 7",
        "True TRUE",
        "nan NaN inf",
        f"{2**63} {2**63 + 1}",
    ],
)
def test_a_name_is_the_text_that_stands_in_the_file(tmp_path, names):
    lines = [f"{name},1" for name in names.split()]
    assert [run.row for run in of_text(tmp_path, "\n".join(["h,acc", *lines]))] == names.split()


@pytest.mark.parametrize(
    ("seeds", "are_one"),
    [("1 01", True), ("1 1.0", True), ("1 -1", False), ("a A", False), (f"{2**63} {2**63 + 1}", False)],
)
def test_whole_seeds_are_numbers(tmp_path, seeds, are_one):
    path = write(tmp_path, *(f"a,{seed},1" for seed in seeds.split()), heading="h,seed,acc")
    words = [path, "--row=h", "--metric=acc", "--seed=seed"]
    assert "lines 2 and 3" in refused(*words) if are_one else printed(*words)


def test_a_run_without_a_number_is_counted_and_named(tmp_path):
    table = runs_table(write(tmp_path, *lines_of(), "x,finished,8,0.1,9,"), OPTIONS)
    assert values(table, "acc.n") == [3, 3, 3]
    assert next(column.cells for column in table.columns if column.name == "runs") == ["3", "3", "3/4"]
    assert any("8 (line 11)" in note for note in table.notes)


@pytest.mark.parametrize("heading", ["State", "status"])
def test_runs_that_did_not_finish_or_have_no_name_are_left_out_and_counted(tmp_path, heading):
    left = ["crashed,8,no number", "Failed,8,9", "KILLED,8,9", "running,8,9", "PRUNED,8,9", "finished,,9"]
    path = write(tmp_path, "FINISHED,8,1", *left, "finished,8,3", heading=f"{heading},h,acc")
    table = runs_table(path, OPTIONS)
    assert values(table, "acc.mean") == [2.0]
    (note,) = (note for note in table.notes if "6 runs" in note)
    assert all(f"1 {why}" in note for why in ("crashed", "failed", "killed", "running", "pruned", "without a name"))
    path = write(tmp_path, *["crashed,8,1"] * 5, heading="State,h,acc")
    assert "5 crashed" in refused(path, "--row=h", "--metric=acc")


def test_a_heading_with_a_comma_can_be_named_as_the_message_says(tmp_path):
    path = write(tmp_path, "base,1", "base,2", heading='h,"acc ""a"" (val, top-1)"')
    said = refused(path, "--row=h", '--metric=acc "a" (val')
    assert (quoted := '"acc ""a"" (val, top-1)"') in said
    assert "1.5" in printed(path, "--row=h", f"--metric={quoted}", "--format=csv")


def test_many_runs_are_read_in_a_moment(tmp_path):
    rng = np.random.default_rng(1)
    path = write(tmp_path, *lines_of({f"h{i}": rng.normal(i, 1, 1250).round(4) for i in range(8)}))
    table = runs_table(path, OPTIONS | {"base": "h0"})
    assert values(table, "acc.n") == [1250] * 8 and all(p < 0.05 for p in values(table, "acc.difference.p")[1:])


# --- What is refused


def text_of(heading, *lines):
    return "".join(f"{line}\n" for line in (heading, *lines))


RUNS = text_of(f"{HEADING},empty", *(f"{line}," for line in lines_of()))
BY_H = "--row=h --metric=acc"
OF_RUNS = [
    ("--row=hh --metric=acc", "hh; did you mean h?"),
    ("--row=h --metric=Acc", "did you mean acc?"),
    ("--row=h --metric=State", "line 2: State"),
    ("--row=h --metric=empty", "must have numbers"),
    (f"{BY_H} --seed=lr", "lines 2 and 3"),
    (f"{BY_H} --base=5", "--base 5"),
    ("--row=h", "--metric"),
    (f"{BY_H} --scale=demo", "--scale"),
    (f"{BY_H} --trials --format=csv", "--trials"),
    (f"{BY_H} --margin=bleu=1", "--margin bleu"),
    (f"{BY_H} --margin=acc=-1", "--margin"),
]
OF_FILES = [
    ("", "a line for each run"),
    ("\n \n", "a line for each run"),
    ("h,acc\n", "a line for each run"),
    ("h,acc\n1,2\n1,2,3\n", "line 3"),
    ("h,acc\n1\n", "line 2"),
    ('h,acc,n\n1,2,"two\nlines"\n1,2\n', "line 4"),
    ('h,acc\n1,"2\n1,3\n', "line 2"),
    (f"h,acc\n1,{'2' * 200_000}\n", "line 2"),
    ("h,acc\n1,2\n\udcff,2", "line 3"),
    ("h,acc\n1,2\0", "line 2"),
    ("acc,h,acc\n1,2,3\n", "columns 1 and 3"),
    ("h,acc\nbase,1\nBaseline,2\n", "--base"),
    ("Step,h,acc,acc__MIN,acc__MAX\n1,2,3,3,3\n", "each step"),
    ("h,epoch,acc\na,0,1\na,1,2\na,0,1\na,1,2\na,2,2\nb,0,1\nb,1,2\n", "each step"),
    ("Step,h,acc\n1,a,3\n1,b,3\n2,a,3\n2,b,3\n", "each step"),
    ("Relative Time (Wall),h,acc\n1,a,3\n2,a,3\n", "each step"),
]
POWERS = ["1e308", "-1e308", "2e60", "-9e-61", "1e-300"]  # which overflow
OF_FILES += [
    (f"h,acc\nbase,1\nbase,2\na,3\na,{number}\n", f"line 5: acc = {number}: must be 0, or from 1e-60 to 1e+60")
    for number in POWERS
]
MEANS = text_of(
    "model,loss,sd,se,n",
    *("base,1,0.1,0.1,3", "a,1,-0.1,0.1,4", "b,1,0.1,0.1,1", "c,1,,0.1,3", "d,1,0.1,0.1,2.5", "e,1,0.1,0.1,"),
)
OF_MEANS = [  # all lines are named at once
    ("--std sd --n n", "line 3: sd = -0.1"),
    ("--std sd --n n", "line 4: sd = 0.1: must be empty"),
    ("--std sd --n n", "line 5: sd = : must be a number"),
    ("--std sd --n n", "line 6: n = 2.5"),
    ("--std sd --n n", "line 7: n = :"),
    ("--se se --n 3 --row n", "lines 2 and 5 must differ in row, but"),
    ("--std sd", "--n"),
    ("--n 5", "--n"),
    ("--std sd --n 1", "--n 1"),
    ("--std sd --n 20000", "--n 20000"),
    ("--std sd --n k", "no column k"),
    ("--std sd,se --n n", "--std sd,se"),
    ("--std sd --se se --n n", "--se"),
    ("--std sd --n n --seed n", "--seed"),
]
PAIRS = text_of("model,env,acc", "base,a,1.0", "base,b,2.0", "new,a,1.0", "new,x,2.0")
OF_PAIRS = [
    (PAIRS, "--seed env --paired", "new: acc: must"),
    (f"{PAIRS}nameless,,3.0\n", "--seed env --paired --base nameless", "line 6: env"),
    (PAIRS, "--paired", "--seed"),
    (PAIRS, "--seed env --folds", "--paired"),
    (PAIRS, "--seed env --paired --pairs", "--pairs"),
]
REFUSED = [
    *((RUNS, words, named) for words, named in OF_RUNS),
    *((text, BY_H, named) for text, named in OF_FILES),
    *((MEANS, f"--row=model --metric=loss {words}", named) for words, named in OF_MEANS),
    *((text, f"--row=model --metric=acc {words}", named) for text, words, named in OF_PAIRS),
]


@pytest.mark.parametrize(("text", "words", "named"), REFUSED, ids=lambda text: repr(text)[:30])
def test_what_is_refused_is_named(tmp_path, text, words, named):
    path = tmp_path / "runs.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    code, out, err = tiny_trials.ended(report.main, path, *words.split())
    assert (code, out) == (2, "") and named in err and (text == MEANS or err.count("\n") == 1), err


NO_NUMBERS = {
    "": ["0,5", "1,234.5", "12,000", "85%", "1_000", "0x10", "5ms", "1e", ".", "٣", "five"],
    " --decimal-comma": ["0.5", "1.23", "1,234.5", "1.2345", "1,2,3"],
}


@pytest.mark.parametrize("option", NO_NUMBERS)
def test_what_is_no_number_is_refused_with_its_place_and_a_remedy(tmp_path, option):
    for text in NO_NUMBERS[option]:
        path = write(tmp_path, "1,7", f'1,"{text}"', heading="h,acc")
        said = refused(path, *f"{BY_H}{option}".split())
        assert f"line 3: acc = {text}: must be" in said and ("--decimal-comma" in said) == ("," in text or bool(option))


def test_what_is_no_file_is_refused(tmp_path):
    """Nothing is read from a device, which may have no end."""
    (tmp_path / "endless.csv").symlink_to("/dev/zero")
    (tmp_path / "folder.csv").mkdir()
    for name in ("endless.csv", "folder.csv", "missing.csv", "/dev/zero"):
        assert name in refused(tmp_path / name, "--row=h", "--metric=acc")


def test_two_rows_of_one_name_are_refused(tmp_path):
    path = write(tmp_path, "x b=y,z,1", "x,y b=z,2", heading="a,b,acc")
    assert "line 3" in refused(path, "--row=a,b", "--metric=acc")


def test_each_run_as_a_row_is_refused(tmp_path):
    path = write(tmp_path, *lines_of({f"h{i}": [1.0] for i in range(600)}))
    assert "at most 500" in refused(path, "--row=Name", "--metric=acc")


def test_options_of_runs_are_for_runs():
    assert "--row" in refused(ROOT / "sweeps/table3_A.yaml", "--row=h")


def test_a_file_of_runs_may_have_any_name(tmp_path):
    path = write(tmp_path, *lines_of()).rename(tmp_path / "runs.txt")
    assert "0.93" in printed(path, "--row=h", "--metric=acc", "--format=csv")


def test_steps_of_finished_runs_are_no_chart(tmp_path):
    """Trainings that stopped early ended at different steps."""
    path = write(tmp_path, "a,10,1", "a,12,2", "b,8,1", "b,11,2", heading="h,_step,acc")
    assert values(runs_table(path, OPTIONS), "acc.n") == [2, 2]
    path = write(tmp_path, "a,1,10,1", "a,2,12,2", "b,1,10,1", "b,2,12,2", heading="h,seed,epoch,acc")
    assert values(runs_table(path, OPTIONS | {"seed": "seed"}), "acc.n") == [2, 2]
    lines = [f"{h},{seed},{epoch},1" for h in "ab" for seed in (1, 2) for epoch in (0, 1)]
    path = write(tmp_path, *lines, heading="h,seed,epoch,acc")
    assert "each step" in refused(path, "--row=h", "--metric=acc", "--seed=seed")
    assert values(runs_table(path, OPTIONS | {"row": ("h", "epoch"), "seed": "seed"}), "acc.n") == [2] * 4
    path = write(tmp_path, *(f"{step},{step}" for step in (10, 20) for _ in range(3)), heading="step,acc")
    assert values(runs_table(path, {"row": ("step",), "metric": ("acc",)}), "acc.n") == [3, 3]
