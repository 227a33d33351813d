"""What a wrong command line gets: the word, and what to write instead."""

import pytest

from transformer_pl import complexity, sweep, translate
from transformer_pl.runtime.errors import InputError


@pytest.mark.parametrize(
    ("main", "words", "message"),
    [
        (sweep.main, "table3_A --seeds 1 2", "--seeds: must be separated by commas: --seeds 1,2; see "),
        (sweep.main, "--seeds 1 2 3 table3_A", "--seeds: must be separated by commas: --seeds 1,2,3; see "),
        (sweep.main, "--seeds=1 2 table3_A", "--seeds: must be separated by commas: --seeds 1,2; see "),
        (complexity.main, "layers --n 32 64", "--n: must be separated by commas: --n 32,64; see "),
        (sweep.main, "a.yaml b.yaml", "b.yaml: one FILE at a time; leave it out; see "),
        (translate.main, "trial a.txt b.txt", "b.txt: one FILE at a time; leave it out; see "),
        (sweep.main, "table3_A --plna", "--plna: no such option; did you mean --plan? see "),
        (sweep.main, "table3_A --prallel=2", "--prallel=2: no such option; did you mean --parallel? see "),
        (sweep.main, "table3_A -zzzzz", "-zzzzz: no such option; known: --help, --version, --scale, "),
        (sweep.main, "table3_A --list", "give FILE or --list, not both; see "),
        (sweep.main, "--clean --schema sweep", "give --clean or --schema, not both; see "),
        (sweep.main, "", "one of FILE, --list, --clean and --schema must be given; see "),
    ],
)
def test_a_wrong_command_line_is_answered_with_the_right_one(main, words, message):
    with pytest.raises(InputError) as caught:
        main(words.split())
    assert str(caught.value).startswith(f"command line: {message}")
