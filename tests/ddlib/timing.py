"""Times per position: results at (B, L) are those of B L sequences of one position."""

import torch
from torch import Tensor

import ddlib as dd

F64 = torch.float64
TIMES = torch.tensor([[0.3, 1e-6, 0.8], [1 - 1e-6, 0.5, 0.3]], dtype=F64)


def split(value):
    """Values of tokens (B, L) as those of sequences of one token each."""
    return value.flatten(0, 1)[:, None] if isinstance(value, Tensor) else value


def drawn(process, t, seed=0):
    """Tokens, states that they can become, logits of tokens."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(process.vocab_size, t.shape, generator=generator)
    probs = process.marginal(split(x), t.flatten())[:, 0]
    z = torch.multinomial(probs, 1, generator=generator).view(t.shape)
    logits = torch.randn(*t.shape, process.vocab_size, dtype=F64, generator=generator)
    return x, z, logits


def answers(process, x, z, logits, s, t):
    """Every answer that depends on times, by name: called alike with times per sequence and per
    position.
    """
    p = logits.softmax(-1)
    found = {
        "marginal": process.marginal(x, t),
        "likelihood": process.likelihood(z, x, t),
        "token_likelihood": process.token_likelihood(z, t),
        "predictive": process.predictive(p, t),
        "posterior": process.posterior(p, z, t, s),
        "reverse_rate": process.reverse_rate(p, z, t),
        "prior_kl": process.prior_kl(x, t),
        "loss_weight": process.loss_weight(x, z, t),
        "step_divergence": process.step_divergence(logits, x, z, t, s),
        "leaving": process.exit_rate(z, t, logits),
        "posterior_logits": dd.parameterization.logits.posterior_logits(process, logits, z, t),
        "cavity_logits": dd.parameterization.logits.cavity_logits(
            process, logits, z, t, "posterior"
        ),
        "generic": dd.nelbo(process, logits, x, z, t, method="generic"),
        "pull": process._weight_and_mean(x, z, t)[1],
        "mean pull": process._weight_and_mean(x, z, t)[0],
    }
    found["weight"], found["divergence"] = process.integrand_parts(logits, x, z, t)
    drawn = dd.paces.Draw(t, dd.times.Beta(2.0, 1.0).weight(t))
    for meaning in ("cavity", "posterior"):
        found[f"nelbo {meaning}"] = dd.nelbo(process, logits, x, z, t, parameterization=meaning)
        for mode in process.modes:
            found[f"{mode} {meaning}"] = dd.training_loss(
                process,
                logits,
                x,
                z,
                drawn,
                dd.weightings.Clip(3.0),
                mode,
                parameterization=meaning,
                reduction="none",
            )
            found[f"linear {mode} {meaning}"] = dd.training_loss(
                process,
                dd.Hidden(p, torch.eye(process.vocab_size, dtype=F64)),
                x,
                z,
                drawn,
                dd.weightings.Clip(3.0),
                mode,
                parameterization=meaning,
                reduction="none",
            )
    return found


def draws(process, x, z, logits, s, t):
    """Everything that is drawn. One seed gives a batch of (B, L) and one of (B L, 1) the same
    numbers in one order.
    """
    noise = lambda: torch.Generator().manual_seed(3)  # noqa: E731
    found = {
        "sample": process.sample(x, t, noise()),
        "advance": process.sample_forward(process.sample(x, s, noise()), s, t, noise()),
        "land": process.sample_given_level(logits, z, t, s, None, noise()),
        "leave": process.sample_exit(logits, z, t, torch.ones_like(z, dtype=torch.bool), noise()),
    }
    if isinstance(process, dd.processes.LevelProcess):
        found["level"] = process.sample_level(z, t, s, noise())
        found["lifted"] = process.sample_level(z, t, s, noise(), process.max_remask_prob(t, s) / 2)
    return found


def agrees(process, s, t, seed):
    """Compares every answer at times (B, L) with those of B L texts of one position at times (B
    L,).
    """
    x, z, logits = drawn(process, t, seed)
    alike = *map(split, (x, z, logits)), s.flatten(), t.flatten()
    drawn_alone = draws(process, *alike)
    for name, states in draws(process, x, z, logits, s, t).items():
        assert torch.equal(states, drawn_alone[name].view(t.shape)), f"{name} of {process!r}"
    whole = answers(process, x, z, logits, s, t)
    alone = answers(process, *alike)
    for name, value in whole.items():
        expected = alone[name].view(value.shape)
        assert torch.allclose(value, expected, rtol=1e-11, atol=1e-13, equal_nan=True), (
            f"{name} of {process!r}"
        )
