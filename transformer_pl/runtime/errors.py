"""What a user did wrong, told once and in full; and what a command ends with."""

import argparse
import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NoReturn

from transformer_pl.runtime import passwords, signals


class InputError(ValueError):
    """Input that breaks a law: exit code 2, nothing started.

    Each message names the place, the law, the value and the remedy. Several mistakes are told together.
    """

    def __init__(self, *messages: str):
        self.messages = tuple(dict.fromkeys(messages))
        super().__init__("\n".join(self.messages))


def collect_errors(make: Callable[[Any], Any], values: Iterable[Any]) -> dict[Any, Any]:
    """What is made of each value. Raises one InputError for the mistakes of all."""
    made, messages = {}, []
    for value in values:
        try:
            made[value] = make(value)
        except InputError as error:
            messages += error.messages
    if messages:
        raise InputError(*messages)
    return made


@cache
def warn(message: str) -> None:
    """Say on standard error what is left out, or done in another way than was asked; once in a process."""
    print(f"warning: {message}", file=sys.stderr, flush=True)


class HelpShown(Exception):
    """The command line asked for help alone, which is printed: there is nothing to do."""


class CommandParser(argparse.ArgumentParser):
    """Tells a wrong command line as any wrong input is told. Options are spelled in full and said once."""

    def __init__(self, **options: Any):
        super().__init__(allow_abbrev=False, **options)

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        return super().add_argument(*names, **{"action": _Once} | options)

    def parse_args(self, argv: Any, namespace: Any = None) -> Any:
        options, unknown = self.parse_known_intermixed_args(passwords.take(argv), namespace)
        if unknown:
            known = [name for name in self._option_string_actions if name.startswith("--")]
            self.error(f"{' '.join(unknown)}: no such option; known: {', '.join(known)}")
        return options

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise HelpShown  # after --help

    def error(self, message: str) -> NoReturn:
        raise InputError(f"command line: {message}; see {self.prog} --help")


class _Once(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, value: Any, option_string: str | None = None) -> None:
        if getattr(namespace, self.dest) is not self.default:
            raise argparse.ArgumentError(self, "is set twice; set it once")
        setattr(namespace, self.dest, value)


def run_command(main: Callable[[list[str]], int]) -> NoReturn:
    """Run a command on this process's arguments and end with its exit code."""
    signals.install_handler(signals.raise_stopped)
    try:
        with signals.component_code():  # wherever a command may run some: none ends it as if all were done
            code = main(sys.argv[1:])
    except HelpShown:
        code = 0
    except InputError as error:
        sys.stdout.flush()
        for message in error.messages:
            print(f"error: {message}", file=sys.stderr)
        code = 2
    except signals.Stopped as stopped:
        print(stopped, file=sys.stderr)
        code = stopped.exit_code
    except BrokenPipeError:  # whoever read our output has had enough
        sys.stderr.close()
        code = 1
    sys.exit(code)
