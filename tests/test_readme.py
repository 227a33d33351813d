"""Every command in a README works, every link leads somewhere, and every path in the map of the code exists.

Commands run in this process, in a folder that holds `sweeps` and a few tiny trials. Tiny scales replace `demo`,
`captions` and `multi30k`. A command that would start trials runs with `--plan`, unless its trials are there already.
"""

import io
import itertools
import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_trials
import yaml
from helpers import ROOT, little_text
from markdown_it import MarkdownIt
from shipped_components import marks_of
from tiny_trials import in_a_command, unrehearsed

from transformer_pl import check, translate
from transformer_pl.data import synthetic
from transformer_pl.laws.checks import Checks
from transformer_pl.report import __main__ as report
from transformer_pl.runtime.errors import InputError
from transformer_pl.sweep import __main__ as sweep
from transformer_pl.sweep import grid
from transformer_pl.tasks.language_model import LanguageModel
from transformer_pl.train import __main__ as train

READMES = sorted(
    path
    for depth in ("", "*/", "*/*/")
    for name in ("README.md", "SLOTS.md", "FIDELITY.md", "CONTRIBUTING.md", "API.md", "NOTEBOOK.md", "RESULTS.md")
    for path in ROOT.glob(depth + name)
    if not any(part.startswith(".") or part == "runs" for part in path.relative_to(ROOT).parts)
    and not path.parent.is_symlink()  # transformer_pl/sweeps
)
SLOTS = ROOT / "ablations" / "SLOTS.md"
MAP = ROOT / "transformer_pl" / "README.md"
TASKS = ROOT / "transformer_pl" / "tasks" / "README.md"
NAMES = {path: str(path.relative_to(ROOT)) for path in READMES}

# ---------------------------------------------------------------------------------------------------------------------
# The commands of a README

OURS = ("python -m transformer_pl.", "transformer-pl ", "echo ")
ALONE = {f"python -m transformer_pl.{name}" for name in ("complexity", "report", "check")}  # mentioned without words
ELSEWHERE = {  # in tests/test_complexity.py and tests/test_lm_eval.py
    "python -m transformer_pl.complexity sweeps/layers.yaml",
    "python -m transformer_pl.lm_eval trial=table3-lm/base/s1 --tasks pairs --include_path tasks --log_samples "
    "--output_path samples",
}
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
INDENTED = re.compile(r"(?:(?<=\n\n)|\A)((?: {4}\S.*(?:\n|\Z))+)")
INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")


def without_fences(text):
    return FENCED.sub("", text)


def code_lines(text):
    """The command lines of code blocks, and the commands in paragraphs. Blocks of YAML and Python hold none."""
    blocks = [body for language, body in FENCED.findall(text) if not language]
    blocks += INDENTED.findall(without_fences(text))
    inline = INLINE.findall(INDENTED.sub("", without_fences(text)))
    return [line.strip() for block in blocks for line in block.splitlines()] + [" ".join(c.split()) for c in inline]


def simple_commands(line):
    """The commands of one line: without the comment beside it, and with each of several alternatives `a|b`."""
    line = re.split(r"\s{2,}", line.replace("[key=value ...]", "").replace("...", "").strip())[0]
    for command in line.split(" && "):
        command = command.partition(" > ")[0]
        words = [word.split("|") if re.fullmatch(r"[\w-]+(\|[\w-]+)+", word) else [word] for word in command.split(" ")]
        yield from (" ".join(choice) for choice in itertools.product(*words))


def example_file(path):
    """What FILE stands for: a search in the README about searches, else a grid."""
    return "sweeps/search_regularisation.yaml" if path.parent.name == "search" else "sweeps/table3_A.yaml"


