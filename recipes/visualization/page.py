"""One page of HTML that shows texts on their way from noise, with nothing outside of it."""

import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from ddlib.plot.colors import level_names
from ddlib.processes import ForwardProcess
from recipes.console import sign
from recipes.embeddings.naming import cluster_names
from recipes.model_io import LoadedModel
from recipes.visualization.filmed import Event, Text


class Spelt(NamedTuple):
    """What a state looks like."""

    text: str
    """Of a word with the space before it, if it brings one."""
    special: bool = False
    """Whether it is a word that stands for no text."""


Spell = Callable[[int], Spelt]

ESCAPED = {ord(one): f"\\u{ord(one):04x}" for one in "<>&\u2028\u2029"}
"""In a script these could end it, or a line; in JSON they can be spelt so."""


def write_page(
    path: Path,
    saved: LoadedModel,
    shown: Sequence[tuple[int | str, Text, int]],
    title: str,
    about: Mapping[str, Any],
) -> None:
    """Writes the page.

    Args:
        path: of the page.
        saved: the model that the texts were drawn from.
        shown: of each sample its number or name, its text on its way, and the position of its end.
        title: of the page.
        about: how they were drawn, by name.
    """
    names = cluster_names(saved.process, saved.model, saved.clusters, saved.tokenizer)
    film = pack(
        [text for _, text, _ in shown], [end for *_, end in shown], saved.process, speller(saved.tokenizer, names)
    )
    numbers = {"numbers": [number for number, _, _ in shown]}
    path.write_text(page(title, about, numbers | film), encoding="utf-8")


def page(title: str, about: Mapping[str, Any], film: Mapping[str, Any]) -> str:
    """The page with all that it needs: its style, its script, and what ``pack`` made."""
    room = files("recipes.visualization")
    told = [[name, "none" if value is None else str(value)] for name, value in about.items()]
    parts = {
        "title": html.escape(title),
        "style": (room / "page.css").read_text(encoding="utf-8"),
        "script": (room / "page.js").read_text(encoding="utf-8"),
        "film": in_script({"about": told, **film}),
    }
    whole = (room / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: parts[slot[1]], whole)


def in_script(value: Any) -> str:
    """JSON that nothing in it can lead out of the script that it stands in."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).translate(ESCAPED)


def pack(texts: Sequence[Text], ends: Sequence[int], process: ForwardProcess, spell: Spell) -> dict[str, Any]:
    """What the page's script reads: states are spelt once, of the steps stands what changed in them.

    Args:
        texts: to be shown.
        ends: position of each text's end, its length where it has none.
        process: says which level a state is of.
        spell: writes a state.

    Returns:
        ``levels``: [name, size] each; ``states``: [text, level, special] each; ``texts``: of each its ``start``, the
        ``given`` positions, its ``end``, and ``frames`` as [t, calls, event, ...] with events [position, state, mark,
        chance, other, its chance, ...]. States are numbers in ``states``.
    """
    number: dict[int, int] = {}

    def short(state: int) -> int:
        return number.setdefault(state, len(number))

    def event(one: Event) -> list[Any]:
        chance = None if one.chance is None else rounded(one.chance)
        drawn = [one.position, short(one.state), int(one.mark), chance]
        return drawn + [value for state, p in one.others for value in (short(state), rounded(p))]

    shown = [
        {
            "start": [short(state) for state in text.start],
            "given": text.given,
            "end": end,
            "frames": [[round(t, 6), calls, *map(event, events)] for t, calls, events in text.frames],
        }
        for text, end in zip(texts, ends, strict=True)
    ]
    bounds = [sum(process.levels[: level + 1]) for level in range(len(process.levels))]
    level = {state: next(i for i, bound in enumerate(bounds) if state < bound) for state in number}
    return {
        "levels": [list(pair) for pair in zip(level_names(process), process.levels, strict=True)],
        "states": [[text, level[state], int(special)] for state in number for text, special in [spell(state)]],
        "texts": shown,
    }


def rounded(chance: float) -> float:
    """To three digits, which is more than anybody reads."""
    return float(f"{chance:.3g}")


def speller(tokenizer: Tokenizer, names: Sequence[str]) -> Spell:
    """Writes words as they stand behind another one, special ones by their names, all else as the terminal does.

    Args:
        tokenizer: spells the words.
        names: of the clusters, in the order of their states.
    """
    size = tokenizer.get_vocab_size()
    plain = (word for word in range(size) if tokenizer.decode([word]).strip().isalpha())
    other = next(plain, 0)
    before = tokenizer.decode([other])

    def spell(state: int) -> Spelt:
        if state >= size:
            return Spelt(sign(state, size, names))
        alone, behind = tokenizer.decode([state]), tokenizer.decode([other, state])
        text = behind.removeprefix(before) if behind.startswith(before) else alone
        return Spelt(text.replace("\n", "¶\n")) if text else Spelt(f" {tokenizer.id_to_token(state)}", True)

    return spell
