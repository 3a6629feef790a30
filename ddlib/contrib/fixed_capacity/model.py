"""Evaluation of a network at the whole batch, with predictions at a fixed number of positions."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ddlib.contrib.captured import Captured
from ddlib.hierarchies.base import descendant_logits
from ddlib.parameterization.logits import to_cavity
from ddlib.processes import LevelProcess
from ddlib.samplers.base import SamplingContext
from ddlib.samplers.runtime.model import Model, Predictions
from ddlib.samplers.state_draws import Draws, Noise
from ddlib.typing import Sharpen, Times, Tokens
from ddlib.utils.categorical import draw_logits
from ddlib.utils.validation import require

_HELD = 1 << 24
"""Number of logits in memory at a time."""


class Faults:
    """Faults of steps, which are read after the last one.

    Args:
        device: device of the steps.
    """

    def __init__(self, device: torch.device) -> None:
        self.values = torch.zeros(2, dtype=torch.bool, device=device)

    def note(
        self, lost: Bool[Tensor, ""] | None = None, bad: Bool[Tensor, ""] | None = None
    ) -> None:
        """Note whether a position was lost, and whether logits are not finite."""
        for place, fault in enumerate((lost, bad)):
            if fault is not None:
                self.values[place].logical_or_(fault)

    def check(self) -> None:
        """Wait for the steps and raise ValueError if they had a fault."""
        lost, bad = self.values.tolist()
        require(
            not bad,
            "logits hold NaN, +inf, or -inf only, must be finite or -inf with at least one finite "
            "entry; without FixedCapacity the message names the position",
        )
        require(
            not lost,
            "controls holds FixedCapacity(), and more positions descended than were drawn before "
            "the first step: another control changes the levels of sequences",
        )


class WholeModel(Model):
    """Denoiser that is evaluated at the whole batch, with predictions at a fixed number of
    positions.

    Args:
        model: the denoiser.
    """

    capacity: int | None = None
    """Number of positions; None for the selected ones, as in ``Model``."""

    def __init__(self, model: Model) -> None:
        super().__init__(
            model.process,
            model.denoiser,
            model.parameterization,
            False,
            model.logit_processors,
            model.context,
        )
        self.faults = Faults(model.process.device)
        self._recorded: Captured | None = None

    def at_most(self, capacity: int | None) -> "WholeModel":
        """Return the model with another capacity."""
        model = copy.copy(self)
        model.capacity = capacity
        return model

    def captured(self) -> "WholeModel":
        """Return the model with recorded calls of the denoiser."""
        model = copy.copy(self)
        model._recorded = Captured(super()._call)
        return model

    def at(self, z: Tokens, t: Times, where: Bool[Tensor, "B L"]) -> Iterator[Predictions]:
        if self.capacity is None:
            yield from super().at(z, t, where)
            return
        self.faults.note(lost=where.sum() > self.capacity)
        if not self.capacity:
            return
        output = self._run(z, t.to(torch.get_default_dtype())).flatten(0, 1)
        whole = z[:, :0] if self.logit_processors is None else self.context.states(z)
        # the selected positions first
        places = (~where).flatten().to(torch.int8).argsort(stable=True)[: self.capacity]
        for place in places.split(max(1, _HELD // self.process.vocab_size)):
            b = place // z.shape[1]
            i = place % z.shape[1]
            rows = self.head.narrow(output[place])
            times = t[b] if t.ndim == 1 else t[b, i]
            yield WholePredictions(self, rows, b, i, z[b, i], times, whole[b])

    @property
    def _narrows(self) -> bool:
        return False

    def _call(self, z: Tokens, t: Times, positions: Tensor | None = None, **options: Any) -> Tensor:
        if self._recorded is None or options:
            return super()._call(z, t, positions, **options)
        output: Tensor = self._recorded(z, t)
        return output


def whole_model(run: SamplingContext) -> WholeModel:
    """Return the model, typed as the one that ``FixedCapacity.prepare`` made."""
    assert isinstance(run.network, WholeModel)
    return run.network


class WholePredictions(Predictions):
    """Model output at positions of which some do not descend."""

    def within(self, where: Bool[Tensor, "B L"]) -> Iterator[Predictions]:
        yield self


class WholeDraws(Draws):
    """Independent draws at positions of which some stay, in operations of fixed sizes."""

    def states(
        self,
        predictions: Iterable[Predictions],
        z: Tokens,
        target: Int64[Tensor, "B L"],
        noise: Noise,
        force: bool,
        sharpen: Sharpen,
    ) -> Iterator[tuple[Predictions, Int64[Tensor, "N"]]]:
        for part in predictions:
            u = noise.state[part.b, part.i]
            states = part.z
            for here, first, log_probs in _descents(part, target[part.b, part.i], force):
                states = torch.where(here, first + draw_logits(sharpen(log_probs), u), states)
            yield part, states

    def log_probs(
        self,
        predictions: Sequence[Predictions],
        z: Tokens,
        target: Int64[Tensor, "B L"],
        force: bool,
    ) -> Iterator[tuple[Int64[Tensor, "n"], Int64[Tensor, "n"], Float[Tensor, "n K"]]]:
        """Compute the distributions, padded with -inf to the number of tokens; at positions that
        stay they are another one.
        """
        for part in predictions:
            result: Tensor | None = None
            for here, _, log_probs in _descents(part, target[part.b, part.i], force):
                width = part.network.process.vocab_size - log_probs.shape[-1]
                normalised = log_probs.log_softmax(-1)
                padded = torch.nn.functional.pad(normalised, (0, width), value=-torch.inf)
                result = padded if result is None else torch.where(here[:, None], padded, result)
            assert result is not None
            yield part.b, part.i, result


def _descents(
    part: Predictions, target: Int64[Tensor, "N"], force: bool
) -> Iterator[tuple[Bool[Tensor, "N"], int, Float[Tensor, "N K"]]]:
    """Yield, for each pair of levels, the positions that descend between them, the first state of
    the lower one, and log-probabilities of its members at all positions, valid at these.
    """
    network = part.network
    assert isinstance(network, WholeModel)
    process = network.process
    assert isinstance(process, LevelProcess)
    level = process.level_of(part.z)
    rows = network.head.all_logits(part.output)
    logits = to_cavity(process, network.layout, rows[:, None], part.z[:, None], part.t)[:, 0]
    if network.logit_processors is not None:
        logits = network.logit_processors(logits, part.states, part.i + network.context.first)
    bad = ~logits.amax(-1).isfinite()
    network.faults.note(bad=(bad & (target < level)).any())
    offsets = process.hierarchy.offsets
    for i in range(len(process.levels) - 1):
        for j in range(i + 1, len(process.levels)):
            state = torch.where(level == j, part.z, offsets[j])
            log_probs = descendant_logits(process.hierarchy, logits, state, j, i, force)
            yield (level == j) & (target == i), offsets[i], log_probs
