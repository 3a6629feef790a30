"""Output layer and loss, forwards and backwards, against the papers' formulas on all logits.

    # seconds, megabytes and ratios of one kind of process
    python -m benchmarks.head hdlm --tokens 1024

D = 768, 50,257 tokens, 64 clusters, float32, one thread. Times are stratified, so that a batch
holds clean tokens, clusters and masks in the expected shares. Every method's loss is asserted equal
to that of ``ours`` before anything is timed, except cross-entropies: these are another loss, of all
tokens, and the minimum with full logits. In the kinds with child logits, of 224 clusters, the fused
loss on logits of tokens differs too, as its output layer is another one.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import ddlib as dd
from benchmarks.measuring import (
    REPEATS,
    command_line,
    in_its_own_process,
    medians,
    over_ours,
    peak_megabytes,
    require_equal,
    seconds,
)
from ddlib_models import ChildHead

XI = 0.9
UNIFORM = 0.1
CLIP = 10.0
SEQUENCES = 16


class Sizes(NamedTuple):
    """Sizes of a vocabulary and an output layer."""

    words: int = 50_257
    width: int = 768
    clusters: int = 64


GPT2 = Sizes()
TINY = Sizes(40, 8, 5)


class Batch:
    """Hidden states, matrix, tokens, states and times of one process.

    And the matrix of a layer over children.
    """

    def __init__(self, process: dd.processes.ForwardProcess, width: int, tokens: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.process = process
        length = tokens // SEQUENCES
        self.hidden = torch.randn(SEQUENCES, length, width, generator=generator).requires_grad_()
        matrix = torch.randn(process.vocab_size, width, generator=generator).mul_(2 / width**0.5)
        self.matrix = matrix.requires_grad_()
        self.states = torch.empty(0)
        self.x = torch.randint(process.vocab_size, (SEQUENCES, length), generator=generator)
        self.t = (torch.arange(SEQUENCES) + 0.5) / SEQUENCES
        self.z = process.sample(self.x, self.t, generator)
        self.weight = process.loss_weight(self.x, self.z, self.t).clamp(max=CLIP).float()

    def logits(self) -> Tensor:
        """Compute logits over the whole vocabulary, for all tokens."""
        return F.linear(self.hidden, self.matrix)

    def step(self, loss: Callable[["Batch"], Tensor]) -> Tensor:
        """Compute a loss and its gradients."""
        value = loss(self)
        layer = (
            (self.hidden, self.matrix, self.states)
            if self.states.numel()
            else (self.hidden, self.matrix)
        )
        torch.autograd.grad(value, layer, allow_unused=True)
        return value.detach()


def ours(batch: Batch) -> Tensor:
    """Compute the fused output layer and loss."""
    output = dd.Hidden(batch.hidden, batch.matrix)
    arguments = batch.process, output, batch.x, batch.z, batch.t
    return dd.training_loss(*arguments, weighting=dd.weightings.Clip(CLIP))


class Family(Batch):
    """A batch with a layer over the children of a tree, siblings adjacent."""

    def __init__(self, process: dd.processes.ForwardProcess, width: int, tokens: int) -> None:
        super().__init__(process, width, tokens)
        flat = process.hierarchy.depth == 1
        tree = (
            dd.hierarchies.Tree([many_parents(process.vocab_size)]) if flat else process.hierarchy
        )
        head = ChildHead(width, process.vocab_size, [edge.parents for edge in tree.maps[:-1]])
        self.meaning = dd.Children(tree, rows=head.rows)
        self.head = head
        self.states = torch.nn.init.normal_(head.weight, std=2 / width**0.5)


def children(batch: Family) -> Tensor:
    """Compute the fused loss on child logits."""
    output = dd.Hidden(batch.hidden, batch.states)
    arguments = batch.process, output, batch.x, batch.z, batch.t
    return dd.training_loss(
        *arguments, weighting=dd.weightings.Clip(CLIP), parameterization=batch.meaning
    )


def all_children(batch: Family) -> Tensor:
    """Compute the same loss on all child logits."""
    arguments = batch.process, batch.head(batch.hidden), batch.x, batch.z, batch.t
    return dd.training_loss(
        *arguments, weighting=dd.weightings.Clip(CLIP), parameterization=batch.meaning
    )


def cross_entropy(batch: Batch) -> Tensor:
    """Compute the cross-entropy of all tokens: another loss, the minimum with full logits."""
    return F.cross_entropy(batch.logits().flatten(0, 1), batch.x.flatten())


def linear_cross_entropy(batch: Batch) -> Tensor:
    """Compute the same by torch's fused function, in chunks of 128 rows."""
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=128, chunking_method=None)
    return F.linear_cross_entropy(
        batch.hidden.flatten(0, 1), batch.matrix, batch.x.flatten(), options=options
    )


