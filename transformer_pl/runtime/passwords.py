"""Passwords in the URLs of a command line, where every user of the machine can read them (`ps`).

The package imports this module first, before anything that takes time. So it imports next to nothing.
"""

import os
import re
import sys

PASSWORD = "TRANSFORMER_PL_STORAGE_PASSWORD"  # an environment variable, which other users of a machine cannot read
PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))  # where the commands lie
HIDDEN = "***"  # replaces whatever a password cannot be told apart from

_STORAGE = re.compile(r"--?st\w*", re.I)  # also where --storage is misspelt
_USER = re.compile(r"([^:/]*)(?::([^@]*))?@")  # as SQLAlchemy reads USER:PASSWORD@
_HOST = re.compile(r"(\[[^\]/?]*\]|[^:/?@]*)(:\d*)?(?=[/?]|\Z)")
_MISPLACED = re.compile(r":[^@]*@|[?&;][^=&]*(pass(?!file)|pwd|secret|token)[^=&]*=", re.I)  # in the rest of a URL

_password: str | None = None


def hide() -> None:
    """Begin this process anew without the passwords on its command line, where it runs a command of this package."""
    global _password
    if not _is_command():
        return
    words = take(sys.orig_argv)
    if words != sys.orig_argv:
        if _password:
            os.environ[PASSWORD] = _password
        os.execv(sys.executable, words)
    _password = os.environ.pop(PASSWORD, None)  # no process that is started from here on has it


def take(words: list[str]) -> list[str]:
    """The words of a command line without passwords. The one of `--storage` is kept for `password`.

    Where a password cannot be told from what surrounds it, all of that is HIDDEN. Taking twice changes nothing more.
    """
    global _password
    bare: list[str] = []
    for previous, word in zip(["", *words], words, strict=False):
        option, _, value = word.partition("=")
        if "://" in word:
            word, password = _split(word)
            if password and (previous == "--storage" or option == "--storage"):
                _password = password
        elif _STORAGE.fullmatch(previous) and not word.startswith("-"):
            word = HIDDEN  # no URL, whatever else it may be
        elif value and _STORAGE.fullmatch(option):
            word = f"{option}={HIDDEN}"
        bare.append(word)
    return bare


def password() -> str | None:
    """The password of the storage: from the command line, or from the environment."""
    return _password or os.environ.get(PASSWORD)


def _split(url: str) -> tuple[str, str | None]:
    """A URL without its password, and the password, decoded."""
    from urllib.parse import unquote  # needed only where there is a URL

    scheme, _, rest = url.partition("://")
    user = _USER.match(rest)
    after = rest[user.end() :] if user else rest
    encoded = user[2] if user else None
    ambiguous = encoded is not None and ("@" in after or "\0" in unquote(encoded))
    if ambiguous or not _HOST.match(after) or _MISPLACED.search(unquote(after)):
        return f"{scheme}://{HIDDEN}", None
    if encoded is None:
        return url, None
    return f"{scheme}://{user[1]}@{after}", unquote(encoded)


def _is_command() -> bool:
    """Whether this process runs `python -m transformer_pl.NAME`, perhaps under a profiler, or NAME.py itself."""
    by_name = any(word.startswith(("transformer_pl.", "-mtransformer_pl.")) for word in sys.orig_argv)
    return by_name or os.path.dirname(os.path.realpath(sys.argv[0])) == PACKAGE
