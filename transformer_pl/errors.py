"""What a user did wrong, told once and in full; and what a command ends with."""

import sys
from collections.abc import Callable
from typing import NoReturn


class InputError(ValueError):
    """Input that breaks a law: exit code 2, nothing started.

    Each message names the place, the law, the value and the remedy. Several mistakes are told together.
    """

    def __init__(self, *messages: str):
        self.messages = tuple(dict.fromkeys(messages))
        super().__init__("\n".join(self.messages))


def run(main: Callable[[list[str]], int]) -> NoReturn:
    """Run a command on this process's arguments and end with its exit code."""
    try:
        code = main(sys.argv[1:])
    except InputError as error:
        sys.stdout.flush()
        for message in error.messages:
            print(f"error: {message}", file=sys.stderr)
        code = 2
    except BrokenPipeError:  # whoever read our output has had enough
        sys.stderr.close()
        code = 1
    sys.exit(code)
