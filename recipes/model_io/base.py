"""Loaded models, with all that sampling and evaluation require."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any, Literal, Protocol, Self, runtime_checkable

from tokenizers import Tokenizer
from torch import nn

import ddlib as dd
from ddlib.hierarchies import Clusters
from ddlib.typing import Denoiser, implements
from recipes.config import Recipe
from recipes.data.layout import Layout
from recipes.data.tokens import SpecialIds
from recipes.data.unknown import Symbols
from recipes.metrics.conditioned import takes_labels


class Encoded(Protocol):
    """Encoding of a text."""

    ids: list[int]


class TokenizerProtocol(Protocol):
    """Conversion of texts to tokens and back; a ``tokenizers.Tokenizer`` satisfies it."""

    def encode(self, text: str, *, add_special_tokens: bool) -> Encoded:
        """Return the tokens of a text."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
        ...

    def id_to_token(self, token: int) -> str | None:
        """Return a token's entry in the vocabulary."""
        ...

    def get_vocab(self) -> dict[str, int]:
        """Return the token ids by their entries in the vocabulary."""
        ...

    def get_vocab_size(self) -> int:
        """Return the number of tokens: larger states are not tokens."""
        ...


@runtime_checkable
class HasChatTemplate(Protocol):
    """Tokenizer with a chat template."""

    template: str
    """The chat template."""

    def format_chat(self, messages: Sequence[Mapping[str, str]], answers: bool = True) -> str:
        """Format messages as a text; see ``LoadedModel.chat``."""
        ...


Precision = Literal["float32", "bfloat16"]
"""Precision of the network's products.

In either, tokens are drawn with float64 uniforms and cumulative sums.
"""

