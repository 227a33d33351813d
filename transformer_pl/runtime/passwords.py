"""Remove passwords from the command line, where every user of the machine can read them (`ps`).

The package imports this module first, before slow imports, so this module imports little itself.
"""

import os
import re
import sys

PASSWORD = "TRANSFORMER_PL_STORAGE_PASSWORD"  # an environment variable, which other users of a machine cannot read
PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))  # where the commands lie
HIDDEN = "***"  # replaces text that cannot be told apart from a password

_STORAGE = re.compile(r"--?st\w*", re.I)  # also where --storage is misspelt
_USER = re.compile(r"([^:/]*)(?::([^@]*))?@")  # as SQLAlchemy reads USER:PASSWORD@
_HOST = re.compile(r"(\[[^\]/?]*\]|[^:/?@]*)(:\d*)?(?=[/?]|\Z)")
_MISPLACED = re.compile(r":[^@]*@|[?&;][^=&]*(pass(?!file)|pwd|secret|token)[^=&]*=", re.I)  # in the rest of a URL

_password: str | None = None


def hide() -> None:
    """Start this process again without the passwords on its command line, if it runs a command of this package."""
    global _password
    if not _is_command():
        return
    words = take(sys.orig_argv)
    if words != sys.orig_argv:
        if _password:
            os.environ[PASSWORD] = _password
        os.execv(sys.executable, words)
    _password = os.environ.pop(PASSWORD, None)  # child processes do not inherit it


def take(words: list[str]) -> list[str]:
    """A command line without its passwords. `password` returns the one of `--storage` later.

    Text in which a password cannot be identified becomes HIDDEN as a whole. Applying `take` twice changes nothing more.
    """
    global _password
    clean: list[str] = []
    for previous, word in zip(["", *words], words, strict=False):
        option, _, value = word.partition("=")
        if "://" in word:
            word, password = _split(word)
            if password and (previous == "--storage" or option == "--storage"):
                _password = password
        elif word and _STORAGE.fullmatch(previous) and not word.startswith("-"):
            word = HIDDEN  # not a URL, so a password cannot be identified in it
        elif value and _STORAGE.fullmatch(option):
            word = f"{option}={HIDDEN}"
        clean.append(word)
    return clean


def password() -> str | None:
    """The password of the storage: from the command line, or from the environment."""
    return _password or os.environ.get(PASSWORD)


def _split(url: str) -> tuple[str, str | None]:
    """A URL without its password, and the password, decoded."""
    from urllib.parse import unquote  # needed only where there is a URL

    scheme, _, rest = url.partition("://")
    user = _USER.match(rest)
    name, encoded = (user[1], user[2]) if user else ("", None)
    after = rest[user.end() :] if user else rest
    ambiguous = encoded is not None and ("@" in after or "\0" in unquote(encoded))
    if ambiguous or not _HOST.match(after) or _MISPLACED.search(unquote(after)):
        return f"{scheme}://{HIDDEN}", None
    if encoded is None:
        return url, None
    return f"{scheme}://{name}@{after}", unquote(encoded)


def _is_command() -> bool:
    """Whether this process runs `python -m transformer_pl.NAME`, perhaps under a profiler, or NAME.py itself."""
    by_name = any(word.startswith(("transformer_pl.", "-mtransformer_pl.")) for word in sys.orig_argv)
    return by_name or os.path.dirname(os.path.realpath(sys.argv[0])) == PACKAGE
