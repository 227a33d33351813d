"""Print every table that ships, in every format, into a folder, so that two states of the code can be compared:

    python tests/benchmarks/tables.py /tmp/before        then change the code, and
    python tests/benchmarks/tables.py /tmp/after --against /tmp/before

The commands are those of sweeps/README.md and RESULTS.md, on the trials in sweeps/results, with further options.
"""

import argparse
import difflib
import io
import json
import re
import tarfile
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from pathlib import Path

from transformer_pl.report.__main__ import main as report
from transformer_pl.runtime.errors import InputError

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"^    python -m transformer_pl.sweep (sweeps/\S+.*)$", re.MULTILINE)
PAGES = [ROOT / "sweeps" / name for name in ("README.md", "RESULTS.md")]  # with the tables that ship
FORMATS = ("terminal", "md", "tex", "csv", "json", "html")
TRIALS = ["sweeps/table3_A.yaml", "--trials"]
FURTHER = [  # of one small table, and of those that have a test set or many pairs
    ["sweeps/table3_A.yaml", "--base", "h=4", "--margin", "bleu=1.5"],
    ["sweeps/table3_A.yaml", "--pairs"],
    ["sweeps/table3_A.yaml", "--columns", "row,BLEU,Δ BLEU,p"],
    ["sweeps/table3_A.yaml", "sweeps/depth.yaml"],
    ["sweeps/table3.yaml", "--scale", "multi30k", "--seeds", "1,2,3", "--split", "test"],
    ["sweeps/narang2021.yaml", "--no-paper"],
    ["sweeps/language_model.yaml", "--base", "h=1"],
    TRIALS,
]
SECONDS = re.compile(r"[0-9.]+ s\b")


def shipped_pages() -> str:
    """The text of the pages with the tables that ship."""
    return "".join(page.read_text(encoding="utf-8") for page in PAGES)


class _Text(HTMLParser):
    """The text of a page without figures, scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.lines, self.hidden = list[str](), 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.hidden += tag in ("svg", "script", "style")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("svg", "script", "style")

    def handle_data(self, data: str) -> None:
        if not self.hidden and data.strip():
            self.lines.append(" ".join(data.split()))


def printed(words: list[str]) -> str:
    """What the command prints; of a page its text; of records one line each, whatever the order of their keys."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        try:
            report(words)
        except InputError as error:
            return "\n".join(["refused:", *error.messages])
    text = out.getvalue()
    if words[-1] == "html":
        page = _Text()
        page.feed(Path(text.strip().splitlines()[-1]).read_text(encoding="utf-8"))
        return "\n".join(page.lines)
    if words[-1] == "json":
        return json.dumps(json.loads(text[text.index("{") :]), indent=1, sort_keys=True, ensure_ascii=False)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="print how the tables differ from those there")
    parser.add_argument("--runs", type=Path, help="a runs folder with the trials (those of sweeps/results)")
    parser.add_argument("--formats", default=",".join(FORMATS), help="%(default)s")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as unpacked:
        for archive in [] if options.runs else (ROOT / "sweeps" / "results").glob("*.tar.xz"):
            with tarfile.open(archive) as files:
                files.extractall(unpacked, filter="data")
        runs = options.runs or Path(unpacked)
        shipped = [line.split() for line in COMMAND.findall(shipped_pages())]
        for words in [*shipped, *FURTHER]:
            for form in options.formats.split(","):
                name = re.sub(r"[^A-Za-z0-9_.=,-]+", "_", " ".join(words).replace("sweeps/", ""))
                files = [str(ROOT / word) if word.startswith("sweeps/") else word for word in words]
                text = printed([*files, "--runs", str(runs), "--format", form]).replace(str(runs), "RUNS")
                (options.folder / f"{name}.{form}").write_text(text.replace(str(ROOT), "ROOT"), encoding="utf-8")
    for path in sorted(options.against.iterdir()) if options.against else []:
        new = options.folder / path.name
        if new.exists():
            texts = [one.read_text(encoding="utf-8").splitlines() for one in (path, new)]
            print("\n".join(difflib.unified_diff(*texts, path.name, path.name, lineterm="", n=0)), end="")


if __name__ == "__main__":
    main()
