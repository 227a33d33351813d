"""Passwords on the command line: out of the process's title at once, and never printed, however they are spelt."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from helpers import ROOT, command
from sqlalchemy import make_url

from tests.search.test_search import content
from transformer_pl import complexity, report, sweep, translate
from transformer_pl.runtime import passwords
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.passwords import HIDDEN, PASSWORD, take

SECRET = "s3cret"
PLAIN = f"postgresql+psycopg://me:{SECRET}@127.0.0.1:1/x"
RIGHT = [  # with a password that SQLAlchemy reads as well
    PLAIN,
    f"postgresql://me:{SECRET}@h",
    f"POSTGRESQL://me:{SECRET}@h/x",
    f"postgresql://me:%73{SECRET}%40%2F%3A@h/x",
    f"postgresql://me:{SECRET}:{SECRET}/{SECRET}?{SECRET}#{SECRET} {SECRET}@h:5432/x?options=y",
    f"postgresql://me@server:{SECRET}@h/x",
    f"postgresql://me:{SECRET}@[::1]:5432/x",
    f"postgresql://me://{SECRET}@h/x",
    f"postgresql://me:{SECRET}@/x?host=/tmp&passfile=/x",
    f"sqlite+pysqlcipher://:{SECRET}@/x.db",
]
WRONG = [  # where a password cannot be told from the rest, or stands where it does not belong
    f"postgresql://me:{SECRET}@{SECRET}@h/x",
    f"postgresql://me:{SECRET}@{SECRET}/{SECRET}@h/x",
    f"postgresql://h/x?user=me&password={SECRET}",
    f"postgresql://h/x?PASSWD={SECRET}",
    f"postgresql://me@h/x?p%61ssword={SECRET}",
    f"postgresql://me@h:{SECRET}/x",
    f"postgresql://me:{SECRET}",
    f"postgresql://me:{SECRET}@h:54x/x",
    f"postgresql:///me:{SECRET}@h/x",
    f"postgresql://me:%00{SECRET}@h/x",
    f"mssql+pyodbc://?odbc_connect=DRIVER%3Dx%3BPWD%3D{SECRET}",
]
NO_URL = [  # which are recognised as the value of an option alone
    f"postgresql:/me:{SECRET}@h/x",
    f"postgresql//me:{SECRET}@h/x",
    f"me:{SECRET}@h/x",
    f"host=h user=me password={SECRET}",
]
WITHOUT = [  # which stay as they are
    "postgresql://me@h:5432/x?options=y",
    "postgresql://me@server@h/x",
    "postgresql://h/x",
    "sqlite://",
    "sqlite:////home/me@there/study.db",
    "sqlite:///study.db",
    "nonsense://",
    "sweeps/table3_A.yaml",
    "data.path=/texts/a:b@c",
    "--set",
]
OPTIONS = ["--storage", "--stor", "--Storage", "-storage", "--st"]


def spelt(url):
    """All the ways to give this URL as the storage, and for what it is not."""
    for option in OPTIONS:
        yield [option, url]
        yield [f"{option}={url}"]
    if "://" in url:
        yield from ([url], ["--scale", url], ["--set", f"storage={url}"], [f"--url={url}"], ["-s", url])


@pytest.fixture(autouse=True)
def no_password(monkeypatch):
    monkeypatch.setattr(passwords, "_password", None)
    monkeypatch.delenv(PASSWORD, raising=False)


@pytest.mark.parametrize("url", RIGHT + WRONG + NO_URL)
def test_a_password_is_taken_from_any_word(url):
    for words in spelt(url):
        taken = take(["FILE", *words, "--plan"])
        assert SECRET not in "".join(taken), taken
        assert take(taken) == taken
        assert (taken[0], taken[-1], len(taken)) == ("FILE", "--plan", len(words) + 2)


@pytest.mark.parametrize("url", RIGHT)
def test_what_is_left_of_a_url_and_what_is_taken_are_what_sqlalchemy_reads(url):
    for words in (["--storage", url], [f"--storage={url}"]):
        passwords._password = None
        bare = make_url(take(words)[-1].removeprefix("--storage="))
        assert bare.set(password=passwords.password()) == make_url(url)


@pytest.mark.parametrize("url", RIGHT)
def test_a_password_of_another_option_is_not_that_of_the_storage(url):
    take(["--runs", url, f"--set=a={url}", url])
    assert passwords.password() is None


def test_words_without_a_password_stay_as_they_are():
    assert take(WITHOUT) == WITHOUT
    for url in WITHOUT[:6]:
        assert take(["--storage", url]) == ["--storage", url]
    assert take(["--storage", "--plan", "FILE"]) == ["--storage", "--plan", "FILE"]


@pytest.mark.parametrize("main", [sweep.main, report.main, translate.main, complexity.main], ids=lambda m: m.__module__)
def test_no_mistake_prints_a_password(main, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "search.yaml").write_text(yaml.safe_dump(content(), sort_keys=False))
    for url in [PLAIN, *WRONG, *NO_URL]:
        for words in spelt(url):
            if words[0].startswith("--storage") and url == PLAIN:  # not a mistake
                continue
            with pytest.raises((InputError, FileNotFoundError)) as error:
                main(["search.yaml", *words])
            printed = capsys.readouterr()
            assert SECRET not in str(error.value) + printed.out + printed.err, words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sweep", ["search.yaml", f"--storage={PLAIN}", "--plan", "--storage", PLAIN]),
        ("sweep", ["search.yaml", f"--storage={WRONG[0]}"]),
        ("sweep", ["search.yaml", "--stora", PLAIN]),
        ("sweep", [PLAIN]),
        ("report", ["search.yaml", f"--storage={PLAIN}"]),
        ("report", ["search.yaml", f"--storage={WRONG[0]}"]),
        ("report", ["sweeps/smoke.yaml", "--storage", PLAIN]),
        ("train", [f"--storage={PLAIN}"]),
        ("train", ["--model.h", PLAIN]),
        ("train", ["--storage", NO_URL[0]]),
    ],
)
def test_no_command_prints_a_password(name, words, tmp_path):
    search = tmp_path / "search.yaml"
    search.write_text(yaml.safe_dump(content(), sort_keys=False))
    words = [search if word == "search.yaml" else word for word in words]
    completed = command(name, *words, *([] if name == "train" else ["--runs", tmp_path]))
    assert completed.returncode == 2 and "error: " in completed.stderr and "Traceback" not in completed.stderr, (
        completed.stderr
    )
    assert SECRET not in completed.stdout + completed.stderr


@pytest.fixture
def silent():
    """The URL of a database that takes connections and never answers: whoever opens it waits."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"postgresql+psycopg://me:{SECRET}@127.0.0.1:{server.getsockname()[1]}/x"


