"""How many small errors the tests notice: fault injection, started by hand. tests/README.md has the figures.

    python tests/benchmarks/mutation.py                                25 mutants of each module in TESTS
    python tests/benchmarks/mutation.py model/loss.py --mutants 60     60 mutants of one module

cosmic-ray changes one operator, number, condition, loop or decorator at a time. After each change the tests of the
module run until one fails. They run in a copy of the project, and in forks of a process that has already imported the
libraries and those modules of this project that do not depend on the changed one. A new process would take 6 s for
these imports.
"""

import argparse
import ast
import importlib.util
import multiprocessing
import os
import random
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice, permutations
from pathlib import Path
from typing import NamedTuple

import pytest
from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from scipy.stats import binomtest

ROOT = Path(__file__).parents[2]
TESTS = {  # by module of transformer_pl/, the words for pytest, which name the tests that are to notice
    "model/transformer.py": "tests/model/test_model.py tests/test_fidelity.py tests/model/test_what_components_know.py "
    "-k 'not told and not trained_on and not an_auxiliary'",
    "model/loss.py": "tests/model/test_loss.py -k 'not exist'",
    "model/optimizer.py": "tests/model/test_optimizer.py",
    "model/beam_search.py": "tests/model/test_beam_search.py tests/model/test_model.py",
    "table/statistics.py": "tests/table/test_statistics.py -k 'not false_positive' tests/table/test_moderation.py",
    "table/moderation.py": "tests/table/test_moderation.py",
    "trials/identity.py": "tests/trials/test_identity.py tests/train/test_extensions.py -k 'not stop'",
    "trials/convergence.py": "tests/trials/test_convergence.py",
    "train/checkpoint.py": "tests/train/test_checkpoint.py",
    "plan/plan.py": "tests/plan/test_plan.py -k 'not other_size'",
}
# What the tests import anyway, once for all of them.
LIBRARIES = ("torch", "lightning", "scipy.optimize", "pydantic", "rich.console", "sacrebleu", "optuna", "wandb")
LIBRARIES += ("sentencepiece", "torch.utils.flop_counter", "torch.distributed.fsdp", "matplotlib.figure", "jinja2")

