"""Claims about child logits: equal to the token distribution they define in every loss, tight for
the exact model.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import linear

from ddlib.hierarchies import Flat, Hierarchy, Tree
from ddlib.kernels import Hidden
from ddlib.objective.nelbo import nelbo
from ddlib.parameterization.tree_softmax import Children, is_tree, token_logits
from ddlib.processes import ForwardProcess
from ddlib.typing import Denoiser
from ddlib.verification.claims.objective.bound import integrate, turnover
from ddlib.verification.framework.claim import Claim, Comparison, Point
from ddlib.verification.framework.inputs import logits, pairs, per_pair

_WIDTH = 3
"""Width of the hidden states."""


def trees(process: ForwardProcess) -> dict[str, Hierarchy]:
    """Return trees of the output: that of the process, and others with one to three levels above
    the tokens.
    """
    size = process.vocab_size
    result: dict[str, Hierarchy] = {"no": Flat(size)}
    if size > 2:
        pairs_of_tokens = torch.arange(size) // 2
        result["pairs"] = Tree([pairs_of_tokens])
        if size > 4:
            result["pairs of pairs"] = Tree(
                [pairs_of_tokens, torch.arange(int(pairs_of_tokens[-1]) + 1) // 2]
            )
    noise_tree = process.hierarchy
    return result | (
        {"the noise's": noise_tree} if noise_tree is not None and is_tree(noise_tree) else {}
    )


def child_logits(tree: Hierarchy, log_probs: Tensor) -> Tensor:
    """Return the child logits of a token distribution: the log-mass of each state, (S - 1,)."""
    masses = [log_probs.exp()]
    for edge in tree.maps[:-1]:
        masses.append(masses[-1].new_zeros(edge.num_parents).index_add(0, edge.parents, masses[-1]))
    return torch.cat(masses).log()


def _constant(scores: Tensor) -> Denoiser:
    """Return a network with constant output."""
    return lambda z, t: scores.expand(*z.shape, -1)


def _same_bound(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x, z, t = pairs(process, float(point["t"]))
    generator = torch.Generator().manual_seed(int(point["distribution"]))
    for name, tree in trees(process).items():
        meaning = Children(tree)
        size = tree.num_states - 1
        shapes = (*x.shape, _WIDTH), (size, _WIDTH), (size,)
        layer = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
        with torch.enable_grad():
            parameters = [part.clone().requires_grad_() for part in layer]
            fused = nelbo(
                process,
                Hidden(parameters[0], parameters[1], parameters[2]),
                x,
                z,
                t,
                parameterization=meaning,
            )
            fused_slopes = torch.autograd.grad(fused.sum(), parameters)
            expanded = nelbo(process, linear(*parameters), x, z, t, parameterization=meaning)
            slopes = torch.autograd.grad(expanded.sum(), parameters)
        p = token_logits(tree, linear(*layer))
        generic = nelbo(process, p, x, z, t, "generic")
        unit = turnover(process, x, z, t, p.exp())
        allowed = 1e-10 * unit + 1e-8 * generic
        variant = f"with {name} clusters in the output"
        yield per_pair(
            f"bound from child logits {variant}", x, z, expanded.detach(), generic, allowed
        )
        yield per_pair(
            f"fused bound from child logits {variant}", x, z, fused.detach(), generic, allowed
        )
        for name, fused_slope, slope in zip(
            ("hidden", "weight", "bias"), fused_slopes, slopes, strict=True
        ):
            worst = float((1e-9 * unit).sum())
            yield Comparison(
                f"gradient by {name} of the fused bound {variant}",
                (),
                fused_slope.flatten(),
                slope.flatten(),
                worst,
            )


def _tight(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    best = logits(process, point["distribution"])[0, 0]
    value, *_, change = integrate(process, point, _constant(best), "cavity")
    for name, tree in trees(process).items():
        tree_value, *_ = integrate(
            process, point, _constant(child_logits(tree, best)), Children(tree)
        )
        quantity = (
            f"bound of each token from the child logits of a distribution, with {name} clusters"
        )
        yield Comparison(quantity, ("x",), tree_value, value, 1e-8 * (1 + value) + change)


CLAIMS = (
    Claim(
        "objective",
        "child logits",
        "child logits have the bound and the gradients of the token distribution they define",
        "1e-10 of the turnover",
        _same_bound,
        ({"t": 0.5, "distribution": 1}, {"t": 0.05, "distribution": 2}),
        ({"t": 1e-6, "distribution": 3}, {"t": 1 - 1e-6, "distribution": 4}),
        rests_on=("closed = generic",),
    ),
    Claim(
        "objective",
        "best child logits",
        "with the exact distribution their bound is the entropy",
        "relative 1e-8",
        _tight,
        ({"distribution": 1, "largest log-odds of t": 4.0, "most tokens": 12},),
        rests_on=("child logits", "telescopes"),
    ),
)