@pytest.mark.parametrize(
    "started",
    [
        ["-m", "transformer_pl.sweep"],
        ["-X", "faulthandler", "-m", "transformer_pl.sweep"],
        ["-m", "cProfile", "-m", "transformer_pl.sweep"],
        ["transformer_pl/sweep.py"],
    ],
    ids=" ".join,
)
def test_a_password_leaves_the_title_before_anything_is_loaded(silent, started, tmp_path):
    """Other users read the title in `ps`. What a process has loaded stands in its memory map: numpy is there soon."""
    search = tmp_path / "search.yaml"
    search.write_text(yaml.safe_dump(content(), sort_keys=False))
    words = [sys.executable, *started, str(search), "--storage", silent]
    with subprocess.Popen([*words, "--runs", str(tmp_path / "runs")], cwd=ROOT) as process:
        try:
            folder, deadline, were = Path("/proc", str(process.pid)), time.monotonic() + 120, True
            while time.monotonic() < deadline:
                loaded = "numpy" in (folder / "maps").read_text()
                title = (folder / "cmdline").read_text()
                if not title:  # in the middle of an exec it is empty for an instant
                    continue
                shown = SECRET in title
                assert not (shown and loaded)
                were = were and shown
                assert were or not shown  # and it does not come back
                if loaded:
                    break
            assert loaded
            bare = silent.replace(f":{SECRET}", "")
            assert (folder / "cmdline").read_text().split("\0")[-5:-3] == ["--storage", bare]
        finally:
            process.kill()


def test_importing_the_package_loads_nothing_but_what_hides_passwords():
    program = "import sys; before = set(sys.modules); import transformer_pl; print(*set(sys.modules) - before)"
    completed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in completed.stdout.split()}
    assert loaded - set(sys.stdlib_module_names) == {"transformer_pl"}
    assert set(completed.stdout.split()) >= {"transformer_pl.runtime.passwords"}


def test_a_program_of_another_package_is_not_begun_anew():
    """It may have done something already that must not be done twice."""
    program = "print('once', flush=True); import transformer_pl, sys; print(sys.argv[1])"
    words = [sys.executable, "-c", program, PLAIN]
    completed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert completed.stdout.split() == ["once", PLAIN]


def test_no_process_that_a_command_starts_has_the_password(tmp_path):
    """It is in the environment of the command alone, whoever has put it there."""
    part = tmp_path / "shows_part.py"
    part.write_text(
        "import os\n\nfrom transformer_pl.model import SinusoidalPosition\n\n"
        f"assert {PASSWORD!r} not in os.environ\n\n\nclass Shows(SinusoidalPosition):\n    pass\n"
    )
    words = ["--model.position=shows_part.Shows", "--model.h=3", f"--runs={tmp_path}"]
    completed = command("train", *words, PYTHONPATH=str(tmp_path), **{PASSWORD: SECRET})
    assert completed.returncode == 2 and "h = 3" in completed.stderr and "AssertionError" not in completed.stderr, (
        completed.stderr
    )


def test_hidden_is_no_storage(tmp_path):
    search = tmp_path / "search.yaml"
    search.write_text(yaml.safe_dump(content(), sort_keys=False))
    for url in (f"postgresql://{HIDDEN}", HIDDEN):
        with pytest.raises(
            InputError, match="must be a URL that Optuna takes, such as postgresql://USER:PASSWORD@HOST"
        ):
            sweep.main([str(search), "--runs", str(tmp_path / "runs"), "--storage", url])
