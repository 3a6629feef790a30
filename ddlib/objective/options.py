"""Options of a training loss: weighting, mode and meaning of the logits."""

from collections.abc import Sequence
from dataclasses import dataclass

from ddlib.parameterization.logits import Parameterization, cavity_logits
from ddlib.processes import ForwardProcess
from ddlib.typing import Logits, PerToken, Times, Tokens
from ddlib.utils.validation import check_number, require
from ddlib.weightings import Weighting, weighted

MODES = ("standard", "hard", "edges")
Mode = str | Sequence[float]
"""One of ``MODES``, or the factors of "edges", one per edge, the edge above the tokens first."""


def check_mode(process: ForwardProcess, mode: Mode) -> None:
    """Raise ValueError for an unknown mode or bad factors of edges, TypeError for a mode that the
    process lacks.
    """
    if isinstance(mode, str):
        require(mode in MODES, f"mode is {mode!r}, must be one of {', '.join(map(repr, MODES))}")
    elif not isinstance(mode, Sequence):
        raise TypeError(
            f"mode is {mode!r}, must be one of {', '.join(map(repr, MODES))}, or a factor for each "
            "edge"
        )
    name = mode if isinstance(mode, str) else "edges"
    if name not in process.modes:
        listed = ", ".join(map(repr, process.modes))
        raise TypeError(
            f"mode is {mode!r}, which {type(process).__name__} does not have, must be {listed}"
        )
    if not isinstance(mode, str):
        _check_factors(mode, len(process.levels) - 1)


def _check_factors(factors: Sequence[float], depth: int) -> None:
    require(
        len(factors) == depth,
        f"mode has {len(factors)} factors, must have {depth}: one per edge, that above the tokens "
        "first",
    )
    values = [check_number(f"mode[{i}]", v, 0, 1e6, "in [0, 1e6]") for i, v in enumerate(factors)]
    require(
        any(values),
        f"mode is {factors}, must hold a factor that is not 0: nothing would be learned",
    )


def check_weighting(process: ForwardProcess, weighting: Weighting | None) -> None:
    """Raise TypeError unless ``weighting`` is a weighting or None.

    The weighting then checks the process.
    """
    if weighting is None:
        return
    if not isinstance(weighting, Weighting):
        raise TypeError(
            f"weighting is {weighting!r}, must be a ddlib.weightings.Weighting such as Clip(2.0), "
            "or None for the bound"
        )
    weighting.check(process)


@dataclass(frozen=True)
class LossOptions:
    """Options of a training loss of one token; arguments as in ``training_loss``."""

    weighting: Weighting | None = None
    mode: Mode = "standard"
    parameterization: Parameterization = "cavity"

    def check(self, process: ForwardProcess) -> None:
        """Raise TypeError or ValueError unless the process has the mode and the weighting supports
        it.
        """
        check_mode(process, self.mode)
        check_weighting(process, self.weighting)

    @property
    def name(self) -> str:
        """Name of the mode, one of ``MODES``."""
        return self.mode if isinstance(self.mode, str) else "edges"

    @property
    def edge_weights(self) -> Sequence[float] | None:
        """Factors of the edges, where they are not those of the bound."""
        return None if isinstance(self.mode, str) else self.mode

    def per_token(
        self, process: ForwardProcess, logits: Logits, x: Tokens, z: Tokens, t: Times
    ) -> PerToken:
        """Compute the loss of every token, (B, L) nats, from the logits of the network."""
        given = cavity_logits(process, logits, z, t, self.parameterization)
        if self.name == "edges":
            weight, divergence = process.edges_weighted_divergence(
                given, x, z, t, self.edge_weights
            )
        elif self.name == "hard":
            weight, divergence = process.hard_weighted_divergence(given, x, z, t)
        elif self.weighting is None or self.weighting.bound:
            return process.integrand(given, x, z, t)
        else:
            weight, divergence = process.integrand_parts(given, x, z, t)
        weight = weighted(self.weighting, process, weight, x, z, t)
        return (weight.to(divergence.dtype) * divergence).to(given.dtype)
