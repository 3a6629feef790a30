"""Output layer and loss, forwards and backwards: ours against the papers' formulas on all logits.

    python benchmarks/head.py                # all rows, a few minutes
    python benchmarks/head.py --tokens 1024  # one size

D = 768, 50,257 words, 64 clusters, float32, one thread. Times are stratified, so that a batch holds clean words,
clusters and masks in the expected shares. Every method's loss is asserted equal to ours before anything is timed.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from measuring import in_its_own_process, medians, peak_megabytes, report, seconds
from torch import Tensor

import ddlib as dd

WORDS, WIDTH, CLUSTERS, XI, UNIFORM = 50_257, 768, 64, 0.9, 0.1
CLIP = 10.0
SEQUENCES = 16


class Batch:
    """Hidden states, matrix, words, states and times of one process."""

    def __init__(self, process: dd.processes.ForwardProcess, tokens: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.process, length = process, tokens // SEQUENCES
        self.hidden = torch.randn(SEQUENCES, length, WIDTH, generator=generator).requires_grad_()
        matrix = torch.randn(WORDS, WIDTH, generator=generator).mul_(2 / WIDTH**0.5)
        self.matrix = matrix.requires_grad_()
        self.x = torch.randint(WORDS, (SEQUENCES, length), generator=generator)
        self.t = (torch.arange(SEQUENCES) + 0.5) / SEQUENCES
        self.z = process.sample(self.x, self.t, generator)
        self.weight = process.loss_weight(self.x, self.z, self.t).clamp(max=CLIP).float()

    def logits(self) -> Tensor:
        """Of all words, for all tokens."""
        return F.linear(self.hidden, self.matrix)

    def step(self, loss: Callable[["Batch"], Tensor]) -> Tensor:
        """A loss and its gradients."""
        value = loss(self)
        torch.autograd.grad(value, (self.hidden, self.matrix))
        return value.detach()


def ours(batch: Batch) -> Tensor:
    """The fused output layer and loss."""
    given = batch.process, batch.hidden, batch.matrix, batch.x, batch.z, batch.t
    return dd.linear_training_loss(*given, weight_clip=(0.0, CLIP))


def cross_entropy(batch: Batch) -> Tensor:
    """Of all tokens: another loss, the least that full logits cost."""
    return F.cross_entropy(batch.logits().flatten(0, 1), batch.x.flatten())


def linear_cross_entropy(batch: Batch) -> Tensor:
    """The same by torch's fused function, in chunks of 128 rows."""
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=128, chunking_method=None)
    return F.linear_cross_entropy(batch.hidden.flatten(0, 1), batch.matrix, batch.x.flatten(), options=options)


def masked(batch: Batch) -> Tensor:
    """MDLM: log-softmax, and the word's entry at masks."""
    log_p = batch.logits().log_softmax(-1).gather(-1, batch.x[..., None]).squeeze(-1)
    return (-log_p * batch.weight).mean()


def clustered(batch: Batch) -> Tensor:
    """HDLM, see ``papers_hdlm``."""
    return papers_hdlm(batch.process, batch.logits(), batch.x, batch.z, batch.weight)


def papers_hdlm(process: dd.processes.Hierarchical, logits: Tensor, x: Tensor, z: Tensor, weight: Tensor) -> Tensor:
    """Log-softmax, clusters by a product with the map as a dense matrix, words within their cluster by a mask."""
    parents = process.hierarchy.maps[0].parents
    map_ = F.one_hot(parents, CLUSTERS).float()
    p = logits.log_softmax(-1).exp()
    cluster = parents[x]
    log_cluster = (p @ map_).clamp_min(1e-30).gather(-1, cluster[..., None]).squeeze(-1).log()
    within = p * map_.T[cluster]
    within = within / within.sum(-1, keepdim=True).clamp_min(1e-30)
    log_word = within.gather(-1, x[..., None]).squeeze(-1).clamp_min(1e-30).log()
    nats = torch.where(process.level_of(z) == 1, -log_word, -log_cluster)
    return (nats * weight).mean()


