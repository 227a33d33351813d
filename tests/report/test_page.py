"""The HTML page of a sweep in a browser: without a network, on a desk screen and on a phone."""

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_trials
from forked import command
from growth import make_page
from helpers import a_result, write_sweep
from made_rows import measured_sentences, row, sampled, sweep_table, table
from shipped_components import marks_of, seldom

from transformer_pl.plan.plan import plan_trials
from transformer_pl.plan.sweep_file import leading_comment, read_sweep
from transformer_pl.report.page import write_page
from transformer_pl.report.sweep_rows import Grid
from transformer_pl.table.formats import Column, Table
from transformer_pl.table.html import page_columns, write_html
from transformer_pl.table.row import Printed, PrintedTable
from transformer_pl.trials.runs_folder import RunsFolder

PAGE = ("transformer_pl/table/templates/", "transformer_pl/table/html.py", "transformer_pl/report/page.py")
PAPER = PrintedTable("a paper", Printed("base", 25.8, 4.92))
FIRST = ["row", "BLEU", "Δ BLEU", "p", "paper Δ BLEU", "seeds", "PPL", "PPL / base"]  # columns that are always shown


def page_of(sweep, planned, folder):
    """The address of the page, with the translations and the attention of all trials."""
    table, rows = sweep_table((sweep, planned))
    trials = Grid(sweep, planned).named_trials(rows)
    write_page(folder, f"{sweep.name} at scale demo", sweep.base, table, trials, shown=trials)
    return (folder / "report.html").as_uri()


def watched(page):
    """A list of all that a page must not do: console messages, errors, dialogs and requests of other addresses."""
    problems = []
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: request.url.startswith(("file:", "data:")) or problems.append(request.url))
    return problems


