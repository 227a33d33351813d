import gzip

import pytest
from corpora import PAIRS


@pytest.fixture
def folder(tmp_path):
    """A corpus as text files: plain, and gzip for the validation split."""
    folder = tmp_path / "text"
    folder.mkdir()
    for split, pairs in PAIRS.items():
        for language, sentences in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            content = "".join(f"{sentence}\n" for sentence in sentences).encode()
            if split == "val":
                (folder / f"{split}.{language}.gz").write_bytes(gzip.compress(content, mtime=0))
            else:
                (folder / f"{split}.{language}").write_bytes(content)
    return folder
