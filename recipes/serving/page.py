"""Page that shows a text as it denoises: the page of films, whose film grows while it is drawn."""

import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from ddlib.contrib import Film
from recipes.generation.samples import Sample
from recipes.model_io import LoadedModel, ModelFiles
from recipes.visualization.page import Packing, levels_of, page, speller

EMPTY = {"start": [], "given": [], "end": 0, "frames": []}
"""A trajectory of no positions."""


class LiveFilm:
    """Messages by which the page's film grows.

    Args:
        saved: the model.
        names: names of its clusters.
    """

    def __init__(self, saved: LoadedModel, names: Sequence[str]) -> None:
        self._saved = saved
        self._packing = Packing(saved.process, speller(saved.tokenizer, names))
        self._frames = 0
        self._begun = False

    def messages(self, text: Film, sample: Sample, last: bool = False) -> list[dict[str, Any]]:
        """Return the messages on what is new in a trajectory.

        Args:
            text: the trajectory so far.
            sample: its sample.
            last: whether it is whole.
        """
        row = sample.row
        shown = text.first(row.length - row.lead)
        new: list[dict[str, Any]] = []
        if not self._begun:
            start = self._packing.start(shown, len(shown.start)) | {"frames": []}
            new.append({"text": start, "states": self._packing.new_states()})
            self._begun = True
        for frame in shown.frames[self._frames :]:
            packed = self._packing.frame(frame)
            new.append({"frame": packed, "states": self._packing.new_states()})
        self._frames = len(shown.frames)
        if last:
            new.append({"end": max(row.end(sample.tokens, self._saved.ends) - row.lead, 0)})
        return new


def live_page(saved: ModelFiles, name: str, keyed: bool, about: Mapping[str, Any]) -> str:
    """Return the page.

    Args:
        saved: the model.
        name: its name in requests.
        keyed: whether requests need a key.
        about: options of the server's texts, by name.
    """
    folder = files("recipes.serving")
    chat = bool(getattr(saved.tokenizer, "template", ""))
    form = (folder / "page.html").read_text(encoding="utf-8")
    settings = json.dumps({"model": name, "keyed": keyed, "chat": chat})
    form = form.replace("{{settings}}", html.escape(settings, quote=True))
    script = (folder / "page.js").read_text(encoding="utf-8")
    film = {"levels": levels_of(saved.process), "states": [], "texts": [EMPTY]}
    return page(name, about, film, form, script, "; connect-src 'self'")
