"""Recorder of the network's calls and outputs within a step."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ddlib.samplers.runtime.model import ModelWrapper, Predictions
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
            found = left & (mine >= 0) & (predictions.z[mine.clamp_min(0)] != state)
            if bool(found.any()):
                yield found, predictions.take(mine[found])
                left = left & ~found


class Listening(ModelWrapper):
    """Model wrapper that records its outputs."""

    heard: StepOutputs

    def __call__(self, z: Tokens, t: Times) -> Logits:
        last = self._last
        logits = super().__call__(z, t)
        self.heard.call(self._ran(last, z))
        b, i = torch.ones_like(z, dtype=torch.bool).nonzero().unbind(1)
        plain = ModelWrapper(
            self.process, self
        )  # these are cavity logits, for any parameterization
        self.heard.evaluate(
            Predictions(plain, logits.flatten(0, 1), b, i, z[b, i], t[b], z[b, :0]), len(z)
        )
        return logits

    def at(self, z: Tokens, t: Times, where: Bool[Tensor, "B L"]) -> Iterator[Predictions]:
        last = self._last
        for number, predictions in enumerate(super().at(z, t, where)):
            if number == 0:  # all outputs come from one call
                all_rows = self.cache_last or not self.compact
                self.heard.call(self._ran(last, z) if all_rows else where.any(-1))
            self.heard.evaluate(predictions, len(z))
            yield predictions

    def _ran(self, last: object, z: Tokens) -> Bool[Tensor, "n"]:
        """Return for each row whether it was evaluated anew.

        Not where it repeats the output ``last``.
        """
        return torch.full_like(
            z[:, 0], not self.cache_last or self._last is not last, dtype=torch.bool
        )


def listen(network: ModelWrapper, recorder: StepOutputs) -> None:
    """Record all outputs of this model wrapper in ``recorder``."""
    # in place, not by another wrapper: other code around the sampler uses the same object
    network.__class__ = type(Listening.__name__, (Listening, type(network)), {})
    network.heard = recorder
