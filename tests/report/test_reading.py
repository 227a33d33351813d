"""What a CSV file of runs may look like: as programs write them. What is none is refused in one line."""

import csv
import io
import json
import subprocess
import tracemalloc

import numpy as np
import pytest
import tiny_trials
from helpers import ROOT

from tests.report.csv_runs import HEADING, OPTIONS, cells_of, lines_of, printed, refused, runs_table, values, write
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
    assert (runs.rows, runs.values["acc"].tolist()) == (["1", "1"], [0.5, -2.0])


MISSING = ["", "NaN", "-nan", "+Infinity", "-INF", "1e400", "-1.#IND", "nan(ind)", "None", "N/A"]


@pytest.mark.parametrize("missing", MISSING)
def test_what_is_not_finite_is_a_run_without_a_number(tmp_path, missing):
    assert np.array_equal(of_text(tmp_path, f"h,acc\n1,{missing}\n1,3\n").values["acc"], [np.nan, 3.0], equal_nan=True)


@pytest.mark.parametrize("unit", [1e60, 1e-59])
def test_the_p_of_numbers_does_not_depend_on_their_unit(tmp_path, unit):
    shares, p = {"base": [0.1, 0.12, 0.11], "a": [0.4, 0.43, 0.39]}, []
    for size in (1.0, unit):
        lines = lines_of({h: [score * size for score in scores] for h, scores in shares.items()})
        p.append(values(runs_table(write(tmp_path, *lines), OPTIONS), "acc.difference.p")[1])
    assert p[1] == pytest.approx(p[0], rel=1e-6)


NAMES = ["0.1 1e-1 .1", "1.1 1.10", "1_2 12", "7e12345 31e9876", "007 7", "True TRUE", "nan NaN inf"]


@pytest.mark.parametrize("names", [*NAMES, f"{2**63} {2**63 + 1}"])
def test_a_name_is_the_text_that_stands_in_the_file(tmp_path, names):
    lines = [f"{name},1" for name in names.split()]
    assert of_text(tmp_path, "\n".join(["h,acc", *lines])).rows == names.split()


EQUAL = ["1 01", "1 1.0", "10 1e1", "0.5 5E-1"]


@pytest.mark.parametrize("seeds", [*EQUAL, "1 -1", "a A", f"{2**63} {2**63 + 1}"])
def test_seeds_that_are_equal_numbers_are_one(tmp_path, seeds):
    path = write(tmp_path, *(f"a,{seed},1" for seed in seeds.split()), heading="h,seed,acc")
    words = [path, "--row=h", "--metric=acc", "--seed=seed"]
    assert "lines 2 and 3" in refused(*words) if seeds in EQUAL else printed(*words)


def test_a_run_without_a_number_is_counted_and_named(tmp_path):
    table = runs_table(write(tmp_path, *lines_of(), "x,finished,8,0.1,9,"), OPTIONS)
    assert values(table, "acc.n") == [3, 3, 3]
    assert cells_of(table, "runs") == ["3", "3", "3/4"]
    assert any("8 (line 11)" in note for note in table.notes)


def test_columns_that_nobody_asks_for_take_no_memory(tmp_path):
    path = write(tmp_path, *(f"{i % 4},{i},{i / 7},{f'{i:06}' * 400}" for i in range(4_000)), heading="h,seed,acc,text")
    tracemalloc.start()
    read_runs(path, ["h"], ["acc"], "seed")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < path.stat().st_size / 2


LOOK_ALIKE = ["base\u200b", "\ufeffbase", "ba\u00adse", "base\u00a0x|base x", "base\u2009 x|base x"]
LOOK_ALIKE += ["nai\u0308ve|na\u00efve"]


@pytest.mark.parametrize("names", LOOK_ALIKE)
def test_names_that_look_alike_are_one(tmp_path, names):
    """Of rows, of columns, and on the command line."""
    strange, _, plain = names.partition("|")
    plain = plain or "base"
    path = write(tmp_path, f"{strange},1", f"{plain},2", "b,3", "b,4", heading=f"{strange},{plain} acc")
    words = [path, f"--row={plain}", f"--metric={strange} acc", f"--base={strange}"]
    rows = json.loads(printed(*words, "--format=json"))["rows"]
    assert [row["name"] for row in rows] == [plain, "b"] and rows[0][f"{plain} acc.mean"] == 1.5


@pytest.mark.parametrize(
    ("names", "are_named"), [("0.1 0.10 1e-1 0.2", True), ("7 007", True), ("1_2 12 v1 1a", False)]
)
def test_spellings_of_one_number_are_named(tmp_path, names, are_named):
    table = runs_table(write(tmp_path, *(f"{name},1" for name in names.split()), heading="h,acc"), OPTIONS)
    said = [note for note in table.notes if "one number" in note]
    assert len(said) == are_named and all(name in note for note in said for name in names.split() if name != "0.2")


