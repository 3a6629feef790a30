"""Lengths that a rule finds while a text is drawn, by short strings such as auto:max=1024."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

import ddlib as dd
from ddlib import parts, registry
from ddlib.contrib import Length
from recipes.config import own_times
from recipes.generation.prompt import Prompt, has_gaps
from recipes.generation.sampling import Sampling
from recipes.model_io import LoadedModel, ModelFiles, make_sampler

AUTO = "rho_eos"
"""Registered name of the rule ``auto``."""
MOST = 1024
"""Default for the largest length, where the model supports more."""


class _End:
    """Arguments of a rule that the model gives, see ``ddlib.build``."""

    def __init__(self, token: int) -> None:
        self._token = token

    def token(self) -> int:
        return self._token

    fill = token


@dataclass(frozen=True)
class FoundLength:
    """A rule for the lengths of texts, before the model is known.

    Args:
        text: the short string, a registered name or name:key=value,key=value; or
            package.module:object.

    Raises:
        ValueError: another name or key, or a value of a wrong type.
    """

    text: str

    def __post_init__(self) -> None:
        kind, options = self._parts
        try:
            keys = parts.keys("lengths", kind, _End)
        except ValueError as error:
            names = ", ".join(("auto", *registry.available("lengths")))
            raise ValueError(
                f"length={self.text!r}: must be a number, or one of {names}, as in auto:max=1024; "
                f"{error}"
            ) from error
        for key, value in options.items():
            if key != "max" and key not in keys:
                raise ValueError(
                    f"length={self.text!r}: {key!r} is not an option of {kind}, which has "
                    f"{', '.join(keys)} and max"
                )
            if key == "max" and (type(value) is not int or value < 1):
                raise ValueError(
                    f"length={self.text!r}: max must be a number of tokens, at least 1"
                )
        self._make(0)

    @property
    def _parts(self) -> tuple[str, dict[str, Any]]:
        """The name of the rule, or its path, and its options with ``max``."""
        name, _, rest = self.text.partition(":")
        name = AUTO if name == "auto" else name
        if name.replace("-", "_") not in registry.available("lengths"):
            return self.text, {}
        pairs = [piece.partition("=") for piece in rest.split(",")] if rest else []
        return name, {key.strip(): parts.parse(value.strip()) for key, _, value in pairs}

    def _make(self, end: int) -> Length:
        kind, options = self._parts
        values = {"kind": kind} | {key: value for key, value in options.items() if key != "max"}
        return dd.build("lengths", values, _End(end), f"length={self.text!r}")

    def limit(self, saved: LoadedModel) -> int:
        """Return the largest length, by default that of the model, at most ``MOST``.

        Raises:
            ValueError: more tokens than the model supports.
        """
        most: int = self._parts[1].get("max", min(saved.length, MOST))
        if most > saved.length:
            raise ValueError(
                f"length={self.text!r}: max must be at most {saved.length}, the maximum of "
                f"{saved.name}"
            )
        return most

    def rule(self, saved: ModelFiles) -> Length:
        """Return the rule for a model, whose end token is the one behind its texts.

        Raises:
            ValueError: a model without an end of text.
        """
        if saved.behind is None or saved.special.eos is None:
            raise ValueError(
                f"length={self.text!r}: {saved.name} has no end of text, give a number"
            )
        return self._make(saved.behind)

    def largest_length(
        self, saved: LoadedModel, sampling: Sampling, prompts: Sequence[Prompt]
    ) -> int:
        """Return the largest length, after checking that the rule supports the model, the options
        and the prompts.

        Raises:
            ValueError: it does not, or as in ``limit`` and ``rule``.
        """
        most = self.limit(saved)
        rule = self.rule(saved)
        sampler = make_sampler(saved, sampling.sampler)
        pace = sampling.course(saved, most)
        if pace.block is not None or own_times(pace, most):
            raise ValueError(
                f"length={self.text!r}: not with pace={pace!r}, as all positions of a text must "
                "have one time"
            )
        if sampling.memory:
            raise ValueError(
                f"length={self.text!r}: not with memory, whose features are those of fixed "
                "positions"
            )
        if any(map(has_gaps, prompts)):
            raise ValueError(
                f"length={self.text!r}: not with gaps in a prompt, which is then the whole text"
            )
        try:
            dd.plan(saved.process, saved.denoiser, (1, most), sampler, controls=[rule])
        except TypeError as error:
            raise ValueError(f"length={self.text!r}: {error}") from error
        return most


class Steps:
    """Number of steps in which each row of a batch had positions to fill.

    The call is that of ``on_step``.

    Args:
        tokens: number of tokens of the process.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.of = Counter[int]()

    def __call__(self, k: int, t: Tensor, z: Tensor) -> None:
        """Count the rows with a state that is not a token."""
        self.of.update((z >= self.tokens).any(1).nonzero()[:, 0].tolist())
