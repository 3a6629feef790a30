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

from ddlib.contrib import Event, Film, Frame
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


def page(
    title: str,
    about: Mapping[str, Any],
    film: Mapping[str, Any],
    form: str = "",
    script: str = "",
    sources: str = "",
) -> str:
    """Return the page with its style, its script, and the data of ``pack``.

    Args:
        title: title of the page.
        about: sampling options, by name.
        film: the data.
        form: HTML above the text.
        script: behind that of the page, in the same module.
        sources: further directives of the policy for what the page may fetch.
    """
    folder = files("recipes.visualization")
    rows = [[name, "none" if value is None else str(value)] for name, value in about.items()]
    parts = {
        "title": html.escape(title),
        "style": (folder / "page.css").read_text(encoding="utf-8"),
        "script": (folder / "page.js").read_text(encoding="utf-8") + script,
        "form": form,
        "sources": sources,
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
    packing = Packing(process, spell)
    shown = [
        packing.start(text, end) | {"frames": [packing.frame(one) for one in text.frames]}
        for text, end in zip(texts, ends, strict=True)
    ]
    drawn = {} if picture is None else {"picture": colours_of(picture, texts, process, packing.all)}
    return {
        "levels": levels_of(process, picture is not None),
        "states": packing.new_states(),
        "texts": shown,
        **drawn,
    }


def levels_of(process: ForwardProcess, picture: bool = False) -> list[list[Any]]:
    """Return the name and the size of each level, for the page's script."""
    names = level_names(process)
    if picture:
        names[0] = "token"
    return [list(pair) for pair in zip(names, process.levels, strict=True)]


class Packing:
    """Data of trajectories for the page's script, whose states are numbered as they appear.

    Args:
        process: determines the level of a state.
        spell: display form of a state.
    """

    def __init__(self, process: ForwardProcess, spell: Spell) -> None:
        self._spell = spell
        self._bounds = [sum(process.levels[: level + 1]) for level in range(len(process.levels))]
        self._numbers: dict[int, int] = {}
        self._listed = 0

    @property
    def all(self) -> list[int]:
        """The states by their numbers."""
        return list(self._numbers)

    def start(self, text: Film, end: int) -> dict[str, Any]:
        """Return the data of a trajectory without its frames."""
        start = [self._number(state) for state in text.start]
        return {"start": start, "given": text.given, "end": end}

    def frame(self, frame: Frame) -> list[Any]:
        """Return the data of a step."""
        return [round(frame.t, 6), frame.calls, *map(self._event, frame.events)]

    def new_states(self) -> list[list[Any]]:
        """Return the states that have appeared since the last call: [text, level, special] each."""
        new = self.all[self._listed :]
        self._listed = len(self._numbers)
        return [
            [
                text,
                next(level for level, bound in enumerate(self._bounds) if state < bound),
                int(special),
            ]
            for state in new
            for text, special in [self._spell(state)]
        ]

    def _number(self, state: int) -> int:
        return self._numbers.setdefault(state, len(self._numbers))

    def _event(self, one: Event) -> list[Any]:
        chance = None if one.chance is None else round_chance(one.chance)
        drawn = [one.position, self._number(one.state), int(one.mark), chance]
        return drawn + [
            value for state, p in one.others for value in (self._number(state), round_chance(p))
        ]


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