@pytest.mark.parametrize("name", ["b\u0430se", "a b\u0430se", "\u0431ase=1", "x-\u0430", "\u03bcP", "na\u00efve"])
def test_a_word_of_latin_and_cyrillic_letters_is_named(tmp_path, name):
    """They look alike: it may be another row than it seems to be. Words of other alphabets, and letters alone, are
    names as any."""
    table = runs_table(write(tmp_path, "base,1", f"{name},2", heading="h,acc"), OPTIONS)
    assert any("CYRILLIC" in note for note in table.notes) == ("s" in name)


def test_a_first_column_without_a_heading_is_the_index(tmp_path):
    """As pandas writes it. The message says its name."""
    path = write(tmp_path, *(f"{name},{acc}" for name in ("base", "b") for acc in (1, 2)), heading=",acc")
    assert "index" in refused(path, "--row=", "--metric=acc") and "index" in refused(path, "--row=h", "--metric=acc")
    assert values(runs_table(path, OPTIONS | {"row": ("index",)}), "acc.mean") == [1.5, 1.5]


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


@pytest.mark.parametrize(
    ("heading", "done", "others"),
    [
        ("State", "COMPLETED", "TIMEOUT NODE_FAIL OUT_OF_ME+ COMPLETING finishing"),
        ("sys/state", "idle", "running whatever"),
        ("run.status", "Published", "in_progress not_finished"),
        ("job_state", "SUCCEEDED", "x"),
        ("TrainingJobStatus", "Completed", "Stopped"),
        ("done", "True", "False"),
    ],
)
def test_runs_count_that_are_known_to_have_finished(tmp_path, heading, done, others):
    """Each other word is named, and its run counts as one that its row lacks; so does a run without a word."""
    words = [*others.split(), ""]
    path = write(tmp_path, f"{done},8,1", *(f"{word},8,9" for word in words), f"{done},8,3", heading=f"{heading},h,acc")
    table = runs_table(path, OPTIONS)
    assert values(table, "acc.mean") == [2.0] and cells_of(table, "runs") == [f"2/{2 + len(words)}"]
    (note,) = (note for note in table.notes if "left out" in note)
    assert all(word.lower() in note.lower() for word in others.replace("False", "not done").split())


def test_one_column_says_whether_runs_have_finished(tmp_path):
    path = write(tmp_path, "finished,ok,8,1", heading="State,sys/status,h,acc")
    assert "State and sys/status" in refused(path, *BY_H.split())
    assert values(runs_table(path, OPTIONS | {"row": ("sys/status",)}), "name") == ["ok"]
    path = write(tmp_path, "finished,42,8,1", heading="State,random_state,h,acc")
    assert values(runs_table(path, OPTIONS), "acc.mean") == [1]


def test_a_heading_with_a_comma_can_be_named_as_the_message_says(tmp_path):
    path = write(tmp_path, "base,1", "base,2", heading='h,"acc ""a"" (val, top-1)"')
    said = refused(path, "--row=h", '--metric=acc "a" (val')
    assert (quoted := '"acc ""a"" (val, top-1)"') in said
    assert "1.5" in printed(path, "--row=h", f"--metric={quoted}", "--format=csv")


def test_many_runs_are_read_in_a_moment(tmp_path):
    rng = np.random.default_rng(1)
    path = write(tmp_path, *lines_of({f"h{i}": rng.normal(i, 1, 1250).round(4) for i in range(8)}))
    table = runs_table(path, OPTIONS | {"base": "h0", "seed": "seed"})
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
    ("--row=h --metric=acc,lr --lower-is-better=loss", "--lower-is-better loss"),
    (f"{BY_H} --item=seed", "but has 3"),
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
    ("h,acc\n1,2\n\udcff,2", "UTF-8"),
    ("h,acc\n1,2\0", "line 2"),
    ("acc,h,acc\n1,2,3\n", "columns 1 and 3"),
    ("h,acc\nbase,1\nBaseline,2\n", "--base"),
    ("Step,h,acc,acc__MIN,acc__MAX\n1,2,3,3,3\n", "each step"),
    ("h,epoch,acc\na,0,1\na,1,2\na,0,1\na,1,2\na,2,2\nb,0,1\nb,1,2\n", "each step"),
    ("Step,h,acc\n1,a,3\n1,b,3\n2,a,3\n2,b,3\n", "each step"),
    ("h,Iteration,acc\na,0,1\na,9,1\nb,0,1\nb,9,1\n", "each step"),
    ("h;tok;acc\na;900;0,85\na;1.310;0.86\n", "line 2: acc = 0,85"),
    ("h;tok;acc\na;1.234,5;85\na;1.310;0.86\n", "line 2: tok = 1.234,5"),
    ("Relative Time (Wall),h,acc\n1,a,3\n2,a,3\n1,b,3\n2,b,4\n", "each step"),
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
    (PAIRS, "--seed env --paired --pairs", "--pairs"),
]
REFUSED = [
    *((RUNS, words, named) for words, named in OF_RUNS),
    *((text, BY_H, named) for text, named in OF_FILES),
    *((MEANS, f"--row=model --metric=loss --lower-is-better {words}", named) for words, named in OF_MEANS),
    *((text, f"--row=model --metric=acc {words}", named) for text, words, named in OF_PAIRS),
]


