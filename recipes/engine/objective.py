"""The network and its loss as one module.

What is compiled, copied and sharded, and what a batch goes through.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

import ddlib as dd
from ddlib.parameterization.logits import Parameterization, meaning, output_layer
from ddlib.processes import unsqueeze_times
from ddlib.typing import Denoiser, SplitDenoiser, Times, implements
from ddlib.utils.random import Generator
from recipes.config import Loss
from recipes.data import Batch
from recipes.engine.consistency import Target, consistency
from recipes.engine.noisy import Noisy
from recipes.engine.self_conditioning import recalled
from recipes.metrics.conditioned import takes_labels
from recipes.model_io import called

_NEXT_PIECE = 2**40 + 0x9E3779B1
"""Between the numbers of two pieces of a row.

More than there are rows, and odd, so that their times lie apart.
"""


def noised(
    process: dd.processes.ForwardProcess,
    batch: Batch,
    seed: int,
    step: int,
    loss: Loss | None = None,
    density: dd.times.TimeDensity | None = None,
    pace: dd.paces.Pace | None = None,
    at_once: bool = False,
) -> Noisy:
    """Noise a batch, with times and noise that depend on (seed, step, example) alone, by the
    options of the loss.

    Args:
        process: the noise.
        batch: clean examples.
        seed: seed of the run.
        step: optimizer step.
        loss: how times and levels are drawn, and whether times are weighed.
        density: of the times within a part of the pace; None is uniform.
        pace: which position when; None is all at one time.
        at_once: see ``Noisy``.
    """
    loss = Loss() if loss is None else loss
    pace = dd.paces.Together() if pace is None else pace
    if batch.cu_seqlens is None:
        noise = dd.KeyedGenerator(seed, step, batch.index)
        t, measure = _timed(pace, noise, batch.x, loss, density, at_once)
        if loss.levels == "independent":
            z = process.sample(batch.x, t, noise)
            return Noisy(batch.x, z, t, measure, batch.mask, at_once=at_once, labels=batch.labels)
        z = process.sample(batch.x, t, noise, levels=loss.levels)
        if loss.levels == "balanced":
            measure = measure * process.importance_weight(batch.x, z, t)
        return Noisy(batch.x, z, t, measure, batch.mask, labels=batch.labels)
    keyed = dd.KeyedGenerator(seed, step, _turns(batch), scattered=True)
    piece_t, piece_measure = _timed(pace, keyed, batch.index[:, None], loss, density)
    lengths = batch.cu_seqlens.diff()
    owner = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
    x = batch.x.view(-1, 1)
    t = piece_t[owner]
    measure = piece_measure[owner]
    # each token has its own random stream, different from those of the documents' times
    offset = torch.arange(len(x), device=x.device) - batch.cu_seqlens[owner]
    token = dd.KeyedGenerator(seed, step, batch.index[owner] + offset + 2**61)
    z = process.sample(x, t, token)
    mask = batch.mask.view(-1, 1)
    return Noisy(x, z, t, measure, mask, batch.cu_seqlens, piece_t, labels=batch.labels)


def _turns(batch: Batch) -> Int[Tensor, " N"]:
    """Stratification index of each packed piece.

    The row's index, plus a different offset for each piece of that row.

    Numbers of tokens would not do: those of first pieces are multiples of the length, and all would
    have one time.
    """
    row = batch.index // batch.x.shape[1]
    piece = torch.arange(len(row), device=row.device) - torch.searchsorted(row, row)
    return row + piece * _NEXT_PIECE


def _timed(
    pace: dd.paces.Pace,
    noise: Generator,
    x: Int[Tensor, "B L"],
    loss: Loss,
    density: dd.times.TimeDensity | None,
    at_once: bool = False,
) -> tuple[Times, Tensor]:
    """Times for training, and what each draw of them counts."""
    drawn = pace.draw(
        *x.shape,
        noise,
        density=density,
        interval=loss.interval,
        at_once=at_once,
        weigh=loss.weigh_times,
        device=x.device,
    )
    if drawn.t.ndim == 1:
        return drawn.t, drawn.measure
    # positions that are not noised get time 0 or 1, as in sampling, not an end of loss.interval
    end = (drawn.t > sum(loss.interval) / 2).to(drawn.t)
    return torch.where(drawn.measure > 0, drawn.t, end), drawn.measure


class Objective(nn.Module):
    """Loss of a noisy batch in nats, token by token.

    Args:
        model: the network.
        process: the noise. It is not a submodule: it has nothing to train, copy or shard.
        loss: what is minimised.
        half: whether matrix products are in bfloat16.
    """

    def __init__(
        self, model: nn.Module, process: dd.processes.ForwardProcess, loss: Loss, half: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.half = half
        self.weighting = loss.rule()
        self._mode = loss.edge_weights or loss.mode
        if loss.order is not None:
            self.weighting = dd.weightings.Constant()  # the rest is in the measure of the rows
            if loss.mode == "edges" and loss.edge_weights is None:
                self._mode = (1.0,) * (len(process.levels) - 1)
        self._process = [process]

    def forward(
        self, noisy: Noisy, kept: Bool[Tensor, "B L"], scale: Tensor, target: Target | None = None
    ) -> tuple[Tensor, Float[Tensor, "B L"]]:
        """``scale`` times the sum of the training loss over the tokens that are ``kept``, and the
        loss of each.

        With a ``target`` the loss includes the consistency term. NaN, with NaN gradients, where the
        network's activations are not finite.
        """
        split = implements(self.model, SplitDenoiser)
        memory = recalled(noisy, lambda: self._called(self.model.features, noisy), self.half)
        with torch.autocast(noisy.z.device.type, torch.bfloat16, enabled=self.half):
            output, clusters = (
                self._features(noisy, memory) if split else (self._called(self.model, noisy), None)
            )
            # a logit of minus infinity says that a token is impossible
            sound = output.isfinite() if split else output < torch.inf
            if output.device.type == "cpu" and not bool(sound.all()):
                # ddlib would refuse them here, as it does not on accelerators; but every rank must
                # reach the exchange of gradients, after which the loop stops
                lost = torch.stack([p.sum() for p in self.parameters()]).sum() * torch.nan
                return lost, torch.where(sound.all(-1), 0.0, lost.detach())
            total, losses = self._loss(output, noisy, kept, scale)
            if noisy.rows is not None and self.training:
                noisy.rows.step(output.detach(), self.model if split else None)
            if target is not None:
                layer = self.model.output_weights() if split else None
                own = consistency(
                    self._process[0], output, layer, noisy, target, self.loss, self.parameterization
                )
                own = self.loss.consistency * torch.where(kept, own, 0.0)
                total = total + scale * own.sum()
                losses = losses + own.detach()
        if clusters is not None:
            own = torch.where(kept, cluster_loss(self._process[0], clusters.float(), noisy), 0.0)
            own = own * unsqueeze_times(noisy.measure).to(own.dtype)
            total = total + scale * self.loss.auxiliary * own.sum()
            losses = losses + self.loss.auxiliary * own.detach()
        return total, losses

    def predict(
        self, z: Int[Tensor, "B L"], t: Times, *packing: Tensor, **options: Any
    ) -> Float[Tensor, "B L K"]:
        """Return the network's logits; a separate method, before which FSDP gathers the weights."""
        return self.model(z, t, *packing, **options)

    @torch.no_grad()
    def answer(self, noisy: Noisy) -> Float[Tensor, "B L K"]:
        """Return the network's logits for a noisy batch, without gradient."""
        with torch.autocast(noisy.z.device.type, torch.bfloat16, enabled=self.half):
            return self._called(self.predict, noisy)

    @property
    def denoiser(self) -> Denoiser:
        """The network as a denoiser of ``ddlib``."""
        return called(self.model, self.half, self.predict)

    @cached_property
    def parameterization(self) -> Parameterization:
        """Parameterization of the network's output.

        Determined once the network is on its device.
        """
        return meaning(self.model, self.loss.parameterization)

    def _loss(
        self, output: Tensor, noisy: Noisy, kept: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the loss; of features with the output layer in it, of which only the logits that
        it depends on are computed.
        """
        if implements(self.model, SplitDenoiser):
            weight, bias = output_layer(self.model, self.parameterization)
            observe = None if noisy.rows is None else noisy.rows.observe
            output = dd.Hidden(output, weight, bias, observe=observe)
        return dd.summed_loss(
            self._process[0],
            output,
            noisy.x,
            noisy.z,
            dd.paces.Draw(noisy.t, noisy.measure),
            scale,
            self.weighting,
            self._mode,
            mask=kept,
            parameterization=self.parameterization,
        )

    def _features(self, noisy: Noisy, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if self.loss.auxiliary:
            return self._called(self.model.features_with_clusters, noisy, memory)
        return self._called(self.model.features, noisy, memory), None

    def _called(
        self, network: Callable[..., Any], noisy: Noisy, memory: Tensor | None = None
    ) -> Any:
        """Call the network; output and memory for packed rows are those of one sequence for every
        token.
        """
        options: dict[str, Any] = {"clean": noisy.x} if noisy.at_once else {}
        if noisy.labels is not None and takes_labels(self.model):
            options["label"] = noisy.labels.clamp_min(
                0
            )  # the padding of a packed row counts in no loss
        if memory is not None:
            options["memory"] = memory if noisy.cu_seqlens is None else memory.transpose(0, 1)
        if noisy.cu_seqlens is None:
            return network(noisy.z, noisy.t, **options)
        return network(noisy.z.view(1, -1), noisy.piece_t, noisy.cu_seqlens, **options).transpose(
            0, 1
        )


def cluster_loss(
    process: dd.processes.ForwardProcess, logits: Float[Tensor, "B L K"], noisy: Noisy
) -> Float[Tensor, "B L"]:
    """Return -log c(k(x) | z, t) of the second head in nats per token, where the finest cluster is
    not visible.
    """
    cluster = process.hierarchy.maps[0].parents[noisy.x]
    nats = F.cross_entropy(logits.flatten(0, 1), cluster.flatten(), reduction="none").view_as(
        noisy.x
    )
    return torch.where(process.level_of(noisy.z) >= 2, nats, 0.0)


def level_sums(
    process: dd.processes.ForwardProcess,
    losses: Float[Tensor, "B L"],
    noisy: Noisy,
    kept: Bool[Tensor, "B L"],
) -> Float[Tensor, "n 2"]:
    """Sum the loss and the number of tokens that count, for every level of the noise."""
    level = process.level_of(noisy.z).flatten()
    sums = torch.zeros(len(process.levels), 2, dtype=torch.float64, device=noisy.z.device)
    values = torch.stack([losses.detach().flatten().double(), kept.flatten().double()], -1)
    return sums.index_add_(0, level, values)
