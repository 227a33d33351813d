"""Files that others may read at any time; YAML that is read strictly."""

import os
from contextlib import suppress

import pytest

from transformer_pl.config import Data
from transformer_pl.data.files import folder_corpus
from transformer_pl.data.prepared import Prepared
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import (
    open_to_append,
    read_bytes,
    read_json,
    read_text,
    read_yaml,
    unfinished,
    write_atomically,
)
from transformer_pl.trials.metrics import read_metrics
from transformer_pl.trials.trial_folder import TrialFolder


@pytest.mark.parametrize(
    "text", ["a: " + "[" * 5000 + "]" * 5000, "a:\n" + "- " * 5000 + "x", "? " * 5000, "a: 1\na: 2"]
)
def test_what_yaml_cannot_read_is_one_message_with_the_name_of_the_file(tmp_path, text):
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=f"^{path}") as refused:
        read_yaml(path)
    assert len(refused.value.messages) == 1 and len(str(refused.value)) < 500


@pytest.mark.parametrize("endless", ["/dev/zero", "/dev/urandom"])
def test_a_file_that_has_no_end_is_refused(tmp_path, capsys, endless):
    link = tmp_path / "file"
    link.symlink_to(endless)
    with pytest.raises(OSError):
        read_text(link)
    with pytest.raises(InputError, match=str(link)):
        read_yaml(link)
    assert read_json(link) == {} and str(link) in capsys.readouterr().err


def test_an_alias_stands_for_its_value(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text("a: &a [1, two]\nb: *a\nc: &c {d: *a, e: &e 3}\nf: [*c, *e]\n")
    one, two = [1, "two"], {"d": [1, "two"], "e": 3}
    assert read_yaml(path) == {"a": one, "b": one, "c": two, "f": [two, 3]}


def test_a_reader_has_the_old_text_or_the_new_one(tmp_path):
    """Whoever has opened the file reads what it was, to its end."""
    path = tmp_path / "file"
    write_atomically(path, "the old text")
    with path.open() as file:
        write_atomically(path, "new")
        assert file.read() == "the old text" and path.read_text() == "new"


def test_what_is_not_written_to_its_end_leaves_no_trace(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, "the old text")
    with pytest.raises(ZeroDivisionError), unfinished(path) as part:
        part.write_text("half of the n")
        raise ZeroDivisionError
    assert path.read_text() == "the old text" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "read",
    [
        read_bytes,
        read_json,
        read_metrics,
        lambda path: folder_corpus(path.parent, Data()),
        lambda path: Prepared(path.parent).meta,
        lambda path: Prepared(path.parent).split("val"),
        lambda path: TrialFolder(path.parent).hypotheses("val"),
        lambda path: TrialFolder(path.parent).weights(),
        lambda path: TrialFolder(path.parent).log_end(),
        lambda path: TrialFolder(path.parent).result(),
        open_to_append,
    ],
)
@pytest.mark.filterwarnings("ignore:.*cannot be read")
def test_a_pipe_is_not_waited_for(tmp_path, read):
    """It is refused by its name, or counts as nothing."""
    names = ("val.en", "meta.json", "val.source.tokens", "hyp.val.txt", "weights.safetensors", "log.txt", "result.json")
    for name in (*names, "val.de", "train.en", "train.de", "test.en", "test.de", "any"):
        os.mkfifo(tmp_path / name)
    found = None
    with suppress(OSError):
        try:
            found = read(tmp_path / "any")
        except InputError as error:
            assert str(tmp_path) in str(error)
    assert not found
