"""Claims about given tokens: never noised, seen by the network, and in no loss."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ddlib.kernels import Hidden
from ddlib.objective.bound import bound
from ddlib.objective.given import hold_given
from ddlib.objective.nelbo import nelbo
from ddlib.objective.training import training_loss
from ddlib.processes import ForwardProcess
from ddlib.utils.random import KeyedGenerator
from ddlib.verification.framework.claim import Claim, Comparison, Point
from ddlib.verification.framework.inputs import logits, pairs_with_logits, tokens


def _loss(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Compare the loss of a token behind a given one, at all pairs of token and state, with its
    bound alone.

    No noise may lead to the given token at this time.
    """
    token, state, t, scores = pairs_with_logits(process, point)
    alone = nelbo(process, scores, token, state, t)[0]
    x = torch.stack([(token[0] + 1) % process.vocab_size, token[0]], 1)
    given = torch.tensor([True, False]).expand_as(x)
    noise = torch.full_like(token[0], process.num_states - 1)
    z, times = hold_given(x, torch.stack([noise, state[0]], 1), t.expand(len(x)), given)
    both = scores[0, :, None].expand(-1, 2, -1)
    weight = torch.eye(process.vocab_size, dtype=torch.float64)
    labels = {"x": token[0], "z": state[0]}
    for dtype in (torch.float64, torch.float32):
        for name in ("logits", "hidden states"):
            with torch.enable_grad():
                inputs = both.to(dtype).requires_grad_()
                fused = name == "hidden states"
                output = Hidden(inputs, weight.to(dtype)) if fused else inputs
                losses = training_loss(
                    process, output, x, z, times.to(dtype), given=given, reduction="none"
                )
                (slope,) = torch.autograd.grad(losses.sum(), inputs)
            outside = torch.cat([losses[:, :1], slope[:, 0]], 1)
            yield Comparison(
                f"loss and gradient at a given token, from {name} in {dtype}",
                ("",),
                outside,
                torch.zeros_like(outside),
                0.0,
                labels,
            )
            if dtype == torch.float64:
                mean = training_loss(process, output, x, z, times, given=given)
                unit = 1 + alone.abs()
                yield Comparison(
                    f"loss of the other token, from {name}",
                    (),
                    losses[:, 1],
                    alone,
                    1e-9 * unit,
                    labels,
                )
                worst = float((1e-9 * unit).mean())
                yield Comparison(
                    f"mean over the other tokens, from {name}", (), mean, alone.mean(), worst
                )


def _bound(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Compare the terms of a bound with those of the same draws without given tokens, for a network
    that ignores the states, and its input with the given tokens.
    """
    x = tokens(process).T.repeat(4, 2)
    given = torch.tensor([True, False]).expand_as(x)
    scores = logits(process, point["distribution"])
    inputs = []

    def denoiser(z: Tensor, t: Tensor) -> Tensor:
        inputs.append(z)
        return scores.expand(*z.shape, -1)

    noise = [KeyedGenerator(1, 2, torch.arange(len(x))) for _ in range(2)]
    estimate = bound(process, denoiser, x, noise[0], given=given)
    seen = torch.stack([z[:, 0] for z in inputs])
    plain = bound(process, denoiser, x, noise[1])
    yield Comparison("state of a given token", ("call", "row"), seen, x[:, 0].expand_as(seen), 0.0)
    for name in ("diffusion", "prior", "reconstruction"):
        got = getattr(estimate, name)
        want = torch.where(given, 0.0, getattr(plain, name))
        yield Comparison(f"{name} term beside a given token", ("row", "position"), got, want, 0.0)


CLAIMS = (
    Claim(
        "objective",
        "given tokens",
        "a given token has no loss, and leaves that of the others as it is",
        "exactly; 1e-9 of the loss",
        _loss,
        ({"t": 0.5, "distribution": 1}, {"t": 1 - 1e-6, "distribution": 2}),
        ({"t": 1e-6, "distribution": 3}, {"t": 0.99, "distribution": 4}),
        rests_on=("closed = generic", "gradients"),
        means="a loss and its gradient must be finite at every state, also where the state has "
        "probability 0",
    ),
    Claim(
        "objective",
        "bound given tokens",
        "in the bound a given token is not noised and has no term",
        "exactly",
        _bound,
        ({"distribution": 1},),
        rests_on=("given tokens",),
    ),
)
