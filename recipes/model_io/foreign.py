"""A model that no recipe trained: a pretrained denoiser of somebody else's, as ``ddlib_models.hub`` reads it."""

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import ddlib as dd
from recipes.data.tokens import SpecialIds
from recipes.model_io.base import LoadedModel, Precision

LENGTH = 2**15
"""Tokens of a row, at most, where neither the network nor its tokenizer says how many it knows."""


class Theirs:
    """A tokenizer of transformers', asked as one of ``tokenizers``.

    Args:
        tokenizer: the tokenizer.
        vocab_size: number of words: ids from here on are none.
    """

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._tokenizer, self._size = tokenizer, vocab_size

    @property
    def backend(self) -> Any:
        """The ``tokenizers.Tokenizer`` inside; None of a tokenizer in Python."""
        return getattr(self._tokenizer, "backend_tokenizer", None)

    def encode(self, text: str, *, add_special_tokens: bool) -> SimpleNamespace:
        return SimpleNamespace(ids=self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, words: Sequence[int]) -> str:
        return self._tokenizer.decode(list(words), skip_special_tokens=True)

    def id_to_token(self, word: int) -> str | None:
        return self._tokenizer.convert_ids_to_tokens(word)

    def get_vocab(self) -> dict[str, int]:
        return {token: word for token, word in self._tokenizer.get_vocab().items() if word < self._size}

    def get_vocab_size(self) -> int:
        return self._size


class Talking(Theirs):
    """One that has a chat template."""

    @property
    def template(self) -> str:
        return self._tokenizer.get_chat_template()

    def talk(self, messages: Sequence[Mapping[str, str]], answers: bool = True) -> str:
        from jinja2 import TemplateError  # not above: transformers asks for it only where there is a template

        told, on = [dict(message) for message in messages], bool(messages) and not answers
        try:
            return self._tokenizer.apply_chat_template(
                told, tokenize=False, add_generation_prompt=answers, continue_final_message=on
            )
        except (TemplateError, TypeError) as error:  # what the template, code of others, raises or runs into
            roles = ", ".join(message.get("role", "?") for message in told)
            raise ValueError(f"chat: the tokenizer's template does not take messages of {roles}: {error}") from error


def open_foreign(
    folder: Path,
    name: str,
    device: str | torch.device,
    precision: Precision,
    trust: bool,
    family: str | None,
    mask: str | None,
    block_size: int | None,
) -> LoadedModel:
    """A pretrained denoiser, opened; arguments as those of ``open_saved``.

    Args:
        folder: of its files.
        name: what it is called.
        device: for the network and the noise.
        precision: of weights and products.
        trust: whether code in the folder may be run.
        family: how it is read; None: its files say.
        mask: the token that stands for the mask, or its id in digits where no token is spelled so; None: its files say.
        block_size: positions of a block that it was trained by, 0 for none; None: its files say.

    Raises:
        ImportError: what reads it is not installed.
        PermissionError, ValueError: as ``ddlib_models.hub.load``.
    """
    from ddlib_models import hub  # not above: transformers takes seconds, which a model of ours need not wait for
    from ddlib_models.hub.family import chosen
    from ddlib_models.hub.files import read_config

    read_as = chosen(name, read_config(str(folder)), family)[1]
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    process, denoiser, tokenizer, known = hub.load(
        folder, family=family, trust=trust, mask=mask, block_size=block_size, dtype=dtype, device=device
    )
    block = getattr(denoiser, "block_size", 0)
    network, size = denoiser.network, process.vocab_size
    limits = (getattr(network, "max_length", None), tokenizer.model_max_length)
    return LoadedModel(
        process=process,
        model=denoiser,
        denoiser=denoiser,
        law=denoiser.parameterization,
        tokenizer=(Talking if tokenizer.chat_template else Theirs)(tokenizer, size),
        special=SpecialIds(
            pad=known.pad,
            bos=None if known.bos in known.undrawn else known.bos,
            eos=known.eos if known.eos in known.ends else None,  # where it is a word
            others=known.ends,
        ),
        length=next((limit for limit in limits if limit is not None and limit < 10**6), LENGTH),
        rows="free",
        pace=dd.paces.Blocks(block) if block else dd.paces.Together(),
        sha256=digest(folder),
        name=name,
        precision=precision,
        plugins={"model": {"package": "transformers", "version": version("transformers")}},
        # a network says by this argument that it can leave positions out
        leaves_out="present" in inspect.signature(network.forward).parameters,
        leads=hasattr(network, "after"),
        undecided=block_size is None and read_as.block_size is None,
    )


def digest(folder: Path) -> str:
    """A hash of all weights, in the order of their files' names; of one file its own."""
    whole = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            while part := file.read(2**24):
                whole.update(part)
    return whole.hexdigest()
