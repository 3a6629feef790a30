"""Tokenizer, hierarchy and process must speak of the same tokens."""

from refusals import refuses

import ddlib as dd
from ddlib.vocabulary import fingerprint

WORDS = {"a": 0, "b": 1, "c": 2, "d": 3}


def test_a_fingerprint_is_of_the_content():
    assert fingerprint(WORDS) == fingerprint(dict(reversed(WORDS.items())))
    assert fingerprint(WORDS) != fingerprint({**WORDS, "a": 1, "b": 0})


def test_a_matching_vocabulary_passes():
    tree = dd.hierarchies.Tree([[0, 0, 1, 1]], vocab_size=4, fingerprint=fingerprint(WORDS))
    dd.check_vocabulary(
        dd.processes.Hierarchical(tree, dd.schedules.Linear()), WORDS, pad=3, eos=None
    )
    dd.check_vocabulary(dd.presets.gidd(4, 0.1), WORDS)


def checked(vocabulary, special):
    tree = dd.hierarchies.Tree([[0, 0, 1, 1]], fingerprint=fingerprint(WORDS))
    process = dd.processes.Hierarchical(tree, dd.schedules.Linear())
    return dd.check_vocabulary(process, vocabulary, **special)


test_another_vocabulary_is_refused = refuses(r"""
    checked({**WORDS, "[MASK]": 4}, {}) | ValueError
        | vocabulary has 5 tokens, the process 4 tokens.*mask token
    checked({"a": 0}, {}) | ValueError | vocabulary has 1 tokens, the process 4 tokens
    checked({"a": 0, "b": 1, "c": 2, "d": 7}, {})
        | ValueError | ids 0\.\.7 with gaps or repeats, must have exactly 0\.\.3
    checked(WORDS, {"pad": 4}) | ValueError | pad id is 4, must be a token in \[0, 4\)
    checked(WORDS, {"eos": -1}) | ValueError | eos id is -1, must be a token
    checked({"a": 0, "b": 1, "d": 2, "c": 3}, {}) | ValueError
        | fingerprint .* made for .* another tokenizer
""")
