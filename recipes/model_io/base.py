"""A model that is there, with all that is asked of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer
from torch import nn

import ddlib as dd
from ddlib.hierarchies.clusters import Clusters
from ddlib.parameterization.logits import Parameterization, meaning
from ddlib.typing import Denoiser
from recipes.config import Recipe
from recipes.data.tokens import SpecialIds
from recipes.data.unknown import Symbols
from recipes.model_io.spelling import Talks, TokenizerProtocol

Precision = Literal["float32", "bfloat16"]
"""Of the network's products. Whatever it is, words are drawn with float64 uniforms and cumulative sums."""

Rows = Literal["padded", "packed", "free"]
"""What a network knows texts in: rows of one length with padding behind each text; rows of one length that several
texts fill; a row as long as the text, whose beginning is given."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model with all that is needed to sample from it and to measure it, whoever trained it."""

    process: dd.processes.ForwardProcess
    model: nn.Module
    denoiser: Denoiser
    """The network as ``ddlib`` calls it; in float32 samplers may use its halves."""
    law: str
    """What its logits over words mean, "cavity" or "posterior"."""
    tokenizer: TokenizerProtocol
    special: SpecialIds
    length: int
    """Tokens of a row; of rows as long as their texts the most."""
    rows: Rows
    pace: dd.paces.Pace
    """Which position when, unless somebody asks for another."""
    sha256: str
    """Of the weights."""
    name: str = ""
    """What it is called, for messages."""
    precision: Precision = "float32"
    clusters: Clusters | None = None
    plugins: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    """Package and version of every part that is not ddlib's own, by its kind."""
    leaves_out: bool = False
    """Whether the network can be told, by ``present``, at which positions there is nothing."""
    leads: bool = False
    """Whether the network reads what stands before a text apart from it: ``denoiser.after(words)`` (B, P) goes on."""
    undecided: bool = False
    """Whether nobody says if the network was trained by blocks, and it could be."""
    recipe: Recipe | None = None
    """Of the run that trained it; None where no recipe did."""

    @cached_property
    def parameterization(self) -> Parameterization:
        """What the network's output means."""
        return meaning(self.model, self.law)

    @property
    def data(self) -> Path | None:
        """Where the text lies that it was trained on, if that is known."""
        return None if self.recipe is None else self.recipe.data.folder

    @property
    def ema(self) -> float | None:
        """Decay of the average that the weights are, if that is known."""
        return None if self.recipe is None else self.recipe.optimizer.ema or None

    @property
    def beginning(self) -> list[int]:
        """The words that every text begins with."""
        return [] if self.special.bos is None else [self.special.bos]

    @property
    def behind(self) -> int | None:
        """The word that fills a row behind the end of a text."""
        return self.special.pad if self.rows == "padded" else self.special.eos

    @property
    def ends(self) -> tuple[int, ...]:
        """The words that end a text, padding too."""
        return tuple(word for word in (*self.special.ends, self.special.pad) if word is not None)

    def chat(self, messages: Sequence[Mapping[str, str]], answers: bool = True) -> str:
        """The text of messages, each with its ``role`` and its ``content``.

        Args:
            messages: in their order.
            answers: whether the model is to say the next one; else it goes on with the last.

        Raises:
            ValueError: the tokenizer does not know how a chat is written.
        """
        if not isinstance(self.tokenizer, Talks):
            raise ValueError(f"chat: the tokenizer of {self.name} has no chat template, so there is no telling how")
        return self.tokenizer.talk(messages, answers)

    def encode(self, text: str) -> list[int]:
        """The words of a text, without special ones."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    @cached_property
    def symbols(self) -> Symbols | None:
        """The symbols that the tokenizer has; None of a tokenizer in Python, which does not tell them."""
        backend = getattr(self.tokenizer, "backend", self.tokenizer)
        return Symbols(backend) if isinstance(backend, Tokenizer) else None

    def document(self, words: Sequence[int]) -> list[int]:
        """What stands between the beginning of a document, if it is there, and its end."""
        return self.ended(words[1:] if words and words[0] == self.special.bos else words)

    def ended(self, words: Sequence[int]) -> list[int]:
        """What stands before the end of a document, which is the first end of text or padding."""
        return list(takewhile(lambda word: word not in self.ends, words))