def test_a_row_whose_texts_are_not_here_is_left_out(tmp_path):
    sweep = read_sweep(Path("sweeps/table3_A.yaml"), seeds=["1"])
    for one in plan_trials(sweep, RunsFolder(tmp_path)):
        one.folder.make()
        one.folder.finish(a_result(id=one.id))
    planned = plan_trials(sweep, RunsFolder(tmp_path))  # none has its text
    page_of(sweep, planned, tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Results" in text and "<h2>Attention" not in text and "<h2>Translations" not in text


@pytest.mark.parametrize("base", [None, "lr_scale=1.001"])
def test_of_many_rows_the_page_shows_those_that_differ_most(tmp_path, base):
    """Ten of them beside base, and the row that --base names."""
    make_page(tmp_path, 14, RunsFolder(tmp_path / "runs"))
    words = ["report", tmp_path / "page.yaml", "--runs", tmp_path / "runs", *(["--base", base] if base else [])]
    records = json.loads(command(*words, "--format", "json").stdout)["rows"]
    records.sort(key=lambda record: -abs(record["val/bleu.difference"] or 0.0))
    page = Path(command(*words, "--format", "html").stdout.strip()).read_text(encoding="utf-8")
    maps = json.loads(re.search(r'id="maps">(.*?)</script>', page, re.DOTALL)[1])["sentences"]
    shown = {"base", base or "base", *(record["name"] for record in records[:10])}
    assert maps and all(sentence["rows"].keys() == shown for sentence in maps)
    assert {name: len(re.findall(f"<td>{name}</td>", page)) > 3 for name in shown} == dict.fromkeys(shown, True)


@pytest.fixture(scope="module")
def report(smoke):
    runs, _ = smoke
    done = command("report", "sweeps/smoke.yaml", "--runs", runs, "--format", "html")
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def table3():
    """A table of 20 rows with made-up results, one of them diverged."""
    sentences = measured_sentences([0.0, *np.linspace(0, 0.3, 19)], spread=0.05)
    rows = [
        sampled(
            f"h={h}" if h else "base",
            one,
            settings={"model.h": h or 8, "model.d_k": 64 - h},
            printed=Printed("A", 25.0 + h / 10, 5.0) if h else PAPER.base,
        )
        for h, one in enumerate(sentences)
    ]
    rows[7] = row("h=7", None, None, None, state="diverged", settings=rows[7].settings)
    return table(rows, printed=PAPER)


@pytest.fixture(scope="module")
def table3_page(table3, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    return write_html(folder, "table3", table3, {}).as_uri()


@pytest.fixture
def page(report, browser):
    """The open page on a phone. Console messages, errors and network requests fail the test."""
    page = browser.new_page(viewport={"width": 390, "height": 800})
    problems = watched(page)
    page.goto(report.as_uri())
    yield page
    assert not problems
    page.close()


def test_page_is_self_contained_and_complete(smoke, report):
    """It has the BLEU and the log of every trial, and refers to no other file or address."""
    text = report.read_text(encoding="utf-8")
    shown = html.unescape(text)
    assert not re.search(r"""(src|href)=["'](?!#|data:)|@import|url\((?!#|data:)""", text)
    for trial, result in RunsFolder(smoke[0]).finished():
        assert f"{result.main_score:.1f}" in text and trial.name in text
        lines = [line for line in trial.log.read_text().splitlines() if not line.startswith("W&B")]  # which come late
        assert lines and all(line in shown for line in lines)
        assert f"BLEU {result.main_score:.1f}, PPL {result.metrics['val/ppl']:.2f}, " in text
    comment = leading_comment(Path("sweeps/smoke.yaml"))
    assert shown.index("</h1>") < shown.index("</table>") < shown.index(comment) and "sweep sweeps/smoke.yaml" in text
    assert text.count("not another training text") == 1
    assert text.count("<figcaption>") == text.count("<figure>") > 0 and "<figcaption></figcaption>" not in text
    figures = {path.name for path in (report.parent / "figures").iterdir()}
    assert {f"curves_steps.{kind}" for kind in ("svg", "pdf", "png")} <= figures


def test_axe_finds_nothing(page):
    """Landmarks, the order of headings, names, contrast: https://github.com/dequelabs/axe-core."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")
    assert axe.Axe().run(page).response["violations"] == []


@seldom(*PAGE)
def test_pictures_of_attention_begin_at_one_height(report, browser):
    """Beside each other, also where the heads of two rows take more and less room."""
    page = browser.new_page(viewport={"width": 1400, "height": 800})
    page.goto(report.as_uri())
    for name in ("heads", "which", "head"):
        first, second = (one.bounding_box() for one in page.locator(f".panel > .{name}").all())
        assert first["y"] == second["y"] and first["x"] < second["x"]


@seldom(*PAGE)
def test_pressing_a_heading_sorts_in_both_directions(page):
    page.check("#unfold")
    cells = "#results tbody td:nth-child({})"
    at = [text.partition("\n")[0] for text in page.locator("#results th").all_inner_texts()].index("PPL") + 1
    for sign in (-1, 1):
        page.locator(f"#results th:nth-child({at}) button").click()
        texts = page.locator(cells.format(at)).all_inner_texts()  # an interval stands below a mean
        shown = [float(text.partition("\n")[0].rstrip("*")) for text in texts]
        assert len(shown) > 1 and shown == sorted(shown, key=lambda value: sign * value)


def test_the_sentences_are_those_that_rows_translate_differently(page):
    tables = [one for one in page.locator("table.text").all() if "reference" in one.text_content()]
    for one in tables:
        _, *rows = one.locator("tr").all()
        assert len({row.locator("td").last.text_content() for row in rows}) > 1
    assert tables


@seldom(*PAGE)
def test_choosing_an_attention_head_shows_it(page):
    which, head = page.locator(".which").first, page.locator(".head").first
    assert which.inner_text().startswith("base, encoder, layer 1, head 1: ")
    heads = page.locator(".panel").first.locator("button")
    heads.nth(heads.count() - 1).click()
    assert heads.nth(heads.count() - 1).get_attribute("aria-pressed") == "true"
    for choice, value in (("#site", "cross"), ("#row", "h=4"), ("#sentence", "1")):
        before = head.inner_html()
        page.select_option(choice, value)
        assert head.inner_html() != before
    assert which.inner_text().startswith("h=4, cross, layer ")
    heat = head.locator("svg").first
    assert heat.locator("rect").count() > heat.locator("text").count() > 4 and head.locator("svg").count() == 2


@seldom(*PAGE)
def test_a_second_row_is_shown_beside_the_first(page):
    """From the beginning, with the same head, and on the same scale."""
    panels = page.locator(".panel")
    assert panels.nth(0).is_visible() and panels.nth(1).is_visible()
    panels.nth(1).locator("button").nth(1).click()
    which = page.locator(".which").all_inner_texts()
    for name, text in zip(("base", "h=4"), which, strict=True):
        assert text.startswith(f"{name}, encoder, layer 1, head 2: ")
    assert panels.nth(0).inner_html() != panels.nth(1).inner_html() and page.locator(".head svg").count() == 4
    page.select_option("#row", "h=4")
    assert not panels.nth(1).is_visible()


SIGNED = """
from transformer_pl.model import ScaledDotProductAttention


class Signed(ScaledDotProductAttention):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.site = site

    def forward(self, Q, K, V, mask, start=0):
        return self.weights(Q, K, mask, start) @ V

    def weights(self, Q, K, mask, start=0):
        weights = super().weights(Q, K, mask, start)
        return 25 * weights if self.site == "cross" else -0.5 * weights
"""


@pytest.fixture
def signed(module, tmp_path):
    """The address of a page whose second row has weights from -0.5 to 0, and from 0 to at most 25 at `cross`."""
    module(SIGNED)
    runs, own = tmp_path / "runs", {"model.attention": "stranger.Signed"}
    tiny_trials.train(runs, {})
    with tiny_trials.unrehearsed():
        _, trial = tiny_trials.train(tmp_path / "others", own)
    trial.path.rename(runs / "trials" / trial.name)
    keys = tiny_trials.TINY | {"data.path": tmp_path / "text", "variant": ["model.attention=stranger.Signed", "base"]}
    sweep = read_sweep(write_sweep(tmp_path / "signed.yaml", keys))
    planned = plan_trials(sweep, RunsFolder(runs))
    return page_of(sweep, planned, tmp_path / "page")


@seldom(*PAGE)
def test_negative_weights_are_told_from_positive_ones_and_large_ones_are_scaled(signed, browser):
    page = browser.new_page()
    problems = watched(page)
    page.goto(signed)
    page.select_option("#beside", "")
    scale, negative = page.locator(".scale"), ".panel:not([hidden]) .head rect.negative"
    largest = "Math.max(...rects.map(rect => +rect.getAttribute('fill-opacity')))"
    assert page.locator(".which").first.inner_text().startswith("base, ") and scale.inner_text().split() == ["0", "1"]
    assert page.locator(negative).count() == 0
    page.select_option("#row", index=1)
    assert scale.inner_text().split() == ["\u22121", "1"] and page.locator(negative).count() > 4
    assert page.locator(negative).evaluate_all(f"rects => {largest}") <= 0.5
    page.select_option("#site", "cross")
    page.select_option("#beside", "base")
    low, high = scale.inner_text().split()
    assert low == "0" and 1 < float(high) <= 25 and page.locator(negative).count() == 0
    ranges = [float(text.rpartition(" ")[2]) for text in page.locator(".which").all_inner_texts()]
    opacities = [panel.locator("rect").evaluate_all(f"rects => {largest}") for panel in page.locator(".head").all()]
    for weight, opacity in zip(ranges, opacities, strict=True):
        assert opacity == pytest.approx(weight / float(high), abs=0.01)
    assert not problems


# --- The results table


def test_what_is_compared_comes_first(table3):
    on_page = page_columns(table3)
    columns = {one.column.name: one.column for one in on_page}
    below = {one.column.name: one.below.cells for one in on_page if one.below}
    assert [one.column.name for one in on_page if not one.folded] == FIRST == list(columns)[: len(FIRST)]
    assert {"h", "d_k", "PPL", "paper BLEU"} <= set(columns) and all(columns[title].meaning for title in FIRST)
    assert columns["row"].cells[1] == "(A) h=1"
    assert "±" in columns["BLEU"].cells[1] and " to " in below["BLEU"][1]
    assert " to " in below["Δ BLEU"][1] and 0 <= float(columns["p"].cells[1]) <= 1
    assert [columns[title].cells[0] for title in ("row", "Δ BLEU")] == ["base", ""]
    assert columns["BLEU"].cells[7] == columns["PPL"].cells[7] == "diverged"


def test_the_page_of_a_search_has_its_scores_before_its_settings():
    columns = [Column("trial", ["#1"], page=0), Column("h", ["4"], page=2), Column("val/bleu", ["60"], page=1)]
    assert [one.column.name for one in page_columns(Table(columns))] == ["trial", "val/bleu", "h"]


@pytest.mark.parametrize(
    ("width", "in_sight"), [(1400, FIRST), pytest.param(390, ["row", "BLEU", "Δ BLEU"], marks=marks_of(*PAGE))]
)
def test_scores_are_in_sight_and_other_columns_a_key_away(table3_page, browser, width, in_sight):
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(table3_page)
    row = page.locator("#results tbody tr").nth(2)
    headings = [text.split("\n")[0] for text in page.locator("#results thead th").all_inner_texts()]

    def right_edge(title):
        box = row.locator(":scope > *").nth(headings.index(title)).bounding_box()
        return box["x"] + box["width"]

    assert all(right_edge(title) <= width for title in in_sight)
    assert (right_edge("seeds") > width) == (in_sight != FIRST)
    hidden = page.locator("#results thead th", has_text="paper PPL / base")
    assert not hidden.is_visible()
    page.locator("#unfold").focus()
    page.keyboard.press("Space")
    hidden.scroll_into_view_if_needed()
    assert hidden.is_visible() and page.locator(".wide").first.evaluate("element => element.scrollLeft") > 0
    assert 0 <= row.locator("th").bounding_box()["x"] < max(30, width / 10)  # the row's name stays
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


# --- Text that would be code


RUNS_CODE = "<img src=x onerror=pwned=1>"  # as a browser, and as matplotlib's formulas, would read it
AS_CODE = [
    *("<script>pwned=1</script>", "</script><script>pwned=1</script>", RUNS_CODE, "<!--<script>", "{{ 7 * 7 }}"),
    *("&lt;b&gt;", "' onfocus=pwned=1 autofocus x='", '"><svg onload=pwned=1>', r"$\frac$ ${pwned=1}`"),
]


def test_no_text_becomes_code(tmp_path, browser):
    """The names of rows, sentences, logs, metrics and error messages are shown as they are."""
    text = tmp_path / f"{RUNS_CODE} $\\x$"
    text.mkdir()
    for split in ("train", "val", "test"):
        for language in ("en", "de"):
            (text / f"{split}.{language}").write_text("\n".join([*AS_CODE, "a common sentence"] * 3))
    runs = tmp_path / RUNS_CODE
    keys = tiny_trials.TINY | {"data.path": str(text), "data.batch_tokens": 2000, "data.vocab_size": 320}
    _, trial = tiny_trials.train(runs, keys)
    with trial.log.open("a") as log:
        log.write("\n".join(AS_CODE))
    sweep = read_sweep(write_sweep(tmp_path / "code.yaml", keys | {"variant": ["base", "model.h=4"]}))
    rows = [one._replace(name=f"{one.name} {AS_CODE[i]} {AS_CODE[-1]}") for i, one in enumerate(sweep.rows)]
    sweep = replace(sweep, name="<b>x", rows=rows)
    planned = plan_trials(sweep, RunsFolder(runs))
    address = page_of(sweep, planned, tmp_path / "page")
    page = browser.new_page()
    problems = watched(page)
    page.goto(address)
    assert not problems and page.evaluate("typeof pwned") == "undefined" and page.locator("img").count() == 0
    shown = page.locator("body").inner_text()
    hidden = page.locator("body").evaluate("body => body.textContent")
    assert "<b>x at scale demo" in shown and trial.name in hidden
    assert all(words in hidden for words in AS_CODE)
    page.select_option("#sentence", "1")
    assert page.evaluate("typeof pwned") == "undefined" and not problems