@pytest.mark.parametrize(("text", "words", "named"), REFUSED, ids=lambda text: repr(text)[:30])
def test_what_is_refused_is_named(tmp_path, text, words, named):
    path = tmp_path / "runs.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    code, out, err = tiny_trials.ended(report.main, path, *words.split())
    assert (code, out) == (2, "") and named in err and (text == MEANS or err.count("\n") == 1), err


NO_NUMBERS = ["0,5", "1,234.5", "12,000", "85%", "1_000", "0x10", "5ms", "1e", ".", "٣", "five"]


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_what_is_no_number_is_refused_with_its_place_and_a_remedy(tmp_path, text):
    said = refused(write(tmp_path, "1,7", f'1,"{text}"', heading="h,acc"), *BY_H.split())
    assert f"line 3: acc = {text}: must be" in said and ("decimal" in said) == ("," in text)


@pytest.mark.parametrize("names", ["3,5,8", "[64, 64]", "a,5", "1,2x"])
@pytest.mark.parametrize("separator", ",;")
def test_names_with_commas_stay_names(tmp_path, names, separator):
    file = io.StringIO()
    csv.writer(file, delimiter=separator).writerows([["h", "acc"], [names, "1"]])
    assert of_text(tmp_path, file.getvalue()).rows == [names]


@pytest.mark.parametrize(
    "text", ["# by a script, at night\n# of 2026\nh,acc\nbase,-0.5\nb,1\n", "h,acc\nbase,\u22120.5\nb,1\n"]
)
def test_the_remedy_for_what_stands_in_the_way_is_a_command(tmp_path, text):
    path = tmp_path / "my runs.csv"
    path.write_text(text)
    for _ in range(text.count("#") or 1):
        _, _, command = refused(path, *BY_H.split()).strip().rpartition(": ")
        subprocess.run(command, shell=True, cwd=tmp_path, check=True, timeout=60)
        path = (tmp_path / "NEW.csv").rename(path)
    assert read_runs(path, ["h"], ["acc"])[0].values["acc"].tolist() == [-0.5, 1.0]


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("h,acc,n\na,80.3 ± 0.4,5\n", "--std"),
        ("h,acc,n\na,80.3 (0.4),5\n", "--std"),
        ("h,seed0,seed1\na,1,2\n", "model,seed,acc"),
        ("h,acc (run 1),acc (run 2)\na,1,2\n", "model,seed,acc"),
    ],
)
def test_a_table_for_people_is_refused_with_the_form_of_one_for_programs(tmp_path, text, remedy):
    path = tmp_path / "runs.csv"
    path.write_text(text)
    assert remedy in refused(path, *BY_H.split())


@pytest.mark.parametrize("separator", ",;\t")
def test_the_remedy_for_decimal_commas_makes_points_of_them_alone(tmp_path, separator):
    """Names and the other columns stay. It is a command for the shell."""
    lines = [["a,b", "1", "2", "0,5"], ["a,b", "2", "3", "-1,25"], ["4 x", "1", "2", ",75"]]
    if separator != ",":
        lines[2][3] = "0,75"
    file = io.StringIO()
    csv.writer(file, delimiter=separator).writerows([["h", "seed", "n", "acc"], *lines])
    path = tmp_path / "my runs.csv"
    path.write_text(file.getvalue())
    words = ["--row=h", "--metric=acc", "--seed=seed"]
    _, _, command = refused(path, *words).strip().rpartition(": ")
    subprocess.run(command, shell=True, cwd=tmp_path, check=True, timeout=60)
    runs, _ = read_runs(tmp_path / "NEW.csv", ["h", "n"], ["acc"], "seed")
    settings = [runs.settings[name] for name in runs.rows]
    cells = zip(settings, runs.seeds, runs.values["acc"], strict=True)
    assert [(names["h"], seed, names["n"], acc) for names, seed, acc in cells] == [
        ("a,b", "1", "2", 0.5),
        ("a,b", "2", "3", -1.25),
        ("4 x", "1", "2", 0.75),
    ]


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
    assert "--rows" in refused(ROOT / "sweeps/heads.rows.yaml", *BY_H.split())


def test_a_value_that_looks_like_a_file_of_runs_is_a_value():
    """The kind of the report goes by its file, which comes first."""
    for words in (["--caption", "as in runs.csv"], ["--set", "data.train=words.tsv"]):
        assert "--row" not in refused(ROOT / "sweeps/table3_A.yaml", "--format=tex", *words, "--nonsense")


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
    path = write(tmp_path, "a,900,1", "a,1000,2", "a,950,2", "b,1000,1", heading="h,_step,acc")
    assert values(runs_table(path, OPTIONS), "acc.n") == [3, 1]  # one row alone proves nothing
    path = write(tmp_path, *(f"{step},{step}" for step in (10, 20) for _ in range(3)), heading="step,acc")
    assert values(runs_table(path, {"row": ("step",), "metric": ("acc",)}), "acc.n") == [3, 3]