# Of cosmic-ray's operators, those that make code which somebody could have written: no shift in place of a product.
ARITHMETIC = ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_Mul", "Pow_Mul")
SETS = ("BitOr_BitAnd", "BitAnd_BitOr")
COMPARISONS = (*permutations(("Eq", "NotEq", "Lt", "LtE", "Gt", "GtE"), 2), ("Is", "IsNot"), ("IsNot", "Is"))
OPERATORS = (
    *(f"ReplaceBinaryOperator_{pair}" for pair in (*ARITHMETIC, *SETS)),
    *(f"ReplaceComparisonOperator_{a}_{b}" for a, b in COMPARISONS),
    *(f"ReplaceUnaryOperator_Delete_{name}" for name in ("USub", "Invert", "Not")),
    *("AddNot", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue"),
    *("NumberReplacer", "ExceptionReplacer", "ZeroIterationForLoop", "RemoveDecorator"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak"),
)
LEAST_S, TIMES = 10, 3  # tests hang that take more CPU seconds than this, and than so many times those without a change
WAITING_S = 600  # tests also hang that have not ended after this time
MEMORY = 16 * 2**30


class Mutant(NamedTuple):
    line: int
    before: str  # the line
    after: str
    source: str  # the module with the change


def mutants(source: str, generator: random.Random) -> Iterator[Mutant]:
    """The mutants of a module that can matter, in random order."""
    left_out, nodes, places = list(_left_out(source)), list(ast_nodes(get_ast(source))), []
    for name in OPERATORS:
        operator = plugins.get_operator(f"core/{name}")()
        found = (place for node in nodes for place, _ in operator.mutation_positions(node))
        for occurrence, place in enumerate(found):
            if not any(start <= place < end for start, end in left_out):
                places.append((operator, occurrence))
    for operator, occurrence in generator.sample(places, len(places)):
        changed = mutate_code(source, operator, occurrence)
        with suppress(SyntaxError):
            compile(changed, "", "exec")
            yield _mutant(source, changed)


def _left_out(source: str) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Where a change cannot be noticed: annotations, texts of errors, `*` among parameters, caches, `strict` of zip."""
    for node in ast.walk(ast.parse(source)):
        without: list[ast.AST | None] = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, ast.Raise):
            without += [text for text in ast.walk(node) if isinstance(text, ast.JoinedStr)]
        without += [one for one in getattr(node, "decorator_list", ()) if "cache" in ast.unparse(one)]
        without += [one for one in getattr(node, "keywords", ()) if one.arg == "strict"]
        for one in filter(None, without):
            yield (one.lineno, max(0, one.col_offset - 1)), (one.end_lineno, one.end_col_offset)
    for node in ast_nodes(get_ast(source)):
        if node.type == "operator" and node.parent.type == "parameters":
            yield node.start_pos, node.end_pos


def _mutant(source: str, changed: str) -> Mutant:
    old, new = source.splitlines(), changed.splitlines()
    at = next(at for at, lines in enumerate(zip(old, new, strict=False)) if lines[0] != lines[1])
    before = old[at] or old[at + 1]  # a decorator is removed with the empty line above it
    return Mutant(at + 1, before.strip(), new[at].strip(), changed)


def try_module(copy: Path, file: str, count: int, seed: int) -> tuple[int, list[Mutant]]:
    """Try mutants of a module; return how many were tried, and those that no test noticed. Needs a process of its own.

    copy: a copy of the project, in which the module is changed.
    """
    os.chdir(copy)
    sys.path[:0] = [str(copy)]
    for name in _independent(copy, file):
        importlib.import_module(name)
    path = copy / "transformer_pl" / file
    own, began = path.read_text(), _cpu_s()
    if _fork(TESTS[file], WAITING_S):
        raise RuntimeError(f"the tests of {file} fail without a change:\n{(copy.parent / 'log').read_text()}")
    limit_s = max(LEAST_S, TIMES * (_cpu_s() - began))
    cached = Path(importlib.util.cache_from_source(str(path)))
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

    def notice(source: str) -> bool:
        """Whether the tests fail with this source of the module."""
        cached.unlink(missing_ok=True)
        path.write_text(source)
        return bool(_fork(TESTS[file], limit_s))

    if not notice("raise ImportError\n"):
        raise RuntimeError(f"{file}: must be imported in each fork, but was imported before; mend _independent")
    drawn = list(islice(mutants(own, random.Random(f"{seed} {file}")), count))
    survivors = []
    for mutant in drawn:
        if not notice(mutant.source):
            survivors.append(mutant)
        print("S" if mutant in survivors else ".", end="", file=sys.stderr, flush=True)  # survived, or killed
    path.write_text(own)
    return len(drawn), survivors


def _independent(copy: Path, file: str) -> list[str]:
    """The modules of the project that do not depend on this one, neither directly nor through others.

    A module also depends on the packages above the modules that it imports, and on what these packages import.
    """
    imports: dict[str, set[str]] = {}
    for path in (copy / "transformer_pl").rglob("*.py"):
        name = ".".join(path.relative_to(copy).with_suffix("").parts).removesuffix(".__init__")
        named = {name}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                named |= {str(node.module), *(f"{node.module}.{one.name}" for one in node.names)}
        packages = {one[:end] for one in named for end in range(len(one)) if one[end] == "."}
        imports[name] = named | packages
    dependent = {f"transformer_pl.{file.removesuffix('.py').replace('/', '.')}"}
    while more := {name for name in imports.keys() - dependent if imports[name] & dependent}:
        dependent |= more
    return sorted(name for name in imports.keys() - dependent if not name.endswith("__main__"))


def _fork(words: str, limit_s: float) -> int:
    """The exit code of pytest with these words, in a fork; less than zero where it was killed."""
    pid = os.fork()
    if not pid:
        code: int = pytest.ExitCode.INTERNAL_ERROR
        try:
            os.setsid()
            for limited, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CPU, round(limit_s))):
                resource.setrlimit(limited, (most, most))
            log = os.open("../log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(log, stream)
            code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *shlex.split(words)])
        finally:
            os._exit(code)
    try:
        for _ in range(WAITING_S * 50):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # the processes that it has left behind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"by default all: {', '.join(TESTS)}")
    parser.add_argument("--mutants", type=int, default=25, help="how many are tried of each module, drawn at random")
    parser.add_argument("--seed", type=int, default=1, help="seed of the draw")
    options = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    for library in LIBRARIES:
        importlib.import_module(library)
    all_tried, all_killed = 0, 0
    with tempfile.TemporaryDirectory(prefix="mutation") as folder:
        os.environ["TMPDIR"] = folder
        tempfile.tempdir = None
        copy = Path(folder) / "project"
        unneeded = shutil.ignore_patterns(".*", "runs", "wandb", "build", "dist")
        shutil.copytree(ROOT, copy, symlinks=True, ignore=unneeded)
        for file in options.modules or TESTS:
            with multiprocessing.get_context("fork").Pool(1) as process:
                tried, survivors = process.apply(try_module, (copy, file, options.mutants, options.seed))
            killed = tried - len(survivors)
            all_tried, all_killed = all_tried + tried, all_killed + killed
            print(f"{file}: {share(killed, tried)}", flush=True)
            for one in sorted(survivors):
                print(f"  {file}:{one.line}\n    - {one.before}\n    + {one.after}", flush=True)
        print(f"all: {share(all_killed, all_tried)}")


def _cpu_s() -> float:
    """The CPU seconds that the forks have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def share(killed: int, tried: int) -> str:
    interval = binomtest(killed, tried).proportion_ci(method="wilson")
    return f"{killed} of {tried} killed, {killed / tried:.0%} (95 %: {interval.low:.0%} to {interval.high:.0%})"


if __name__ == "__main__":
    main()
