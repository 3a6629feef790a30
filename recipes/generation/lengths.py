"""Lengths that a rule finds while a text is drawn, by short strings such as auto:max=1024."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ddlib.plugins.config.signature import check, parameters, parse
from ddlib.samplers import Daedal, Length, RhoEOS
from recipes.config import own_times
from recipes.generation.prompt import GAP
from recipes.generation.sampling import Sampling
from recipes.model_io import LoadedModel, make_sampler

RULES: Mapping[str, type[Length]] = {"auto": RhoEOS, "rho_eos": RhoEOS, "daedal": Daedal}
"""Rules by name."""
MOST = 1024
"""Default for the largest length, where the model knows more."""
FILLED = ("token", "fill")
"""Arguments of a rule that the model gives."""


@dataclass(frozen=True)
class FoundLength:
    """A rule for the lengths of texts, before the model is known.

    Args:
        text: the short string, a name or name:key=value,key=value.

    Raises:
        ValueError: another name or key, or a value of a wrong type.
    """

    text: str

    def __post_init__(self) -> None:
        name, options = self._parsed
        rules = ", ".join(RULES)
        if name not in RULES:
            raise ValueError(f"length={self.text!r}: must be a number, or one of {rules}, as in auto:max=1024")
        keys = {key.name: key for key in parameters(RULES[name]) if key.name not in FILLED}
        for key, value in options.items():
            if key != "max" and key not in keys:
                raise ValueError(
                    f"length={self.text!r}: {key!r} is no option of {name}, which has {', '.join(keys)} and max"
                )
            if key == "max" and (type(value) is not int or value < 1):
                raise ValueError(f"length={self.text!r}: max must be a number of tokens, at least 1")
        try:
            RULES[name](0, **{key: check(keys[key], value) for key, value in options.items() if key != "max"})
        except ValueError as error:
            raise ValueError(f"length={self.text!r}: {error}") from error

    @property
    def _parsed(self) -> tuple[str, dict[str, Any]]:
        name, _, rest = self.text.partition(":")
        pairs = [piece.partition("=") for piece in rest.split(",")] if rest else []
        return name.replace("-", "_"), {key.strip(): parse(value.strip()) for key, _, value in pairs}

    def limit(self, saved: LoadedModel) -> int:
        """Return the largest length, by default that of the model, at most ``MOST``.

        Raises:
            ValueError: more tokens than the model supports.
        """
        most: int = self._parsed[1].get("max", min(saved.length, MOST))
        if most > saved.length:
            raise ValueError(f"length={self.text!r}: max must be at most {saved.length}, which {saved.name} knows")
        return most

    def rule(self, saved: LoadedModel) -> Length:
        """Return the rule for a model, whose end token is the one behind its texts.

        Raises:
            ValueError: a model without an end of text.
        """
        if saved.behind is None or saved.special.eos is None:
            raise ValueError(f"length={self.text!r}: {saved.name} has no end of text, give a number")
        name, options = self._parsed
        return RULES[name](saved.behind, **{key: value for key, value in options.items() if key != "max"})

    def checked(self, saved: LoadedModel, sampling: Sampling, texts: Sequence[str | None]) -> int:
        """Return the largest length, after checking that the rule supports the model, the options and the prompts.

        Raises:
            ValueError: it does not, or as in ``limit`` and ``rule``.
        """
        most, rule, sampler = self.limit(saved), self.rule(saved), make_sampler(saved, sampling.sampler)
        pace = sampling.course(saved, most)
        if pace.block is not None or own_times(pace, most):
            raise ValueError(f"length={self.text!r}: not with pace={pace!r}, a text changes as a whole")
        if sampling.memory:
            raise ValueError(f"length={self.text!r}: not with memory, whose features belong to positions")
        if any(text is not None and GAP.search(text) for text in texts):
            raise ValueError(f"length={self.text!r}: not with gaps in a prompt, which is then a whole text")
        try:
            rule.check(saved.process, sampler)
        except TypeError as error:
            raise ValueError(f"length={self.text!r}: {error}") from error
        return most


class Steps:
    """Number of steps in which each row of a batch had positions to fill; the call is that of ``on_step``.

    Args:
        tokens: number of tokens of the process.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens, self.of = tokens, Counter[int]()

    def __call__(self, k: int, t: Tensor, z: Tensor) -> None:
        """Count the rows with a state that is not a token."""
        self.of.update((z >= self.tokens).any(1).nonzero()[:, 0].tolist())