def papers_mdlm(batch: Batch) -> Tensor:
    """Compute MDLM's loss: log-softmax, and the token's entry at masks."""
    log_p = batch.logits().log_softmax(-1).gather(-1, batch.x[..., None]).squeeze(-1)
    return (-log_p * batch.weight).mean()


def papers_hdlm_of_batch(batch: Batch) -> Tensor:
    """Compute HDLM's loss, see ``papers_hdlm``."""
    return papers_hdlm(batch.process, batch.logits(), batch.x, batch.z, batch.weight)


def papers_hdlm(
    process: dd.processes.Hierarchical, logits: Tensor, x: Tensor, z: Tensor, weight: Tensor
) -> Tensor:
    """Compute log-softmax, clusters by a product with the dense map, tokens within their cluster by
    a mask.
    """
    parents = process.hierarchy.maps[0].parents
    map_ = F.one_hot(parents, process.hierarchy.levels[1]).float()
    p = logits.log_softmax(-1).exp()
    cluster = parents[x]
    log_cluster = (p @ map_).clamp_min(1e-30).gather(-1, cluster[..., None]).squeeze(-1).log()
    within = p * map_.T[cluster]
    within = within / within.sum(-1, keepdim=True).clamp_min(1e-30)
    log_word = within.gather(-1, x[..., None]).squeeze(-1).clamp_min(1e-30).log()
    nats = torch.where(process.level_of(z) == 1, -log_word, -log_cluster)
    return (nats * weight).mean()


def papers_hdlm_xi(batch: Batch) -> Tensor:
    """Compute HDLM's loss with xi < 1: the theorem's terms from the probabilities of all
    clusters.
    """
    words, count = batch.process.hierarchy.levels[:2]
    parents = batch.process.hierarchy.maps[0].parents
    eta = (count - 1) * XI / (1 - XI)
    log_p = batch.logits().log_softmax(-1)
    map_ = F.one_hot(parents, count).float()
    clusters = log_p.exp() @ map_
    right = parents[batch.x]
    seen = (batch.z - words).clamp(0, count - 1)
    here, there = (clusters.gather(-1, index[..., None]).squeeze(-1) for index in (right, seen))
    every = torch.log1p((eta - 1) * clusters)
    rest = every.sum(-1) - every.gather(-1, right[..., None]).squeeze(-1)
    mask = -XI * (torch.log((1 - 1 / eta) * here + 1 / eta) + rest / eta)
    odds = torch.where(
        seen == right, torch.log((1 - 1 / eta) * there + 1 / eta), torch.log1p((eta - 1) * there)
    )
    word = odds - log_p.gather(-1, batch.x[..., None]).squeeze(-1)
    return (torch.where(batch.process.level_of(batch.z) == 1, word, mask) * batch.weight).mean()


def papers_gidd(batch: Batch) -> Tensor:
    """Compute GIDD's loss: one-hot and softmax mixed with dense noise, KL over all tokens, and the
    ratio at z.
    """
    words = batch.process.vocab_size
    keep, uniform, _ = (v.float()[:, None, None] for v in batch.process.mixture(batch.t.double()))
    q = keep * F.one_hot(batch.x, words) + uniform
    p = keep * batch.logits().softmax(-1) + uniform
    kl = F.kl_div(p.log(), q.log(), reduction="none", log_target=True).sum(-1)
    state = batch.z.clamp_max(words - 1)[..., None]
    log_ratio = (q.log() - p.log()).gather(-1, state).squeeze(-1)
    at_word = torch.where(batch.z < words, log_ratio.exp() - log_ratio - 1, 0.0)
    return ((kl + at_word) * batch.weight).mean()


def parents(sizes: Sizes) -> Tensor:
    """Draw the cluster of each token at random."""
    return dd.hierarchies.random_parents(sizes.words, sizes.clusters)[0]


def many_parents(words: int) -> Tensor:
    """Return clusters for an output layer over children: the square root of the number of
    tokens.
    """
    return dd.hierarchies.random_parents(words, round(words**0.5))[0]