def perturbed(batch: Batch) -> Tensor:
    """HDLM with xi < 1: the theorem's terms from the probabilities of all clusters."""
    parents, eta = batch.process.hierarchy.maps[0].parents, (CLUSTERS - 1) * XI / (1 - XI)
    log_p = batch.logits().log_softmax(-1)
    map_ = F.one_hot(parents, CLUSTERS).float()
    clusters, right = log_p.exp() @ map_, parents[batch.x]
    seen = (batch.z - WORDS).clamp(0, CLUSTERS - 1)
    here, there = (clusters.gather(-1, index[..., None]).squeeze(-1) for index in (right, seen))
    every = torch.log1p((eta - 1) * clusters)
    rest = every.sum(-1) - every.gather(-1, right[..., None]).squeeze(-1)
    mask = -XI * (torch.log((1 - 1 / eta) * here + 1 / eta) + rest / eta)
    odds = torch.where(seen == right, torch.log((1 - 1 / eta) * there + 1 / eta), torch.log1p((eta - 1) * there))
    word = odds - log_p.gather(-1, batch.x[..., None]).squeeze(-1)
    return (torch.where(batch.process.level_of(batch.z) == 1, word, mask) * batch.weight).mean()


def mixed(batch: Batch) -> Tensor:
    """GIDD: one-hot and softmax mixed with the noise as dense laws, KL over all words, and the ratio at z."""
    keep, uniform, _ = (v.float()[:, None, None] for v in batch.process.mixture(batch.t.double()))
    q = keep * F.one_hot(batch.x, WORDS) + uniform
    p = keep * batch.logits().softmax(-1) + uniform
    kl = F.kl_div(p.log(), q.log(), reduction="none", log_target=True).sum(-1)
    state = batch.z.clamp_max(WORDS - 1)[..., None]
    log_ratio = (q.log() - p.log()).gather(-1, state).squeeze(-1)
    at_word = torch.where(batch.z < WORDS, log_ratio.exp() - log_ratio - 1, 0.0)
    return ((kl + at_word) * batch.weight).mean()


PARENTS = dd.hierarchies.random_parents(WORDS, CLUSTERS)[0]
KINDS = {
    "hdlm": (lambda: dd.presets.hdlm(PARENTS), {"ours": ours, "papers": clustered, "cross_entropy": cross_entropy}),
    "hdlm_xi": (lambda: dd.presets.hdlm(PARENTS, xi=XI), {"ours": ours, "papers": perturbed}),
    "gidd": (lambda: dd.presets.gidd(WORDS, UNIFORM), {"ours": ours, "papers": mixed}),
    "mdlm": (lambda: dd.presets.mdlm(WORDS), {"ours": ours, "papers": masked, "cross_entropy": cross_entropy}),
}
if hasattr(F, "linear_cross_entropy"):
    KINDS["hdlm"][1]["linear_cross_entropy"] = linear_cross_entropy
OTHER_LOSS = ("cross_entropy", "linear_cross_entropy")


def timed(kind: str, tokens: int, repeats: int) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Every method's loss, equal where it must be, and its CPU seconds."""
    make, methods = KINDS[kind]
    batch = Batch(make(), tokens)
    losses = {name: float(batch.step(loss)) for name, loss in methods.items()}
    for name, value in losses.items():
        if name not in OTHER_LOSS and abs(value - losses["ours"]) > 1e-4 * abs(losses["ours"]):
            raise AssertionError(f"{kind}, {tokens} tokens: {name} gives {value}, ours {losses['ours']}")
    return losses, seconds({name: lambda loss=loss: batch.step(loss) for name, loss in methods.items()}, repeats)


def row(kind: str, tokens: int, repeats: int) -> dict[str, Any]:
    """CPU seconds and megabytes of every method, and the ratios to ours."""
    losses, taken = timed(kind, tokens, repeats)
    memory = {name: float(in_its_own_process("head.py", "--memory", kind, name, str(tokens))) for name in losses}
    middle = medians(taken)
    return {
        "cpu_seconds": taken,
        "megabytes": memory,
        "times_faster": {name: value / middle["ours"] for name, value in middle.items() if name != "ours"},
        "times_less_memory": {name: value / memory["ours"] for name, value in memory.items() if name != "ours"},
        "loss": losses,
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 2048])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory", nargs=3, metavar=("KIND", "METHOD", "TOKENS"), help=argparse.SUPPRESS)
    parser.add_argument("--out", default="head")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory:
        kind, name, tokens = options.memory
        make, methods = KINDS[kind]
        batch = Batch(make(), int(tokens))
        print(peak_megabytes(lambda: batch.step(methods[name])))
        return
    report(
        options.out,
        {f"{kind}, {n} tokens": row(kind, n, options.repeats) for kind in options.kinds for n in options.tokens},
    )


if __name__ == "__main__":
    main()
