"""The page of a sweep, as its reader sees it: in a browser, without a network, on a phone."""

import re
from pathlib import Path

import pytest
from helpers import command

from transformer_pl.trials.runs_folder import finished_results

WIDTH = {"a desk": 1200, "a phone": 390}


@pytest.fixture(scope="module")
def report(smoke):
    runs, _ = smoke
    told = command("report", "sweeps/smoke.yaml", "--runs", runs, "--format", "html")
    assert told.returncode == 0, told.stderr
    return Path(told.stdout.strip())


@pytest.fixture(params=WIDTH)
def page(request, report, browser):
    """The page on a screen; whatever it says on its console, or asks of a network, is a mistake."""
    wrong = []
    page = browser.new_page(viewport={"width": WIDTH[request.param], "height": 800})
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: asked.url.startswith(("file:", "data:")) or wrong.append(asked.url))
    page.goto(report.as_uri())
    yield page
    assert not wrong


def test_one_file_holds_everything(smoke, report):
    """Of every row its numbers, of every trial its log; and nothing is fetched from anywhere."""
    text = report.read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)=["'](?!#|data:)|@import|url\((?!#|data:)""", text)
    for result in finished_results(smoke[0]):
        assert f"{result['metrics']['val/bleu']:.1f}" in text and result["folder"].name in text
        assert (result["folder"] / "log.txt").read_text().splitlines()[-1] in text
    figures = {path.name for path in (report.parent / "figures").iterdir()}
    assert {f"curves_steps.{kind}" for kind in ("svg", "pdf", "png")} <= figures


def test_a_heading_sorts_and_sorts_back(page):
    cells = "#results tbody td:nth-child({})"
    at = page.locator("#results th").all_inner_texts().index("PPL") + 1
    for sign in (-1, 1):
        page.locator(f"#results th:nth-child({at}) button").click()
        shown = [float(text.rstrip("*")) for text in page.locator(cells.format(at)).all_inner_texts()]
        assert len(shown) > 1 and shown == sorted(shown, key=lambda value: sign * value)


def test_a_head_is_picked_and_seen(page):
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


def test_nothing_is_wider_than_the_screen(page):
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.locator("details summary").last.click()
    assert page.locator("pre").last.is_visible()
