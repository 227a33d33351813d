"""Files that others may read at any time; YAML that is read strictly, and cannot grow beyond its file."""

import tracemalloc

import pytest

from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import read_json, read_text, read_yaml, unfinished, write_atomically

DEEP = 5000


def laughing(value, begin, end):
    """Each of forty values holds ten aliases of the one before it."""
    lines = [f"a0: &a0 {value}"]
    for n in range(1, 40):
        entries = [f"k{i}: *a{n - 1}" if begin == "{" else f"*a{n - 1}" for i in range(10)]
        lines.append(f"a{n}: &a{n} {begin}{', '.join(entries)}{end}")
    return "\n".join(lines)


TOO_MUCH = {
    "laughing lists": laughing("[x, x]", "[", "]"),
    "laughing mappings": laughing("{x: 1}", "{", "}"),
    "closed brackets": "a: " + "[" * DEEP + "]" * DEEP,
    "indented": "".join("  " * n + "a:\n" for n in range(1000)),
    "dashes": "a:\n" + "- " * DEEP + "x",
    "keys": "? " * DEEP + "a",
    "itself": "a: &a [*a]",
    "itself, below": "a: &a {b: [1, {c: *a}]}",
}


@pytest.mark.parametrize("text", TOO_MUCH.values(), ids=TOO_MUCH)
def test_what_would_grow_or_go_deep_without_end_is_refused(tmp_path, text):
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    tracemalloc.start()
    with pytest.raises(InputError, match=rf"^{path} line \d+: ") as refused:
        read_yaml(path)
    assert tracemalloc.get_traced_memory()[1] < 2e7
    tracemalloc.stop()
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
