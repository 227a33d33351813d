"""How much code there is, and which functions are large:  python tests/benchmarks/lines.py [FOLDER ...]

With `--words` alone: how many words of prose each Markdown file has, which are those outside of tables and of blocks of
code, and how many words it has in all.

It counts the lines of each folder (by default transformer_pl) that are neither blank, comment nor docstring, by room,
and lists the functions with LONG lines of code or BRANCHED branches and more. A branch is an `if`, a loop, a `with`, an
`except`, an `assert`, a comprehension, a conditional expression, and each further operand of `and` or `or`; a function
begins with one.

No function is over the limit today. One may be where a reader wants its steps in one place.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
LONG, BRANCHED = 50, 15
NO_CODE = {*(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE), *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (
    *(ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith),
    *(ast.ExceptHandler, ast.Assert, ast.IfExp, ast.comprehension),
)


def code_lines(text: str) -> set[int]:
    """The numbers of the lines of a module that are neither blank, comment nor docstring."""
    docstrings = set[int]()
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS))
            and ast.get_docstring(node, clean=False) is not None
        ):
            docstrings |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    occupied = [range(token.start[0], token.end[0] + 1) for token in tokens if token.type not in NO_CODE]
    return {line for lines in occupied for line in lines} - docstrings


def branches(function: ast.AST) -> int:
    """The branches of a function, with those of the functions in it."""
    nodes = list(ast.walk(function))
    operands = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return 1 + operands + sum(isinstance(node, BRANCHES) for node in nodes)


def prose(text: str) -> int:
    """The words of a Markdown text outside of tables, of blocks of code and of pictures."""
    lines = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S).splitlines()
    return sum(len(line.split()) for line in lines if not line.startswith(("|", "    ", "![", "<")))


def print_words() -> None:
    words = Counter[str]()
    for path in sorted(ROOT.rglob("*.md")):
        if not any(part.startswith(".") or part == "runs" for part in path.relative_to(ROOT).parts):
            text = path.read_text(encoding="utf-8")
            print(f"{prose(text):7,}{len(text.split()):8,}  {path.relative_to(ROOT)}")
            words += Counter(prose=prose(text), all=len(text.split()))
    print(f"{words['prose']:7,}{words['all']:8,}  words of prose, and in all")


def main(folders: list[Path]) -> None:
    rooms, functions = Counter[str](), list[tuple[int, int, str]]()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            lines = code_lines(text)
            rooms["/".join(path.relative_to(folder.parent).parts[:-1])] += len(lines)
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, FUNCTIONS):
                    own = len(lines.intersection(range(node.lineno, node.end_lineno + 1)))
                    functions.append(
                        (branches(node), own, f"{path.relative_to(folder.parent)}:{node.lineno} {node.name}")
                    )
    for room, count in rooms.items():
        print(f"{count:6,}  {room}")
    print(f"{rooms.total():6,}  lines of code in all, in {len(functions):,} functions")
    large = [found for found in functions if found[0] >= BRANCHED or found[1] > LONG]
    print(f"\n{len(large)} functions have {BRANCHED} branches or more, or over {LONG} lines of code (branches, lines):")
    for branched, length, name in sorted(large, reverse=True):
        print(f"{branched:6} {length:5}  {name}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--words"]:
        print_words()
    else:
        main([Path(folder).resolve() for folder in sys.argv[1:]] or [ROOT / "transformer_pl"])