Loss = Callable[[Any], Tensor]


class Kind(NamedTuple):
    """A process, and the compared methods: with the process's loss, and with another."""

    make: Callable[[Sizes], dd.processes.ForwardProcess]
    same: Mapping[str, Loss]
    other: Mapping[str, Loss] = {}
    batch: type[Batch] = Batch


CHILDREN = {"ours": children, "expanded": all_children}
BESIDE = {"words": ours, "cross_entropy": cross_entropy}
KINDS = {
    "hdlm": Kind(
        lambda sizes: dd.presets.hdlm(parents(sizes)),
        {"ours": ours, "papers": papers_hdlm_of_batch},
        {"cross_entropy": cross_entropy, "linear_cross_entropy": linear_cross_entropy},
    ),
    "hdlm_xi": Kind(
        lambda sizes: dd.presets.hdlm(parents(sizes), xi=XI),
        {"ours": ours, "papers": papers_hdlm_xi},
    ),
    "gidd": Kind(
        lambda sizes: dd.presets.gidd(sizes.words, UNIFORM), {"ours": ours, "papers": papers_gidd}
    ),
    "mdlm": Kind(
        lambda sizes: dd.presets.mdlm(sizes.words),
        {"ours": ours, "papers": papers_mdlm},
        {"cross_entropy": cross_entropy},
    ),
    "hdlm_children": Kind(
        lambda sizes: dd.presets.hdlm(many_parents(sizes.words)), CHILDREN, BESIDE, Family
    ),
    "mdlm_children": Kind(lambda sizes: dd.presets.mdlm(sizes.words), CHILDREN, BESIDE, Family),
}


def methods(kind: str) -> dict[str, Loss]:
    """Return all methods in this release of torch."""
    losses = {**KINDS[kind].same, **KINDS[kind].other}
    return {
        name: loss
        for name, loss in losses.items()
        if name != "linear_cross_entropy" or hasattr(F, name)
    }


def times(
    kind: str, tokens: int, repeats: int = REPEATS, names: tuple[str, ...] = (), sizes: Sizes = GPT2
) -> dict[str, Any]:
    """Return CPU seconds of the methods ``names``, of all by default, and the speedup of
    ``ours``.
    """
    batch = KINDS[kind].batch(KINDS[kind].make(sizes), sizes.width, tokens)
    functions = {name: loss for name, loss in methods(kind).items() if name in names or not names}
    losses = {name: float(batch.step(loss)) for name, loss in functions.items()}
    require_equal({name: value for name, value in losses.items() if name in KINDS[kind].same})
    timings = seconds(
        {name: lambda loss=loss: batch.step(loss) for name, loss in functions.items()}, repeats
    )
    return {"ratios": over_ours(medians(timings), "time"), "cpu_seconds": timings, "losses": losses}


def memory(
    kind: str, tokens: int, names: tuple[str, ...] = (), tiny: bool = False
) -> dict[str, Any]:
    """Return peak megabytes above those of a batch, and the ratio to ``ours``.

    Each once, in turn.
    """
    size = ("--tiny",) if tiny else ()
    labels = [name for name in methods(kind) if name in names or not names]
    megabytes = {
        name: float(
            in_its_own_process("head", kind, "--tokens", str(tokens), "--memory", name, *size)
        )
        for name in labels
    }
    sizes = TINY if tiny else GPT2
    beside = megabytes["ours"] - 4 * sizes.words * sizes.width / 2**20
    return {
        "ratios": over_ours(megabytes, "memory") | {"ours beside a gradient": beside},
        "megabytes": megabytes,
    }


def main() -> None:
    """Run the command."""
    parser = command_line(__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--tokens", type=int, default=1024, help=f"a multiple of {SEQUENCES}")
    parser.add_argument("--memory", metavar="METHOD", help="print only the megabytes of one method")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = TINY if options.tiny else GPT2
    if options.memory:
        batch = KINDS[options.kind].batch(
            KINDS[options.kind].make(sizes), sizes.width, options.tokens
        )
        print(peak_megabytes(lambda: batch.step(methods(options.kind)[options.memory])))
        return
    speed = times(options.kind, options.tokens, options.repeats, sizes=sizes)
    peak = memory(options.kind, options.tokens, tiny=options.tiny)
    print(json.dumps({**speed, **peak, "ratios": speed["ratios"] | peak["ratios"]}, indent=1))


if __name__ == "__main__":
    main()
