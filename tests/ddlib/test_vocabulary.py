"""Tokenizer, hierarchy and process must speak of the same words."""

import pytest

import ddlib as dd
from ddlib.vocabulary import fingerprint

WORDS = {"a": 0, "b": 1, "c": 2, "d": 3}


def test_a_fingerprint_is_of_the_content():
    assert fingerprint(WORDS) == fingerprint(dict(reversed(WORDS.items())))
    assert fingerprint(WORDS) != fingerprint({**WORDS, "a": 1, "b": 0})


def test_a_matching_vocabulary_passes():
    tree = dd.hierarchies.Tree([[0, 0, 1, 1]], vocab_size=4, fingerprint=fingerprint(WORDS))
    dd.check_vocabulary(dd.processes.Hierarchical(tree, dd.schedules.Linear()), WORDS, pad=3, eos=None)
    dd.check_vocabulary(dd.presets.gidd(4, 0.1), WORDS)


@pytest.mark.parametrize(
    "vocabulary, special, message",
    [
        ({**WORDS, "[MASK]": 4}, {}, "vocabulary has 5 tokens, the process 4 words.*mask token"),
        ({"a": 0}, {}, "vocabulary has 1 tokens, the process 4 words"),
        ({"a": 0, "b": 1, "c": 2, "d": 7}, {}, r"ids 0\.\.7 with gaps or repeats, must have exactly 0\.\.3"),
        (WORDS, {"pad": 4}, r"pad id is 4, must be a word in \[0, 4\)"),
        (WORDS, {"eos": -1}, r"eos id is -1, must be a word"),
        ({"a": 0, "b": 1, "d": 2, "c": 3}, {}, "fingerprint .* made for .* another tokenizer"),
    ],
)
def test_another_vocabulary_is_refused(vocabulary, special, message):
    tree = dd.hierarchies.Tree([[0, 0, 1, 1]], fingerprint=fingerprint(WORDS))
    process = dd.processes.Hierarchical(tree, dd.schedules.Linear())
    with pytest.raises(ValueError, match=message):
        dd.check_vocabulary(process, vocabulary, **special)


def test_parents_for_the_mask_are_refused():
    with pytest.raises(ValueError, match=r"parents\[0\] has 4 entries, must have 3: one per word \(the mask"):
        dd.hierarchies.Tree([[0, 0, 1, 1]], vocab_size=3)
