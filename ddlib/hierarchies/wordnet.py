"""Ancestors of words in the files of Princeton's WordNet: a table for ``table_parents``."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from ddlib.utils.validation import check_count, require

_ENDINGS = {
    "noun": "s: ses:s xes:x zes:z ches:ch shes:sh men:man ies:y",
    "verb": "s: ies:y es:e es: ed:e ed: ing:e ing:",
    "adj": "er: est: er:e est:e",
    "adv": "",
}
"""Endings of words and their replacements, ``old:new``, for each part of speech: morphy(7WN)."""

_LETTERS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}

_KINDS = {"1": "noun", "2": "verb", "3": "adj", "4": "adv", "5": "adj"}
"""Part of speech by the digit in the key of a sense: senseidx(5WN)."""


def wordnet_table(
    folder: str | Path,
    texts: Mapping[str, str],
    depths: Sequence[int] = (6, 3, 0),
    min_words: int = 1,
) -> dict[str, list[str]]:
    """Find the ancestors of each token in WordNet, at given depths, the nearest first.

    A token's text, in lower case, is looked up as it is and without its ending. Among the parts of
    speech that have it, the one whose first sense is most frequent is used. The parent of a sense
    is its first hypernym (for a satellite adjective, the head of its cluster), so every sense has
    one parent. Depth 0 is the part of speech, depth 1 the sense without a hypernym, such as
    ``entity.n.01``. A chain that is too short for a depth has its lowest sense there. WordNet has
    no pronouns, articles and conjunctions, and some of them are found as rare nouns of the same
    spelling.

    Args:
        folder: folder with ``index.noun``, ``data.noun``, ``noun.exc`` and those of verb, adj and
            adv, and ``cntlist.rev``, of WordNet 3.0 or 3.1.
        texts: text of each token of the vocabulary, by token. Blanks around it are ignored.
        depths: one per level of clusters, the finest first, so decreasing.
        min_words: least number of tokens at or below a sense; tokens of a sense with fewer join its
            parent.

    Returns:
        One name per depth, such as ``dog.n.01``, for each token that is found: lemma, part of
        speech, number of sense.

    Raises:
        FileNotFoundError: one of the files is missing.
        ValueError: depths negative or not decreasing, min_words below 1, a line that is not
            WordNet's, a sense above itself, no token found.

    Source: wndb(5WN), the description of the files that comes with WordNet.
    """
    levels = [check_count(f"depths[{i}]", depth, 0) for i, depth in enumerate(depths)]
    require(
        len(levels) > 0 and all(fine > coarse for fine, coarse in pairwise(levels)),
        f"depths is {levels}, must hold one depth per level of clusters, decreasing",
    )
    check_count("min_words", min_words)
    chains = _chains(Path(folder), texts)
    require(
        len(chains) > 0,
        f"texts has {len(texts)} tokens, none of which is in the WordNet of {folder}",
    )
    size = Counter(name for chain in chains.values() for name in chain)
    table = {}
    for token, (part_of_speech, *senses) in chains.items():
        # a sense has at most as many tokens as the one above it, so the upper end of the chain is
        # kept
        frequent = [part_of_speech, *(name for name in senses if size[name] >= min_words)]
        table[token] = [frequent[min(depth, len(frequent) - 1)] for depth in levels]
    return table


def _chains(folder: Path, texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the chain of each token that is found, from the part of speech down to its sense."""
    parts = [_Part(folder, name) for name in _ENDINGS]
    frequency = _frequencies(folder / "cntlist.rev")
    chains = {}
    for token, text in texts.items():
        lemma = "_".join(text.lower().split())
        senses = [(part, base) for part in parts if (base := part.base(lemma)) is not None]
        if senses:
            part, base = max(senses, key=lambda sense: frequency.get((sense[0].name, sense[1]), 0))
            chains[token] = part.chain(base)
    return chains


class _Part:
    """One part of speech: the senses of each lemma, the most frequent first, and the parent of each
    sense.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.senses: dict[str, list[str]] = {}
        self.irregular: dict[str, list[str]] = {}
        # the first one of each sense, a sense being its offset in the file
        self.lemmas: dict[str, str] = {}
        self.above: dict[str, str | None] = {}
        _read(folder / f"index.{name}", self._index)
        _read(folder / f"data.{name}", self._data)
        _read(folder / f"{name}.exc", self._exception)

    def base(self, lemma: str) -> str | None:
        """Return the lemma, or the lemma of which it is a form; None if there is none."""
        endings = (pair.split(":") for pair in _ENDINGS[self.name].split())
        regular = (lemma.removesuffix(old) + new for old, new in endings if lemma.endswith(old))
        return next(
            (
                form
                for form in (lemma, *self.irregular.get(lemma, ()), *regular)
                if form in self.senses
            ),
            None,
        )

    def chain(self, lemma: str) -> list[str]:
        """Return the names from the part of speech down to the first sense of a lemma."""
        path = [self.senses[lemma][0]]
        while (up := self.above[path[-1]]) is not None:
            require(
                up not in path,
                f"data.{self.name} has {self._sense(up)} as its own ancestor, must be without "
                "cycles",
            )
            path.append(up)
        return [self.name, *(self._sense(offset) for offset in reversed(path))]

    def _sense(self, offset: str) -> str:
        lemma = self.lemmas[offset]
        return f"{lemma}.{_LETTERS[self.name]}.{self.senses[lemma].index(offset) + 1:02}"

    def _index(self, fields: list[str]) -> None:
        # lemma, part of speech, number of senses, number of pointers, pointers, two counts, senses
        self.senses[fields[0]] = fields[-int(fields[2]) :]

    def _data(self, fields: list[str]) -> None:
        # sense, file, type, number of words in hex, word and id for each, number of pointers, four
        # fields for each
        count = 4 + 2 * int(fields[3], 16)
        pointers = fields[count + 1 : count + 1 + 4 * int(fields[count])]
        upwards = ("&",) if fields[2] == "s" else ("@", "@i")
        # adjectives may end in (a), (p) or (ip)
        self.lemmas[fields[0]] = fields[4].partition("(")[0].lower()
        edges = zip(pointers[::4], pointers[1::4], strict=True)
        self.above[fields[0]] = next(
            (offset for symbol, offset in edges if symbol in upwards), None
        )

    def _exception(self, fields: list[str]) -> None:
        self.irregular[fields[0]] = fields[1:]


def _frequencies(path: Path) -> dict[tuple[str, str], int]:
    """Return the frequency of the first sense of a lemma in texts, by part of speech and lemma."""
    counts: dict[tuple[str, str], int] = {}

    def take(fields: list[str]) -> None:
        key, number, count = fields
        if number == "1":
            lemma, _, sense = key.partition("%")
            counts[_KINDS[sense[0]], lemma] = int(count)

    _read(path, take)
    return counts


def _read(path: Path, take: Callable[[list[str]], None]) -> None:
    """Call ``take`` with the fields of every line, without the licence at the head and the
    glosses.
    """
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if line.startswith("  "):
                continue
            try:
                take(line.partition(" | ")[0].split())
            except (ValueError, IndexError, KeyError):
                raise ValueError(
                    f"{path}, line {number} is not in the format of WordNet: {line[:40]!r}"
                ) from None
