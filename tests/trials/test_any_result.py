"""Random files of results: each command goes on without what it cannot use, names it, and writes nothing to a trial."""

import json
import shutil

import pytest
import tiny_trials
import yaml
from any_input import ODD, SCALARS, VALUES, WORDS, each_property, examples, told_or_done, try_examples
from helpers import a_result
from hypothesis import strategies as st

from transformer_pl import report, sweep
from transformer_pl.experiments.plan import Plan, as_json, estimate_costs, plan_trials
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.runtime.files import write_json
from transformer_pl.trials.schemas import result_digest
from transformer_pl.trials.trial import Trial

FILES = ["result.json", "status.json", "env.json", "identity.json", "metrics.jsonl", "hyp.val.txt", "scores.val.jsonl"]
FILES += ["plan.json", "meta.json", "config.yaml", "log.txt"]
PIECES = st.sampled_from([*ODD, "null", "[]", "{}", "NaN", "1e999", '"', "\n", "{", "9" * 400, ""])
SLICES = st.tuples(st.integers(0, 5000), st.integers(0, 40), PIECES)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a sweep file and a runs folder in which one of its two trials has finished."""
    here = tmp_path_factory.mktemp("here")
    tiny_trials.train(here / "runs", {})
    keys = {key: {"value": value} for key, value in (tiny_trials.TINY | {"data.path": str(here / "text")}).items()}
    content = {"method": "grid", "parameters": keys | {"seed": {"values": [1, 2]}}}
    (here / "tiny.yaml").write_text(yaml.safe_dump(content))
    sweep_read = read_sweep(here / "tiny.yaml")
    planned = plan_trials(sweep_read, here / "runs")
    plan = as_json(Plan(sweep_read, planned, estimate_costs(planned, [])))
    (here / "runs" / "sweeps" / "tiny@demo").mkdir(parents=True)
    write_json(here / "runs" / "sweeps" / "tiny@demo" / "plan.json", plan | {"differs": "", "command": "x"})
    return here


@pytest.fixture
def here(finished, tmp_path, monkeypatch):
    """A copy of it, which is the working folder."""
    shutil.copytree(finished, tmp_path / "here", symlinks=True)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def commands_go_on(here):
    """Every command that reads results, which none of them may change."""
    before = contents(here)
    printed = [
        told_or_done(sweep.main, "tiny.yaml", "--plan", "--runs=runs"),
        told_or_done(sweep.main, "--list", "--runs=runs"),
        *(told_or_done(report.main, "tiny.yaml", "--runs=runs", f"--format={kind}") for kind in ("md", "json")),
    ]
    after = contents(here)
    assert {path.name for path in after.keys() - before} <= {"lock", "index"}
    assert all(after[path] == content for path, content in before.items() if path.name != "index")
    return printed


def replaced(here, name, content):
    """The commands over a folder in which a file has another content."""
    (path,) = here.glob(f"runs/*/*/{name}")
    whole = path.read_bytes()
    try:
        path.write_bytes(content)
        return commands_go_on(here)
    finally:
        path.write_bytes(whole)


def encoded(value):
    return json.dumps(value, default=str).encode("utf-8", "surrogatepass")


CONTENTS = st.one_of(
    st.binary(max_size=40),
    VALUES.map(encoded),
    st.lists(VALUES, max_size=3).map(lambda lines: b"\n".join(map(encoded, lines))),
)


@examples(st.tuples(st.sampled_from(FILES), st.one_of(CONTENTS, st.lists(SLICES, min_size=1, max_size=3))))
def any_content(case, here):
    """Any content at all, or that of the file with slices of it replaced."""
    name, content = case
    if isinstance(content, list):
        (path,) = here.glob(f"runs/*/*/{name}")
        text = path.read_text()
        for at, length, piece in content:
            at %= len(text) + 1
            text = text[:at] + piece + text[at + length :]
        content = text.encode("utf-8", "surrogatepass")
    replaced(here, name, content)


RESULT_KEYS = st.sampled_from([*a_result(), "digests", "exempt", "convergence", "version"])
METRICS = st.dictionaries(
    st.sampled_from(["val/bleu", "val/ppl", "val/loss", "test/bleu", "val/chrf"]) | WORDS, SCALARS
)


@examples(st.dictionaries(RESULT_KEYS, st.one_of(VALUES, METRICS), min_size=1, max_size=2))
def a_result_with_its_digest(keys, here):
    """Such as another version of this project, or a user, may have written: what it says is not what it should."""
    (path,) = here.glob("runs/trials/*/result.json")
    result = json.loads(path.read_text()) | json.loads(encoded(keys))
    replaced(here, "result.json", encoded(result | {"digest": result_digest(result)}))


SENTENCES = st.one_of(
    st.fixed_dictionaries({"bleu": st.lists(SCALARS, min_size=9, max_size=11), "nll": SCALARS, "pieces": SCALARS}),
    st.builds(lambda n: {"bleu": [n] * 10, "nll": float(n), "pieces": n}, st.integers(0, 3)),
    VALUES,
)


@examples(st.lists(SENTENCES, max_size=8))
def scores_of_an_older_version(lines, here):
    """It has kept no digests, so that only what the file says can tell whether it is whole."""
    (path,) = here.glob("runs/trials/*/result.json")
    whole = path.read_bytes()
    path.write_bytes(encoded({k: v for k, v in json.loads(whole).items() if not k.startswith("digest")}))
    replaced(here, "scores.val.jsonl", b"".join(encoded(line) + b"\n" for line in lines))
    path.write_bytes(whole)


@each_property(any_content, a_result_with_its_digest, scores_of_an_older_version)
def test_results_that_are_none_stop_no_command(holds, count, here):
    try_examples(holds, count, here=here)


def test_results_that_are_whole_are_shown(here):
    """Else the properties above say nothing."""
    plan, listed, table, content = commands_go_on(here)
    assert "1 done, 1 new" in plan.out and not any(one.err for one in (plan, listed, table))
    (folder,) = (here / "runs" / "trials").iterdir()
    bleu = Trial(folder).result()["metrics"]["val/bleu"]
    assert f"{bleu:.1f}" in table.out and folder.name in listed.out and json.loads(content.out)
