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
"""Endings that may be taken off a word, and what takes their place, for each part of speech: morphy(7WN)."""

_LETTERS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}

_KINDS = {"1": "noun", "2": "verb", "3": "adj", "4": "adv", "5": "adj"}
"""The part of speech in the key of a sense: senseidx(5WN)."""


def wordnet_table(
    folder: str | Path, texts: Mapping[str, str], depths: Sequence[int] = (6, 3, 0), min_words: int = 1
) -> dict[str, list[str]]:
    """The ancestors of each token that WordNet knows, at given depths, the nearest first.

    A token's text, in lower case, is looked up as it is and without its ending; of the parts of speech that have it,
    the one counts whose first sense is the most frequent. From that sense the first hypernym leads upwards (for a
    satellite adjective, the head of its cluster), so that every sense has one parent. Depth 0 is the part of speech,
    depth 1 the sense without a hypernym, such as ``entity.n.01``. A chain too short for a depth gives its lowest
    sense. WordNet has no pronouns, articles and conjunctions, and takes some for rare nouns of the same spelling.

    Args:
        folder: with ``index.noun``, ``data.noun``, ``noun.exc`` and those of verb, adj and adv, and ``cntlist.rev``, of
            WordNet 3.0 or 3.1.
        texts: token, as in the vocabulary -> its text. Blanks around it do not count.
        depths: one per level of clusters, the finest first, so decreasing.
        min_words: fewest tokens at or below a sense; those of one with fewer join the sense above it.

    Returns:
        For each known token one name per depth, such as ``dog.n.01``: lemma, part of speech, number of the sense.

    Raises:
        FileNotFoundError: one of the files is missing.
        ValueError: depths negative or not decreasing, min_words below 1, a line that is not WordNet's, a sense above
            itself, no token found.

    Source: wndb(5WN), the description of the files that comes with WordNet.
    """
    chosen = [check_count(f"depths[{i}]", depth, 0) for i, depth in enumerate(depths)]
    require(
        len(chosen) > 0 and all(fine > coarse for fine, coarse in pairwise(chosen)),
        f"depths is {chosen}, must hold one depth per level of clusters, decreasing",
    )
    check_count("min_words", min_words)
    chains = _chains(Path(folder), texts)
    require(len(chains) > 0, f"texts has {len(texts)} tokens, but WordNet in {folder} knows none of them")
    size = Counter(name for chain in chains.values() for name in chain)
    table = {}
    for token, (part_of_speech, *senses) in chains.items():
        # a sense has at most as many words as the one above it: what is kept is the upper end of the chain
        kept = [part_of_speech, *(name for name in senses if size[name] >= min_words)]
        table[token] = [kept[min(depth, len(kept) - 1)] for depth in chosen]
    return table


def _chains(folder: Path, texts: Mapping[str, str]) -> dict[str, list[str]]:
    """What stands above each token that is known, from the part of speech down to its sense."""
    parts, frequency = [_Part(folder, name) for name in _ENDINGS], _frequencies(folder / "cntlist.rev")
    chains = {}
    for token, text in texts.items():
        lemma = "_".join(text.lower().split())
        found = [(part, base) for part in parts if (base := part.base(lemma)) is not None]
        if found:
            part, base = max(found, key=lambda sense: frequency.get((sense[0].name, sense[1]), 0))
            chains[token] = part.chain(base)
    return chains


class _Part:
    """One part of speech: the senses of each lemma, the most frequent first, and what stands above each."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.senses: dict[str, list[str]] = {}
        self.irregular: dict[str, list[str]] = {}
        self.lemmas: dict[str, str] = {}  # the first one of each sense, a sense being its offset in the file
        self.above: dict[str, str | None] = {}
        _read(folder / f"index.{name}", self._index)
        _read(folder / f"data.{name}", self._data)
        _read(folder / f"{name}.exc", self._exception)

    def base(self, lemma: str) -> str | None:
        """The lemma, or the one of which it is a form."""
        endings = (pair.split(":") for pair in _ENDINGS[self.name].split())
        regular = (lemma.removesuffix(old) + new for old, new in endings if lemma.endswith(old))
        return next((form for form in (lemma, *self.irregular.get(lemma, ()), *regular) if form in self.senses), None)

    def chain(self, lemma: str) -> list[str]:
        """Names of what stands above the first sense of a lemma, from the part of speech down to the sense itself."""
        path = [self.senses[lemma][0]]
        while (up := self.above[path[-1]]) is not None:
            require(up not in path, f"data.{self.name} has {self._sense(up)} above itself, must be without loops")
            path.append(up)
        return [self.name, *(self._sense(offset) for offset in reversed(path))]

    def _sense(self, offset: str) -> str:
        lemma = self.lemmas[offset]
        return f"{lemma}.{_LETTERS[self.name]}.{self.senses[lemma].index(offset) + 1:02}"

    def _index(self, fields: list[str]) -> None:
        # lemma, part of speech, number of senses, number of pointers, pointers, two counts, senses
        self.senses[fields[0]] = fields[-int(fields[2]) :]

    def _data(self, fields: list[str]) -> None:
        # sense, file, type, number of words in hex, word and id for each, number of pointers, four fields for each
        count = 4 + 2 * int(fields[3], 16)
        pointers = fields[count + 1 : count + 1 + 4 * int(fields[count])]
        upwards = ("&",) if fields[2] == "s" else ("@", "@i")
        self.lemmas[fields[0]] = fields[4].partition("(")[0].lower()  # adjectives may end in (a), (p) or (ip)
        edges = zip(pointers[::4], pointers[1::4], strict=True)
        self.above[fields[0]] = next((offset for symbol, offset in edges if symbol in upwards), None)

    def _exception(self, fields: list[str]) -> None:
        self.irregular[fields[0]] = fields[1:]


def _frequencies(path: Path) -> dict[tuple[str, str], int]:
    """How often the first sense of a lemma was found in texts, by part of speech and lemma."""
    found: dict[tuple[str, str], int] = {}

    def take(fields: list[str]) -> None:
        key, number, count = fields
        if number == "1":
            lemma, _, rest = key.partition("%")
            found[_KINDS[rest[0]], lemma] = int(count)

    _read(path, take)
    return found


def _read(path: Path, take: Callable[[list[str]], None]) -> None:
    """Hands the fields of every line to ``take``, without the licence at the head and the explanations."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if line.startswith("  "):
                continue
            try:
                take(line.partition(" | ")[0].split())
            except (ValueError, IndexError, KeyError):
                raise ValueError(f"{path}, line {number} is not as WordNet has it: {line[:40]!r}") from None
