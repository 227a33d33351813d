"""The HTML page of a sweep in a browser: without a network, on a desk screen and on a phone."""

import re
from pathlib import Path

import pytest
from helpers import command

from transformer_pl.trials.runs_folder import finished_results

WIDTH = {"a desk": 1200, "a phone": 390}


@pytest.fixture(scope="module")
def report(smoke):
    runs, _ = smoke
    done = command("report", "sweeps/smoke.yaml", "--runs", runs, "--format", "html")
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(params=WIDTH)
def page(request, report, browser):
    """The open page. Console messages, errors and network requests fail the test."""
    problems = []
    page = browser.new_page(viewport={"width": WIDTH[request.param], "height": 800})
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: request.url.startswith(("file:", "data:")) or problems.append(request.url))
    page.goto(report.as_uri())
    yield page
    assert not problems


def test_page_is_self_contained_and_complete(smoke, report):
    """It has the BLEU and the log of every trial, and refers to no other file or address."""
    text = report.read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)=["'](?!#|data:)|@import|url\((?!#|data:)""", text)
    for result in finished_results(smoke[0]):
        assert f"{result['metrics']['val/bleu']:.1f}" in text and result["folder"].name in text
        assert (result["folder"] / "log.txt").read_text().splitlines()[-1] in text
    figures = {path.name for path in (report.parent / "figures").iterdir()}
    assert {f"curves_steps.{kind}" for kind in ("svg", "pdf", "png")} <= figures


def test_pressing_a_heading_sorts_in_both_directions(page):
    cells = "#results tbody td:nth-child({})"
    at = page.locator("#results th").all_inner_texts().index("PPL") + 1
    for sign in (-1, 1):
        page.locator(f"#results th:nth-child({at}) button").click()
        shown = [float(text.rstrip("*")) for text in page.locator(cells.format(at)).all_inner_texts()]
        assert len(shown) > 1 and shown == sorted(shown, key=lambda value: sign * value)


def test_choosing_an_attention_head_shows_it(page):
    assert page.locator("#which").inner_text() == "encoder, layer 1, head 1"
    heads = page.locator("#heads button")
    heads.nth(heads.count() - 1).click()
    assert heads.nth(heads.count() - 1).get_attribute("aria-pressed") == "true"
    before = page.locator("#head").inner_html()
    for choice, value in (("#site", "cross"), ("#row", "h=4"), ("#sentence", "1")):
        page.select_option(choice, value)
        assert page.locator("#head").inner_html() != before
        before = page.locator("#head").inner_html()
    assert page.locator("#which").inner_text().startswith("cross, layer ")
    heat = page.locator("#head svg").first
    assert heat.locator("rect").count() > heat.locator("text").count() > 4 and page.locator("#head svg").count() == 2


def test_page_fits_the_screen(page):
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.locator("details summary").last.click()
    assert page.locator("pre").last.is_visible()
