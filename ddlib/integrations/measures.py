"""Loss and bound of noisy batches, in the form that training loops call."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ddlib.config.building import build
from ddlib.integrations.batches import read_floats
from ddlib.objective.bound import bound
from ddlib.objective.metrics import Measure
from ddlib.objective.training import LossOptions, training_loss
from ddlib.paces import Draw
from ddlib.parameterization.capabilities import Capabilities
from ddlib.parameterization.logits import Parameterization
from ddlib.processes import ForwardProcess
from ddlib.typing import Denoiser
from ddlib.utils.random import KeyedGenerator
from ddlib.weightings import Weighting


class DiffusionLoss(nn.Module):
    """Training loss of a batch of ``DiffusionCollator``, with the signature of Trainer's
    ``compute_loss_func``.

    It computes ``ddlib.training_loss``, in float32 also within an autocast region.

    Args:
        process: the forward process. The module keeps a copy, which moves to the device of the
            labels.
        weighting: see ``ddlib.training_loss``, and so are the following; also as plain values.
        mode: see there.
        parameterization: meaning of the network's output.
    """

    def __init__(
        self,
        process: ForwardProcess,
        weighting: Weighting | Mapping[str, Any] | str | None = None,
        mode: str = "standard",
        parameterization: Parameterization = "cavity",
    ) -> None:
        super().__init__()
        self.process: ForwardProcess = deepcopy(process)
        self.weighting: Weighting | None = (
            None if weighting is None else build("weightings", weighting)
        )
        self.mode = mode
        self.parameterization = parameterization
        LossOptions(self.weighting, mode).check(process)

    def forward(
        self,
        outputs: Any,
        labels: Mapping[str, Any],
        num_items_in_batch: Tensor | float | None = None,
    ) -> Tensor:
        """Compute the loss in nats per token.

        Args:
            outputs: logits of the network, or a mapping that has ``logits``.
            labels: the batch's ``Targets``.
            num_items_in_batch: divisor of the summed nats: the tokens of all batches of one step of
                the optimizer. By default the tokens of this batch.

        Raises:
            TypeError: times or weights in half precision.
        """
        logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs
        x = labels["x"]
        mask = labels["mask"]
        given = labels["given"]
        self.process.to(x.device)
        with torch.autocast(x.device.type, enabled=False):
            logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
            nats = training_loss(
                self.process,
                logits,
                x,
                labels["z"],
                Draw(*(read_floats(name, labels[name]) for name in ("t", "measure"))),
                self.weighting,
                self.mode,
                mask=mask,
                given=given,
                parameterization=self.parameterization,
                reduction="none",
            )
            return nats.sum() / (
                (mask & ~given).sum() if num_items_in_batch is None else num_items_in_batch
            )


class _Conditioned:
    """Denoiser given the conditions of a batch, in the autocast region of its construction.

    Within such a region its logits are float32. Attributes are the denoiser's.
    """

    def __init__(self, denoiser: Denoiser, conditions: Mapping[str, Any], device: str) -> None:
        self.denoiser = denoiser
        self.conditions = conditions
        self.device = device
        self.__qualname__ = Capabilities.of(denoiser).name  # in messages
        self.enabled = torch.is_autocast_enabled(device)
        self.dtype = torch.get_autocast_dtype(device)

    def __call__(self, z: Tensor, t: Tensor, **options: Any) -> Tensor:
        with torch.autocast(self.device, self.dtype, enabled=self.enabled):
            logits = self.denoiser(z, t, **self.conditions, **options)
        return logits.float() if self.enabled else logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self.denoiser, name)


@torch.no_grad()
def sequence_bounds(
    process: ForwardProcess,
    denoiser: Denoiser,
    labels: Mapping[str, Any],
    seed: int = 0,
    **options: Any,
) -> Float64[Tensor, "B 4"]:
    """Compute the bound of each sequence: its position, nats, tokens, and the time of its draw;
    rows of ``mean_bound``.

    The noise of the labels is not used: time and noise are functions of seed and position alone.
    The network takes the conditions of the labels, such as the class of each sequence. Within an
    autocast region it alone is in low precision.

    Args:
        process: the forward process, on the device of the labels.
        denoiser: ``(z, t, **conditions) -> logits``, in evaluation mode.
        labels: a batch's ``Targets``.
        seed: seed of times and noise.
        **options: those of ``ddlib.bound``. Without a ``density`` times are drawn from the one of
            least variance, where the process has it.
    """
    if "position" not in labels:
        raise ValueError(
            "labels have no position, which determines the noise of a sequence: wrap the data of "
            "the evaluation in "
            "Positions, so that each item has one"
        )
    x = labels["x"]
    mask = labels["mask"]
    given = labels["given"]
    position = labels["position"]
    if "density" not in options:
        options["density"] = least_variance(process, x.shape[1])
    noise = KeyedGenerator(seed, 0, position)
    network = _Conditioned(denoiser, labels["conditions"], x.device.type)
    with torch.autocast(x.device.type, enabled=False):
        terms = bound(process, network, x, noise, mask=mask, given=given, **options)
    times = (
        torch.full_like(position, torch.nan, dtype=torch.float64)
        if terms.times is None
        else terms.times
    )
    tokens = (mask & ~given).sum(1)
    return torch.stack([part.double() for part in (position, terms.total.sum(1), tokens, times)], 1)


def least_variance(process: ForwardProcess, length: int) -> Any:
    """Return the process's density of times of least variance.

    None, the uniform one, if it has none.
    """
    try:
        return process.time_density(length, chance=0.2)
    except (TypeError, ValueError):
        return None


def mean_bound(rows: Float64[Tensor, "N 4"]) -> Measure:
    """Compute the mean bound in nats per token with its standard error, from the rows of all
    batches and processes.

    A position that occurs twice, where a sampler filled up the last batch, counts once.
    """
    rows = torch.as_tensor(rows).cpu()
    # in the order of positions, in which times are strata
    position, inverse = rows[:, 0].unique(return_inverse=True)
    first = torch.full_like(position, len(rows), dtype=torch.int64)
    first.scatter_reduce_(0, inverse, torch.arange(len(rows)), "amin")
    _, nats, tokens, times = rows[first].T
    return Measure.ratio(
        nats, tokens, "nats per token", None if bool(times.isnan().any()) else times
    )