def commands():
    """Every command of every README once, with the README that has it first.

    Every day those of the first README are tried, and those of pages that have changed.
    """
    found = {}
    for path in READMES:
        for line in code_lines(path.read_text(encoding="utf-8")):
            for command in simple_commands(line.replace("FILE", example_file(path))):
                if command.startswith(OURS) and command not in ALONE | ELSEWHERE:
                    found.setdefault(command, path)
    marks = {path: [] if path == ROOT / "README.md" else marks_of(NAMES[path]) for path in READMES}
    return [pytest.param(one, id=f"{NAMES[path]}: {one}", marks=marks[path]) for one, path in found.items()]


# ---------------------------------------------------------------------------------------------------------------------
# A folder to run them in

TEMPLATE = (ROOT / "transformer_pl" / "plan" / "README.md", "# my_scale.yaml")  # a scale of one's own
TINY = tiny_trials.TINY | {
    "model.width": 0.0625,
    "model.depth": 0.5,
    "optim.warmup": 400,  # which a search has in its range
    "data.path": "text",
}
PLACEHOLDERS = {
    "TRIAL": "table3-A/base/s1",
    "language-model/base/s1": "s7",
    "DIR": "runs",
    "NAME@SCALE": "search-regularisation@demo",
    "FOLDER": "text",
    "postgresql://USER@HOST/DATABASE": "sqlite:///study.db",
}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """The rows of `table3_A.yaml` with one seed at scale demo, trained for four steps."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "sweeps").symlink_to(ROOT / "sweeps")
    little_text(folder / "text", val=20, test=60)  # with fewer sentences nothing is compared
    for split in synthetic.SIZES:  # for sweeps/table4.yaml
        (folder / "text" / f"{split}.trees").write_text("\n".join(synthetic.trees(split)[:400]))
    (folder / "sentences.txt").write_text("ba be bi\n\nbo bu\n")
    for scale, steps in (("demo", 4), ("captions", 5), ("multi30k", 6)):  # else they would be the same trials
        (folder / f"{scale}.yaml").write_text(yaml.safe_dump(TINY | {"optim.max_steps": steps}))
    language_model = {"data.task": f"{LanguageModel.__module__}.LanguageModel", "model.N_encoder": 0}
    (folder / "demo-lm.yaml").write_text(yaml.safe_dump(TINY | {"optim.max_steps": 4} | language_model))
    scores = [f"{model},{lr},{seed},{seed / 7},8" for model in "ab" for lr in (0.1, 0.2) for seed in (1, 2, 3)]
    (folder / "runs.csv").write_text("\n".join(["model,lr,seed,acc,h", *scores]))
    (folder / "my_sweep.yaml").write_text(example("yaml", "name: my-sweep"))
    (template,) = [body for _, body in FENCED.findall(TEMPLATE[0].read_text(encoding="utf-8")) if TEMPLATE[1] in body]
    (folder / "my_scale.yaml").write_text(template.replace("vocab_size: 4000", "vocab_size: 300"))  # the text is tiny
    slurm = example("yaml", "# slurm.yaml", ROOT / "transformer_pl" / "sweep" / "README.md")
    (folder / "slurm.yaml").write_text(slurm)
    little_text(folder / "texts" / "news")
    for path in (folder / "texts" / "news").glob("*.de"):
        path.rename(path.with_suffix(".fr"))
    (folder / "my_ablation.py").write_text(example("python", "class NoPosition"))
    (folder / "copying.py").write_text(example("python", "class Copying", TASKS))
    (folder / "alibi.yaml").write_text(example("yaml", "name: alibi", SLOTS))
    with pytest.MonkeyPatch.context() as patch, in_a_command():
        patch.chdir(folder)
        for heads, seed in itertools.product((1, 4, 8, 16, 32), (1, 2)):
            assert train.main(["--scale=demo.yaml", f"--model.h={heads}", f"--seed={seed}"]) == 0
        assert train.main(["--scale=demo-lm.yaml", "--seed=7"]) == 0
        assert sweep.main(["sweeps/table3_A.yaml", "--scale", "demo.yaml", "--seeds", "1"]) == 0  # all are trained
        write_samples(folder)
    return folder


def write_samples(folder):
    """samples.csv by the examples, of pairs from a text that is prepared here, and of answers as lm-eval keeps them."""
    (folder / "tasks").mkdir()
    prepared = next((folder / "runs" / "data").iterdir()).name
    exec(example("python", "tasks/pairs.jsonl", TASKS).replace("/ID/", f"/{prepared}/"), {})
    pairs = [json.loads(line) for line in (folder / "tasks" / "pairs.jsonl").read_text().splitlines()]
    for seed, trial in enumerate(("base-s1-0123456789ab", "h=4-s1-0123456789ab")):
        (folder / "samples" / trial).mkdir(parents=True)
        answers = np.random.default_rng(seed).integers(0, 2, len(pairs)).tolist()
        lines = [{"doc_id": n, "doc": of, "acc": acc} for n, (of, acc) in enumerate(zip(pairs, answers, strict=True))]
        (folder / "samples" / trial / "samples_pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    exec(example("python", "samples.csv", TASKS), {})


def example(language, beginning, readme=ROOT / "README.md"):
    """The code block of a README that holds this text."""
    blocks = FENCED.findall(readme.read_text(encoding="utf-8"))
    (body,) = [body for kind, body in blocks if kind == language and beginning in body]
    return body


@pytest.fixture
def here(workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    monkeypatch.syspath_prepend(str(workplace))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with in_a_command():
        yield workplace


def with_tiny_scale(words, default="--scale demo.yaml"):
    """Name the tiny scale of the same name in place of a shipped one, and train for no more than six steps."""
    words = [re.sub(r"^(--scale=)?(demo|demo-lm|captions|multi30k)$", r"\1\2.yaml", word) for word in words]
    words = [re.sub(r"^(--optim.max_steps|--trainer.val_every)=\d+$", r"\1=6", word) for word in words]
    return words if any(word.startswith("--scale") for word in words) else words + default.split()


# ---------------------------------------------------------------------------------------------------------------------
# What each command comes to here


def run_sweep(words):
    if words[0].startswith("--"):  # --list
        return sweep.main(words)
    if words == ["sweeps/table3_A.yaml"]:  # every trial is there
        return sweep.main([*words, "--scale", "demo.yaml", "--seeds", "1"])
    if words[-2:] == ["--sampler", "gp"]:
        words = [*words, "n_startup_trials=20"]  # else it fits Gaussian processes, which takes seconds
    with pytest.MonkeyPatch.context() as patch:
        if words[0].startswith("sweeps/"):  # laws/test_components.py checks the components of these
            patch.setattr(grid, "checks_of", lambda configs, *_, **__: [Checks() for _ in configs])
        return sweep.main([*dict.fromkeys([*with_tiny_scale(words), "--plan"])])


def run_report(words):
    if words[0].endswith(".csv"):
        return report.main(words)
    if "--shipped" in words:
        return report.main(words)
    if "--against" in words:  # two scales: report/test_results.py prints this table from the trials that ship
        return 0 if report.read_options(words).against else 1
    return report.main([*words, "--scale", "demo.yaml", "--seeds", "1,2" if "--pairs" in words else "1"])


def run_train(words):
    if words == ["--help"]:
        with pytest.raises(SystemExit):
            train.main(words)
        return 0
    with unrehearsed():
        return train.main(with_tiny_scale(words, "--scale=demo.yaml"))


def run_piped(words):
    sentence, bar, *command = words
    assert bar == "|"
    sys.stdin = io.TextIOWrapper(io.BytesIO(sentence.encode()))
    return translate.main(command[command.index("transformer_pl.translate") + 1 :])


def run_check(words):
    return check.main(["my_ablation.NoPosition" if words == ["my_ablation.MyAttention"] else words[0], *words[1:]])


RULES = {"sweep": run_sweep, "train": run_train, "report": run_report, "translate": translate.main, "check": run_check}


@pytest.mark.parametrize("command", commands())
def test_a_command_of_a_readme_works(command, here):
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(command)]
    for name in ("NAME@SCALE", "FOLDER"):  # parts of words
        words = [word.replace(name, PLACEHOLDERS[name]) for word in words]
    if words[0] == "echo":
        assert run_piped(words[1:]) == 0
        return
    name, *words = words[1:] if words[0] == "transformer-pl" else [words[2].partition(".")[2], *words[3:]]
    try:
        assert (0 if name.startswith("-") else RULES[name](words)) == 0
    except InputError as error:
        if "cma-es" not in words or "cmaes" not in str(error):  # a package that may be missing
            raise


def test_the_worked_example_leads_to_a_table(here, capsys):
    variants = yaml.safe_load(Path("alibi.yaml").read_text())["parameters"]["variant"]["values"]
    assert len(variants) == 3
    with unrehearsed():
        for variant in variants:
            assert train.main(["--scale=demo.yaml", f"--variant={variant}"]) == 0
    capsys.readouterr()
    assert sweep.main(["alibi.yaml", "--scale", "demo.yaml", "--seeds", "1"]) == 0
    printed = capsys.readouterr().out
    assert "attention=Alibi" in printed and "position=NoPosition" in printed


# ---------------------------------------------------------------------------------------------------------------------
# Messages, links and the map


def test_a_message_begins_as_its_page_says(tmp_path, monkeypatch):
    """Those of the rows that are an option of `sweep table3_A --plan`."""
    page = (ROOT / "transformer_pl" / "sweep" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|`(--[^`|]+)`\|`([^`|]+)`\|", page, re.M)
    assert rows
    monkeypatch.chdir(tmp_path)
    for words, beginning in rows:
        code, _, err = tiny_trials.ended(sweep.main, "table3_A", "--plan", *words.split())
        assert code == 2 and f"error: {beginning}" in err, words


def anchors(path):
    """GitHub's anchor of each heading: lower case, blanks to dashes, no punctuation."""
    headings = re.findall(r"^#+ (.+)$", without_fences(path.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_what_is_written_as_code_or_as_a_table_is_shown_as_that():
    """Four blanks after a list are its text, and a table behind a paragraph needs a blank line."""
    for page in READMES:
        text = page.read_text(encoding="utf-8")
        found = MarkdownIt("commonmark").enable("table").parse(text)
        code, tables = (
            {number for one in found if one.map and one.type in types for number in range(*one.map)}
            for types in (("code_block", "fence"), ("table_open",))
        )
        lines = {number: line for number, line in enumerate(text.splitlines()) if number not in code}
        wrong = [line for number, line in lines.items() if line.startswith("    ")]
        wrong += [line for number, line in lines.items() if line.startswith("|") and number not in tables]
        assert wrong == [], page


def test_every_link_leads_somewhere():
    for readme in READMES:
        links = re.findall(r"\]\(([^)\s]+)\)", without_fences(readme.read_text(encoding="utf-8")))
        for link in [link for link in links if "://" not in link]:
            name, _, anchor = link.partition("#")
            target = (readme.parent / name).resolve() if name else readme
            assert target.exists() and (not anchor or anchor in anchors(target)), (readme, link)


def test_every_path_in_the_map_exists():
    known = {path.name for path in (ROOT / "transformer_pl").rglob("*.py")}
    names = {name for code in INLINE.findall(MAP.read_text(encoding="utf-8")) for name in code.split()}
    paths = [name for name in names if re.fullmatch(r"[\w./]+(\.(py|yaml|html)|/)", name)]
    assert paths
    for name in paths:
        placeholder = "NAME" in name or name == "my.yaml" or name in known
        assert placeholder or (MAP.parent / name).exists() or (ROOT / name).exists(), name
