"""Recorder of the network's calls and outputs within a step."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ddlib.samplers.runtime.model import Model, Predictions
from ddlib.typing import Logits, Times, Tokens


class StepOutputs:
    """Network outputs of the present step, and number of calls for each sequence.

    Args:
        shape: (B, L) of the sequences.
        device: device of the sequences.
    """

    def __init__(self, shape: torch.Size, device: torch.device) -> None:
        self.calls = torch.zeros(shape[0], dtype=torch.int64, device=device)
        """(B,) network calls so far that included each sequence."""
        self.recorded: list[Predictions] = []
        """Outputs of the present step, in their order."""
        self._shape = shape

    def call(self, evaluated: Bool[Tensor, "n"]) -> None:
        """Count a call on some rows of a batch, which may have several rows per sequence."""
        rows = len(self.calls)
        self.calls += (
            evaluated.view(rows, -1).any(-1)
            if len(evaluated) % rows == 0
            else bool(evaluated.any())
        )

    def evaluate(self, predictions: Predictions, rows: int) -> None:
        """Record the output for a batch of so many rows, if these are the sequences."""
        if rows == len(self.calls):
            self.recorded.append(predictions)

    def before(
        self, b: Int64[Tensor, "n"], i: Int64[Tensor, "n"], state: Int64[Tensor, "n"]
    ) -> Iterator[tuple[Bool[Tensor, "n"], Predictions]]:
        """Return for n positions the last output for each before it was in ``state``, and their
        indices.

        Positions that the network was not evaluated at are left out.
        """
        left = torch.ones_like(b, dtype=torch.bool)
        for predictions in reversed(self.recorded):
            row = torch.full(self._shape, -1, dtype=torch.int64, device=b.device)
            row[predictions.b, predictions.i] = torch.arange(len(predictions.b), device=b.device)
            mine = row[b, i]
            changed = left & (mine >= 0) & (predictions.z[mine.clamp_min(0)] != state)
            if bool(changed.any()):
                yield changed, predictions.take(mine[changed])
                left = left & ~changed


class Listening(Model):
    """Model that records its outputs."""

    heard: StepOutputs

    def __call__(self, z: Tokens, t: Times) -> Logits:
        logits = super().__call__(z, t)
        b, i = torch.ones_like(z, dtype=torch.bool).nonzero().unbind(1)
        # these are cavity logits, for any parameterization
        plain = Model(self.process, self)
        self.heard.evaluate(
            Predictions(plain, logits.flatten(0, 1), b, i, z[b, i], t[b], z[b, :0]), len(z)
        )
        return logits

    def at(self, z: Tokens, t: Times, where: Bool[Tensor, "B L"]) -> Iterator[Predictions]:
        for predictions in super().at(z, t, where):
            self.heard.evaluate(predictions, len(z))
            yield predictions

    def _run(
        self, z: Tokens, t: Times, positions: Tensor | None = None, rows: Tensor | None = None
    ) -> Tensor:
        self.heard.call(torch.ones_like(z[:, 0], dtype=torch.bool) if rows is None else rows)
        return super()._run(z, t, positions, rows)


def listen(network: Model, recorder: StepOutputs) -> None:
    """Record all outputs of this model in ``recorder``."""
    # in place, not by another model: other code around the sampler uses the same object
    network.__class__ = type(Listening.__name__, (Listening, type(network)), {})
    assert isinstance(network, Listening)
    network.heard = recorder
