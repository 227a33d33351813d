"""Files that others may read at any time."""

import pytest

from transformer_pl.runtime.files import unfinished, write_atomically


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
