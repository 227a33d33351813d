"""All commands under one name:  transformer-pl sweep table3_A  is  python -m transformer_pl.sweep table3_A"""

import os
import sys
from typing import NoReturn

COMMANDS = {
    "sweep": "train the trials of a sweep file and print their table, or search",
    "report": "print the table of a sweep from the results on disk, or write its page",
    "train": "train one trial",
    "translate": "translate lines with a trained trial",
    "check": "test the laws of a component, an optimizer, a loss, a callback",
    "complexity": "measure how the time of a layer grows with the sentence (Table 1)",
}
HELP = """\
commands:
{commands}

  transformer-pl COMMAND --help     its options
  transformer-pl sweep table3_A     Table 3 (A) of the paper, the number of heads: minutes on a CPU
  transformer-pl report table3_A    its table again, from the results on disk

Each command is also a module: transformer-pl sweep is python -m transformer_pl.sweep.
"""


def main() -> NoReturn:
    """Replace this process by the one that `python -m` starts for the command; or explain the commands."""
    name, *words = sys.argv[1:] or ["--help"]
    if name in COMMANDS:
        os.execv(sys.executable, [sys.executable, "-m", f"transformer_pl.{name}", *words])
    from transformer_pl.runtime.command_line import run_command

    run_command(explain)


def explain(argv: list[str]) -> int:
    """Print the help or the version. Raises an InputError for a word that is no command."""
    from transformer_pl.runtime.command_line import CommandParser

    parser = CommandParser(
        prog="transformer-pl",
        usage="%(prog)s COMMAND ...",
        description="Ablation studies of the Transformer, from a sweep file to a table beside the paper's.",
        epilog=HELP.format(commands="\n".join(f"  {name:12}{what}" for name, what in COMMANDS.items())),
    )
    if argv and argv[0].endswith((".yaml", ".yml")):
        parser.error(f"{argv[0]} is no command; did you mean transformer-pl sweep {argv[0]}?")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    parser.parse_args(argv[:1] or ["--help"])
    return 0


if __name__ == "__main__":
    main()
