"""Self-contained HTML page that shows denoising trajectories."""

import html
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from ddlib.contrib import Event, Film
from ddlib.plot import level_names
from ddlib.processes import ForwardProcess
from recipes.console import sign
from recipes.domains.pictures.drawing import Picture, check_shape, palette
from recipes.embeddings.naming import cluster_names
from recipes.model_io import LoadedModel


class Spelt(NamedTuple):
    """Display form of a state."""

    text: str
    """Text of the state, with the space before it, if a token includes one."""
    special: bool = False
    """Whether it is a token that represents no text."""


Spell = Callable[[int], Spelt]

ESCAPED = {ord(one): f"\\u{ord(one):04x}" for one in "<>&\u2028\u2029"}
"""Escapes for characters that could end a script or a line; JSON allows them in this form."""


def write_page(
    path: Path,
    saved: LoadedModel,
    shown: Sequence[tuple[int | str, Film, int]],
    title: str,
    about: Mapping[str, Any],
) -> None:
    """Write the page; samples whose layout has a shape and values are drawn as pictures.

    Args:
        path: path of the page.
        saved: the model of the samples.
        shown: number or name, trajectory and position of the end of each sample.
        title: title of the page.
        about: sampling options, by name.

    Raises:
        ValueError: a picture whose shape or values do not fit the samples.
    """
    layout = saved.layout
    picture = (
        Picture(layout.shape, layout.values) if layout is not None and layout.is_picture else None
    )
    names = cluster_names(saved.process, saved.model, saved.clusters, saved.tokenizer)
    film = pack(
        [text for _, text, _ in shown],
        [end for *_, end in shown],
        saved.process,
        speller(saved.tokenizer, names),
        picture,
    )
    numbers = {"numbers": [number for number, _, _ in shown]}
    path.write_text(page(title, about, numbers | film), encoding="utf-8")


def page(title: str, about: Mapping[str, Any], film: Mapping[str, Any]) -> str:
    """Return the page with its style, its script, and the data of ``pack``."""
    folder = files("recipes.visualization")
    rows = [[name, "none" if value is None else str(value)] for name, value in about.items()]
    parts = {
        "title": html.escape(title),
        "style": (folder / "page.css").read_text(encoding="utf-8"),
        "script": (folder / "page.js").read_text(encoding="utf-8"),
        "film": in_script({"about": rows, **film}),
    }
    whole = (folder / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: parts[slot[1]], whole)


def in_script(value: Any) -> str:
    """Return JSON in which no value can end the script around it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).translate(
        ESCAPED
    )


def pack(
    texts: Sequence[Film],
    ends: Sequence[int],
    process: ForwardProcess,
    spell: Spell,
    picture: Picture | None = None,
) -> dict[str, Any]:
    """Return the data for the page's script: each state is listed once, each step holds only its
    changes.

    Args:
        texts: trajectories to show.
        ends: position of each text's end, its length where it has none.
        process: determines the level of a state.
        spell: display form of a state.
        picture: how to draw a sample as a picture; None for text.

    Returns:
        ``levels``: [name, size] each; ``states``: [text, level, special] each; ``texts``: of each
        its ``start``, the ``given`` positions, its ``end``, and ``frames`` as [t, calls, event,
        ...] with events [position, state, mark, chance, other, its chance, ...]. States are indices
        into ``states``. With a picture also ``picture``: its ``shape`` (H, W, C), the ``colours``
        of the states as [red, green, blue], and one for each level, ``legend``.

    Raises:
        ValueError: a picture whose shape or values do not fit the samples.
    """
    number: dict[int, int] = {}

    def short(state: int) -> int:
        return number.setdefault(state, len(number))

    def event(one: Event) -> list[Any]:
        chance = None if one.chance is None else round_chance(one.chance)
        drawn = [one.position, short(one.state), int(one.mark), chance]
        return drawn + [
            value for state, p in one.others for value in (short(state), round_chance(p))
        ]

    shown = [
        {
            "start": [short(state) for state in text.start],
            "given": text.given,
            "end": end,
            "frames": [
                [round(t, 6), calls, *map(event, events)] for t, calls, events in text.frames
            ],
        }
        for text, end in zip(texts, ends, strict=True)
    ]
    bounds = [sum(process.levels[: level + 1]) for level in range(len(process.levels))]
    level = {state: next(i for i, bound in enumerate(bounds) if state < bound) for state in number}
    drawn = (
        {} if picture is None else {"picture": colours_of(picture, texts, process, list(number))}
    )
    names = level_names(process)
    if picture is not None:
        names[0] = "token"
    return {
        "levels": [list(pair) for pair in zip(names, process.levels, strict=True)],
        "states": [
            [text, level[state], int(special)]
            for state in number
            for text, special in [spell(state)]
        ],
        "texts": shown,
        **drawn,
    }


def colours_of(
    picture: Picture, texts: Sequence[Film], process: ForwardProcess, states: Sequence[int]
) -> dict[str, Any]:
    """Return the colours of a picture's states and levels for the page's script.

    Raises:
        ValueError: a shape of another number of positions than a sample has; see ``palette`` and
            ``check_shape``.
    """
    shape = check_shape(picture.shape)
    colours = palette(picture.values, process).tolist()
    for text in texts:
        if len(text.start) != math.prod(shape):
            raise ValueError(
                f"shape={picture.shape}: a sample has {len(text.start)} positions, must have "
                f"{shape}"
            )
    middle = [sum(process.levels[:level]) + size // 2 for level, size in enumerate(process.levels)]
    return {
        "shape": list(shape),
        "colours": [colours[state] for state in states],
        "legend": [colours[state] for state in middle],
    }


def round_chance(chance: float) -> float:
    """Round to three digits, enough for display."""
    return float(f"{chance:.3g}")


def speller(tokenizer: Tokenizer, names: Sequence[str]) -> Spell:
    """Return the display form of tokens as they follow another one, of special tokens and other
    states by name.

    Args:
        tokenizer: decodes the tokens.
        names: names of the clusters, in the order of their states.
    """
    size = tokenizer.get_vocab_size()
    plain = (token for token in range(size) if tokenizer.decode([token]).strip().isalpha())
    other = next(plain, 0)
    before = tokenizer.decode([other])

    def spell(state: int) -> Spelt:
        if state >= size:
            return Spelt(sign(state, size, names))
        alone = tokenizer.decode([state])
        behind = tokenizer.decode([other, state])
        text = behind.removeprefix(before) if behind.startswith(before) else alone
        return (
            Spelt(text.replace("\n", "¶\n"))
            if text
            else Spelt(f" {tokenizer.id_to_token(state)}", True)
        )

    return spell
