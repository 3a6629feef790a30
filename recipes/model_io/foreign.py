"""Pretrained third-party denoisers as loaded models, read by ``ddlib_models.hub``."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import Tokenizer

import ddlib as dd
from recipes.data.tokens import SpecialIds, special_pattern
from recipes.model_io.base import (
    FoundModel,
    LoadedModel,
    ModelFiles,
    Precision,
    TokenizerProtocol,
)

WEIGHTS = "*.safetensors"
LENGTH = 2**15
"""Maximum tokens of a row, where neither the network nor its tokenizer has a limit."""


class Theirs:
    """Adapter of a transformers tokenizer to the interface of ``tokenizers``.

    Args:
        tokenizer: the tokenizer.
        vocab_size: number of tokens: larger ids are none.
    """

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._size = vocab_size

    @property
    def backend(self) -> Any:
        """The ``tokenizers.Tokenizer`` inside; None for a tokenizer in Python."""
        return getattr(self._tokenizer, "backend_tokenizer", None)

    def encode(self, text: str, *, add_special_tokens: bool) -> SimpleNamespace:
        return SimpleNamespace(
            ids=self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        )

    def decode(self, words: Sequence[int]) -> str:
        return self._tokenizer.decode(list(words), skip_special_tokens=True)

    def id_to_token(self, word: int) -> str | None:
        return self._tokenizer.convert_ids_to_tokens(word)

    def get_vocab(self) -> dict[str, int]:
        return {
            token: word for token, word in self._tokenizer.get_vocab().items() if word < self._size
        }

    def get_vocab_size(self) -> int:
        return self._size


class Talking(Theirs):
    """Tokenizer with a chat template."""

    @property
    def template(self) -> str:
        return self._tokenizer.get_chat_template()

    def format_chat(self, messages: Sequence[Mapping[str, str]], answers: bool = True) -> str:
        from jinja2 import (
            TemplateError,
        )  # local import: transformers requires it only with a template

        special = special_pattern(self._tokenizer.added_tokens_decoder)
        for message in messages:
            if written := special.search(message["content"]):
                raise ValueError(
                    f"chat: the message of role {message['role']!r} contains {written[0]!r}, a "
                    "special token of the tokenizer, which only the template may write"
                )
        copies = [dict(message) for message in messages]
        on = bool(messages) and not answers
        try:
            return self._tokenizer.apply_chat_template(
                copies, tokenize=False, add_generation_prompt=answers, continue_final_message=on
            )
        except (
            TemplateError,
            TypeError,
        ) as error:  # errors of the template, which is third-party code
            roles = ", ".join(message.get("role", "?") for message in copies)
            raise ValueError(
                f"chat: the tokenizer's template does not take messages of {roles}: {error}"
            ) from error


def with_template(tokenizer: Tokenizer, template: str) -> TokenizerProtocol:
    """Return the tokenizer of a run with the chat template of its data."""
    from transformers import PreTrainedTokenizerFast  # local import: it takes seconds

    formatting = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )
    return Talking(formatting, tokenizer.get_vocab_size())


def find_foreign(
    folder: Path,
    fetch: Callable[[], Path] | None,
    name: str,
    device: str | torch.device,
    precision: Precision,
    trust: bool,
    family: str | None,
    mask: str | None,
    block_size: int | None,
    revision: str | None = None,
) -> FoundModel:
    """Find a pretrained third-party denoiser; arguments as in ``find_saved``.

    Args:
        folder: folder of its files.
        fetch: downloads the weights too, and returns their folder; None if they are there.
        name: its name.
        device: for the network and the noise.
        precision: precision of weights and products.
        trust: whether code in the folder may be run.
        family: its format; None: detected from its files.
        mask: the mask token, or its id in digits where no token is spelled so; None: from its
            files.
        block_size: positions of a block in its training, 0 for none; None: from its files.
        revision: branch, tag or commit of a repository on the hub.

    Raises:
        ImportError: a required package is not installed.
        OSError: weights in a pickle alone; the message has the command that converts them.
        PermissionError, ValueError: as in ``ddlib_models.hub.load``.
    """
    from ddlib_models import (
        hub,
    )  # local import: transformers takes seconds, which other models do not need
    from ddlib_models.hub.choice import choose_family
    from ddlib_models.hub.files import read_config
    from ddlib_models.io.safetensors import refuse_pickles

    config = read_config(str(folder))

    def check_weights(place: Path) -> None:
        if not any(place.glob(WEIGHTS)):  # by name, as pickles of a repository are not downloaded
            kind = next(iter(config.get("architectures") or ["AutoModelForMaskedLM"]))
            refuse_pickles(kind, name, name, revision=revision, trust_remote_code=trust)

    if fetch is None:
        check_weights(folder)
    read_as = choose_family(name, config, family)[1]
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    found = hub.find(
        folder,
        family=family,
        trust=trust,
        mask=mask,
        block_size=block_size,
        dtype=dtype,
        device=device,
    )
    tokenizer = found.tokenizer
    special = found.special
    size = found.process.vocab_size
    files = ModelFiles(
        process=found.process,
        tokenizer=(Talking if tokenizer.chat_template else Theirs)(tokenizer, size),
        special=SpecialIds(
            pad=special.pad,
            bos=None if special.bos in special.undrawn else special.bos,
            eos=special.eos if special.eos in special.ends else None,  # if it is a token
            others=special.ends,
        ),
        rows="free",
        name=name,
        precision=precision,
        plugins={"model": {"package": "transformers", "version": version("transformers")}},
        undecided=block_size is None and read_as.block_size is None,
    )

    def load() -> LoadedModel:
        place = folder if fetch is None else fetch()
        if fetch is not None:
            check_weights(place)
        denoiser = found.load().denoiser
        block = getattr(denoiser, "block_size", 0)
        network = denoiser.network
        limits = (getattr(network, "max_length", None), tokenizer.model_max_length)
        return LoadedModel.of(
            files,
            model=denoiser,
            denoiser=denoiser,
            token_parameterization=denoiser.parameterization,
            length=next((limit for limit in limits if limit is not None and limit < 10**6), LENGTH),
            pace=dd.paces.Blocks(block) if block else dd.paces.Together(),
            sha256=digest(place),
            leaves_out=getattr(denoiser, "takes_padding", False),
            leads=hasattr(network, "after"),
        )

    return FoundModel(files, load)


def digest(folder: Path) -> str:
    """Return a hash of all weights, in the order of their files' names.

    For one file, its plain hash.
    """
    whole = hashlib.sha256()
    for path in sorted(folder.glob(WEIGHTS)):
        with path.open("rb") as file:
            while part := file.read(2**24):
                whole.update(part)
    return whole.hexdigest()
