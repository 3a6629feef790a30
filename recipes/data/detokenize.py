"""Detokenisation of corpora that were split into words: "do n't stop , " becomes "don't stop,"."""

import re
from collections.abc import Callable

GLUED = (
    (re.compile(r"\s+(n't|'(?:s|re|ve|ll|d|m))\b", re.IGNORECASE), r"\1"),
    (re.compile(r"``|''"), '"'),
    (re.compile(r"\s+([.,;:!?%)\]}])"), r"\1"),
    (re.compile(r"([(\[{$£€#])\s+"), r"\1"),
    (re.compile(r"(?<=\w)\s*/\s*(?=\w)"), "/"),
    (re.compile(r":\s*/\s*/\s*"), "://"),
    (re.compile(r"\s+'\s+(?=\w)"), "' "),
)
"""Patterns and their replacements, in this order."""

QUOTED = re.compile(r'"\s*([^"]*?)\s*"')


def detokenize_lm1b(text: str) -> str:
    """Restore LM1B's original spacing: clitics, punctuation, brackets and quotes set close."""
    for pattern, close in GLUED:
        text = pattern.sub(close, text)
    text = QUOTED.sub(r'"\1"', text)
    return text.strip()


DETOKENIZERS: dict[str | None, Callable[[str], str]] = {
    None: lambda text: text,
    "lm1b": detokenize_lm1b,
}
"""Detokenizers by their name in a ``Corpus``."""