RowLayout = Literal["padded", "packed", "wrapped", "free", "exact"]
"""Layout of the training sequences: rows of one length with padding behind each text; rows of one
length with several texts; rows cut from the concatenation of all texts; a row as long as the text,
whose beginning is given; a row as long as the sequence, without special tokens."""


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """What the files of a model state, without its network: noise, tokenizer, layout of its
    rows.
    """

    process: dd.processes.ForwardProcess
    tokenizer: TokenizerProtocol
    special: SpecialIds
    rows: RowLayout
    name: str = ""
    """Name for messages."""
    precision: Precision = "float32"
    clusters: Clusters | None = None
    plugins: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    """Package and version of every part that is not in ddlib, by its kind."""
    undecided: bool = False
    """True if the files do not state whether the network was trained with blocks and its family has
    both kinds.
    """
    recipe: Recipe | None = None
    """Recipe of the run that trained it; None for other models."""
    layout: Layout | None = None
    """Layout of the sequences of symbols that it was trained on; None for text."""
    content: str = ""
    """Fingerprint of the content of the data that it was trained on; empty if it is not known."""

    @property
    def data(self) -> Path | None:
        """Folder of the text that it was trained on, if known."""
        return None if self.recipe is None else self.recipe.data.folder

    @property
    def ema(self) -> float | None:
        """Decay of the moving average of the weights, if known."""
        return None if self.recipe is None else self.recipe.optimizer.ema or None

    @property
    def validated(self) -> bool:
        """True if a run of the recipe trained it, and so measured its bound.

        A published network starts the recipe.
        """
        return self.recipe is not None and self.recipe.start != str(self.recipe.output.folder)

    @property
    def draws_lengths(self) -> bool:
        """True for sequences of different lengths without an end: a sample needs a length."""
        return self.rows == "exact" and self.layout is not None and self.layout.fixed is None

    @property
    def beginning(self) -> list[int]:
        """Tokens at the beginning of every text."""
        return [] if self.special.bos is None else [self.special.bos]

    @property
    def behind(self) -> int | None:
        """Token that fills a row behind the end of a text."""
        return self.special.pad if self.rows == "padded" else self.special.eos

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens that end a text, padding too."""
        return tuple(token for token in (*self.special.ends, self.special.pad) if token is not None)

    def chat(self, messages: Sequence[Mapping[str, str]], answers: bool = True) -> str:
        """Format messages, each with its ``role`` and its ``content``, as one text.

        Args:
            messages: in their order.
            answers: whether the model writes the next message; else it continues the last.

        Raises:
            ValueError: the tokenizer has no chat template; a message contains a special token.
        """
        if not implements(self.tokenizer, HasChatTemplate):
            raise ValueError(
                f"chat: the tokenizer of {self.name} has no chat template, so messages cannot be "
                "formatted: a run has one if it was trained on conversations, as by "
                "recipes.adapt --sft, or adapted from a model with one"
            )
        return self.tokenizer.format_chat(messages, answers)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special ones."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    @cached_property
    def symbols(self) -> Symbols | None:
        """Symbols that the tokenizer has.

        None for a tokenizer in Python, which does not list them.
        """
        backend = getattr(self.tokenizer, "backend", self.tokenizer)
        return Symbols(backend) if isinstance(backend, Tokenizer) else None

    def document(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens between the beginning of a document, if it is there, and its end.

        Rows that are cut from the concatenation of texts begin and end anywhere: all their tokens
        but special ones.
        """
        if self.rows == "wrapped":
            return [token for token in tokens if token not in (self.special.bos, *self.ends)]
        return self.cut_at_end(tokens[1:] if tokens and tokens[0] == self.special.bos else tokens)

    def several(self, tokens: Sequence[int]) -> str:
        """Return the texts of a row with the end tokens between them, without those behind the
        last.
        """
        bos = self.special.bos
        rest = list(tokens)
        rest = rest[1:] if rest[:1] == [bos] else rest
        while rest and rest[-1] in self.ends:
            rest.pop()
        pieces = []
        for is_end, run in groupby(rest, lambda token: token in self.ends):
            if is_end:
                pieces += [self.tokenizer.id_to_token(token) or "" for token in run]
            else:
                pieces.append(self.tokenizer.decode([token for token in run if token != bos]))
        return "".join(pieces)

    def cut_at_end(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens before the end of a document, which is the first end of text or
        padding.
        """
        return list(takewhile(lambda token: token not in self.ends, tokens))


@dataclass(frozen=True, kw_only=True)
class LoadedModel(ModelFiles):
    """A model with all that is required to sample from it and to measure it, from a recipe or a
    third party.
    """

    model: nn.Module
    denoiser: Denoiser
    """The network in the form that ``ddlib`` calls; in float32 samplers may use its two parts
    separately.
    """
    token_parameterization: str
    """Meaning of its logits over tokens, "cavity" or "posterior"."""
    length: int
    """Tokens of a row; the maximum where rows are as long as their texts."""
    pace: dd.paces.Pace
    """Default schedule of positions."""
    sha256: str
    """Hash of the weights."""
    leaves_out: bool = False
    """Whether the network supports padding, by ``present``."""
    leads: bool = False
    """Whether the network encodes the prompt separately: ``denoiser.after(tokens)`` (B, P)
    continues it.
    """

    @cached_property
    def parameterization(self) -> str | dd.Children:
        """Meaning of the network's output."""
        return dd.Children.meaning(self.model, self.token_parameterization)

    def class_of(self, label: str) -> int:
        """Return the index of a class, given by its name or its number.

        Raises:
            ValueError: a model that was trained without labels, or a class that it lacks.
        """
        if not takes_labels(self.model):
            raise ValueError(
                f"label={label!r}: {self.name} was trained without labels (model.num_classes=0)"
            )
        classes = self.layout.classes if self.layout is not None else ()
        if label in classes:
            return classes.index(label)
        if label.isdigit() and int(label) < self.model.num_classes and not classes:
            return int(label)
        known = ", ".join(classes) if classes else f"0 to {self.model.num_classes - 1}"
        raise ValueError(f"label={label!r}: must be one of the classes of {self.name}: {known}")

    def check_length(self, length: int | None) -> None:
        """Raise ValueError for a length that the model does not support; None is its own.

        A network may take longer sequences than those of its training, but was not trained for
        them.
        """
        if length is None:
            return
        if length > self.length:
            limit = (
                f"the maximum of {self.name}"
                if self.rows == "free"
                else f"the tokens of a sequence in the training of {self.name}"
            )
            raise ValueError(f"length={length}: must be at most {self.length}, {limit}")
        shape = () if self.layout is None else self.layout.shape
        if self.rows == "exact" and shape and length != self.length:
            raise ValueError(
                f"length={length}: must be {self.length}, the sequences of {self.name} have shape "
                f"{' x '.join(map(str, shape))}"
            )

    @classmethod
    def of(cls, files: ModelFiles, **network: Any) -> Self:
        """Return the model of these files with its network and what depends on it."""
        return cls(**{one.name: getattr(files, one.name) for one in fields(ModelFiles)} | network)


@dataclass(frozen=True)
class FoundModel:
    """A model whose files were found, and whose network is not loaded yet."""

    files: ModelFiles
    load: Callable[[], LoadedModel]
    """Load the network; the files of a model on the hub are downloaded first."""
