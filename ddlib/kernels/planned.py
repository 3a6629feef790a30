"""Plan of a loss that is computed before the network runs: it depends on noise alone."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ddlib.kernels.dispatch import LossPlan, plan
from ddlib.objective.training import LossInputs, LossOptions, Mode, check_not_drawn
from ddlib.parameterization.logits import Parameterization
from ddlib.processes import ForwardProcess
from ddlib.typing import Times, Tokens
from ddlib.utils.compilation import disable_compile
from ddlib.weightings import Weighting


@dataclass(frozen=True, eq=False)
class PlannedLoss:
    """Weights of a loss, and which columns of the output layer each position needs.

    ``dd.Hidden`` takes it in place of computing them with the loss. On a GPU the host waits for the
    device when it is made, and not in the loss. It is of one batch, one loss and one output layer:
    for others, and where tensors of the batch were changed, ``dd.Hidden`` computes another one.

    Example:
        >>> import ddlib as dd
        >>> process, x = dd.presets.mdlm(vocab_size=5), torch.tensor([[0, 3, 4]])
        >>> z, t = torch.tensor([[0, 5, 5]]), torch.tensor([0.5])
        >>> planned = dd.PlannedLoss.of(process, x, z, t)
        >>> output = dd.Hidden(torch.ones(1, 3, 2), torch.zeros(5, 2), planned=planned)
        >>> dd.training_loss(process, output, x, z, t, reduction="none")
        tensor([[0.0000, 3.2189, 3.2189]])
    """

    process: ForwardProcess
    options: LossOptions
    batch: tuple[Tensor, Tensor, Tensor]
    """Tokens, states and times."""
    versions: tuple[int, ...]
    """Numbers of changes of these tensors."""
    dtype: torch.dtype
    parts: LossPlan

    @classmethod
    @disable_compile
    def of(
        cls,
        process: ForwardProcess,
        x: Tokens,
        z: Tokens,
        t: Times,
        weighting: Weighting | None = None,
        mode: Mode = "standard",
        *,
        parameterization: Parameterization = "cavity",
        dtype: torch.dtype = torch.float32,
        whole: bool = False,
    ) -> Self:
        """Plan the loss of a batch.

        Args:
            process: as in ``training_loss``, as are all arguments but the last two.
            x: see there.
            z: see there.
            t: see there; times, not a draw.
            weighting: see there.
            mode: see there.
            parameterization: see there.
            dtype: that of the hidden states, with autocast that of its matrix products.
            whole: whether all columns are computed for all positions. No size then depends on the
                states, so that the loss may be a part of a CUDA graph.

        Raises:
            TypeError, ValueError: as ``training_loss``.
        """
        options = LossOptions(weighting, mode, parameterization)
        check_not_drawn(t)
        LossInputs.of(process, x, z, t, options, None, None)
        parts = plan(process, x, z, t, options, dtype, whole)
        for part in parts.blocks:
            part.read()
        batch = (x, z, t)
        return cls(process, options, batch, tuple(map(_version, batch)), dtype, parts)

    def fits(self, inputs: LossInputs, dtype: torch.dtype) -> bool:
        """Return whether it is the plan of a loss."""
        batch = (inputs.x, inputs.z, inputs.t)
        return (
            self.process is inputs.process
            and self.options == inputs.options
            and self.dtype == dtype
            and all(one is other for one, other in zip(self.batch, batch, strict=True))
            and self.versions == tuple(map(_version, batch))
            # the weights of a learned weighting may have changed
            and not self.parts.weight.requires_grad
        )


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
