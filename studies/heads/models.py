"""Networks of the study: a process, a transformer, and an output layer."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import ddlib as dd
from ddlib.parameterization.logits import Parameterization
from ddlib.processes import ForwardProcess
from ddlib_models import DiT
from recipes.embeddings.starting import log_probs, state_vectors
from studies.heads.sizes import Sizes

CLIP = dd.weightings.Clip(2.0)
"""Weights in training."""
AR = "AR"
MASKS = "masks"
HDLM = "HDLM"
FLAT = "flat"
ADAPTIVE = "adaptive"


@dataclass(frozen=True)
class Arm:
    """A process and an output layer; of HDLM the noise has the tree of the layer."""

    process: str
    head: str

    @property
    def name(self) -> str:
        """Name in the result file."""
        return f"{self.process} | {self.head}"


class Linear:
    """Output layer of one matrix: over tokens, or over the children of a tree."""

    def __init__(self, net: DiT, parameterization: Parameterization) -> None:
        self.net = net
        self.parameterization = parameterization

    def nats(
        self, process: ForwardProcess, hidden: Tensor, x: Tensor, z: Tensor, t: Tensor
    ) -> Float[Tensor, "B L"]:
        """Return the integrand of the bound."""
        output = dd.Hidden(hidden, *dd.Hidden.layer(self.net, self.parameterization))
        return dd.nelbo(process, output, x, z, t, parameterization=self.parameterization)

    def loss(
        self, process: ForwardProcess, hidden: Tensor, x: Tensor, z: Tensor, t: Tensor
    ) -> Float[Tensor, ""]:
        """Return the training loss."""
        output = dd.Hidden(hidden, *dd.Hidden.layer(self.net, self.parameterization))
        return dd.training_loss(
            process, output, x, z, t, CLIP, parameterization=self.parameterization
        )


class Adaptive(nn.Module):
    """Adaptive softmax of torch (Grave et al. 2017, arXiv 1609.04309) over tokens by frequency.

    Its matrices start at zero, and its biases at the frequencies. Torch has no bias in the tail
    clusters: they get one, so that this layer starts where the others do. For processes of tokens
    and one mask: at a mask the loss is the weight of the bound times the cross-entropy.

    Args:
        width: D.
        counts: (V,) number of occurrences of each token.
        cutoffs: first ranks of the tail clusters.
    """

    def __init__(self, width: int, counts: Int[Tensor, " V"], cutoffs: tuple[int, ...]) -> None:
        super().__init__()
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(
            width, len(counts), list(cutoffs), head_bias=True
        )
        order = counts.argsort(descending=True, stable=True)
        self.register_buffer("rank", order.argsort())
        shares = log_probs(counts).exp()[order]
        levels = [shares[: cutoffs[0]], *shares[cutoffs[0] :].split(_widths(cutoffs, len(counts)))]
        for tail, level in zip(self.softmax.tail, levels[1:], strict=True):
            tail[1] = nn.Linear(tail[1].in_features, len(level))
            nn.init.zeros_(tail[1].weight)
            tail[1].bias = nn.Parameter((level / level.sum()).log())
        with torch.no_grad():
            nn.init.zeros_(self.softmax.head.weight)
            masses = torch.stack([level.sum() for level in levels[1:]])
            self.softmax.head.bias.copy_(torch.cat([levels[0], masses]).log())

    def log_probs(self, hidden: Float[Tensor, "B L D"]) -> Float[Tensor, "B L V"]:
        """Return the log-probabilities of all tokens."""
        by_rank = self.softmax.log_prob(hidden.flatten(0, 1))
        return by_rank[:, self.rank].unflatten(0, hidden.shape[:2])

    def nats(
        self, process: ForwardProcess, hidden: Tensor, x: Tensor, z: Tensor, t: Tensor
    ) -> Float[Tensor, "B L"]:
        """Return the integrand of the bound."""
        return self._weigh(process.loss_weight(x, z, t), hidden, x)

    def loss(
        self, process: ForwardProcess, hidden: Tensor, x: Tensor, z: Tensor, t: Tensor
    ) -> Float[Tensor, ""]:
        """Return the training loss."""
        weight = CLIP(process, process.loss_weight(x, z, t).double(), x, z, t)
        return self._weigh(weight, hidden, x).mean()

    def _weigh(self, weight: Tensor, hidden: Tensor, x: Tensor) -> Tensor:
        noisy = weight > 0
        found = torch.zeros(x.shape, dtype=hidden.dtype)
        log_p = self.softmax(hidden[noisy], self.rank[x[noisy]]).output
        return found.masked_scatter(noisy, -weight[noisy].to(log_p) * log_p)


def _widths(cutoffs: tuple[int, ...], size: int) -> list[int]:
    ends = [*cutoffs, size]
    return [end - start for start, end in pairwise(ends)]


class Model(nn.Module):
    """A network of an arm, with its process.

    Args:
        arm: process and output layer.
        work: folder with statistics and trees.
        seed: seed of the initial weights.
        sizes: sizes of the study.
    """

    def __init__(self, arm: Arm, work: Path, seed: int, sizes: Sizes) -> None:
        super().__init__()
        statistics = torch.load(work / "statistics.pt")
        trees = torch.load(work / "trees.pt")
        self.arm = arm
        noise = trees[arm.head if arm.head in trees else "semantic"]
        self.process = (
            dd.presets.hdlm(noise) if arm.process == HDLM else dd.presets.mdlm(sizes.words)
        )
        torch.manual_seed(seed)
        self.net = DiT(
            self.process.num_states,
            sizes.words,
            dim=sizes.width,
            depth=4,
            heads=4,
            tree=[trees[arm.head]] if arm.head in trees else None,
            block_size=int(arm.process == AR),
            time_conditioned=arm.process != AR,
        )
        counts = statistics["counts"]
        scale = 0.3 * sizes.width**0.5
        self.net.start_at(
            log_probs(counts), state_vectors(self.process, counts, scale * statistics["vectors"])
        )
        self.output: Linear | Adaptive
        if arm.head == ADAPTIVE:
            self.net.head = nn.Identity()
            self.output = Adaptive(sizes.width, counts, sizes.cutoffs)
        else:
            parameterization = dd.Children.of(self.net) if arm.head in trees else "cavity"
            self.output = Linear(self.net, parameterization)
        self.density = self.process.time_density(sizes.length, chance=0.2)

    @property
    def blocks(self) -> nn.ModuleList:
        """Blocks of the transformer, for Muon."""
        return self.net.blocks

    def loss(self, x: Int[Tensor, "B L"], noise: dd.KeyedGenerator) -> Float[Tensor, ""]:
        """Return the training loss; of AR cross-entropy at every position."""
        t = self._ends(x) if self.arm.process == AR else dd.sample_times(len(x), generator=noise)
        z = self.process.sample(x, t, noise)
        return self.output.loss(self.process, self._hidden(z, t, x), x, z, t)

    def nats(self, x: Int[Tensor, "B L"], noise: dd.KeyedGenerator) -> Float[Tensor, "B L"]:
        """Return one draw of the bound, with stratified times of least variance and balanced
        levels; of AR the likelihood.
        """
        if self.arm.process == AR:
            t = self._ends(x)
            z = self.process.sample(x, t, noise)
            return self.output.nats(self.process, self._hidden(z, t, x), x, z, t)
        t = dd.sample_times(len(x), generator=noise, density=self.density)
        z = self.process.sample(x, t, noise, "balanced")
        weight = self.density.weight(t) * self.process.importance_weight(x, z, t)
        return weight[:, None] * self.output.nats(self.process, self._hidden(z, t, x), x, z, t)

    def _ends(self, x: Tensor) -> Tensor:
        return torch.ones(len(x))

    def _hidden(self, z: Tensor, t: Tensor, x: Tensor) -> Tensor:
        if self.arm.process == AR:
            return self.net.features(z, t, clean=x)
        return self.net.features(z, t)
