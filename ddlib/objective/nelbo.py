"""Integrand of the bound -log p(x) <= E[nelbo] of every process."""

from ddlib.objective.training import (
    LossInputs,
    LossOptions,
    Output,
    as_output,
    check_not_drawn,
)
from ddlib.parameterization.logits import Parameterization, cavity_logits
from ddlib.processes import ForwardProcess
from ddlib.processes.base import check_process
from ddlib.processes.integrand import dense_integrand
from ddlib.typing import Logits, PerToken, Times, Tokens
from ddlib.utils.validation import require

METHODS = ("auto", "generic")


def nelbo(
    process: ForwardProcess,
    output: Logits | Output,
    x: Tokens,
    z: Tokens,
    t: Times,
    method: str = "auto",
    parameterization: Parameterization = "cavity",
) -> PerToken:
    r"""Compute the integrand of the negative evidence lower bound at (t, z), in nats per token, (B,
    L), >= 0.

    :math:`-\log p(x) \le E_{t \sim U(0,1),\, z \sim q_t(\cdot|x)}[\mathrm{nelbo}]` plus the end
    terms of ``bound``, which vanish when the schedule's ends are exact. Finite at the ends of time;
    computed in float32 or better.

    Args:
        process: the forward process.
        output: logits, (B, L, V) over tokens, or (B, L, S - 1) over states for child logits, any
            floating dtype, not modified; or ``ddlib.Hidden``.
        x: (B, L) clean tokens.
        z: (B, L) noisy states, drawn by ``process.sample(x, t)``.
        t: (B,) times in [0, 1], or (B, L), one for each position.
        method: "auto" for the closed form where the process has one, "generic" for the dense sum of
            logits.
        parameterization: meaning of the logits, "cavity", "posterior", "children" or a
            ``dd.Children``; see ``ddlib.parameterization.logits``.

    Raises:
        TypeError: wrong dtypes.
        ValueError: wrong shapes, tokens or times out of range, NaN logits, a vocabulary mismatch, a
            ``z`` that cannot come from ``x`` at ``t``, or an unknown method or parameterization.

    Example:
        >>> import ddlib as dd
        >>> process = dd.presets.mdlm(vocab_size=5)
        >>> x = torch.tensor([[0, 3, 4]])
        >>> z = torch.tensor([[0, 5, 5]])
        >>> dd.nelbo(process, torch.zeros(1, 3, 5), x, z, torch.tensor([0.5]))
        tensor([[0.0000, 3.2189, 3.2189]])
    """
    check_not_drawn(t)
    require(
        method in METHODS, f"method is {method!r}, must be one of {', '.join(map(repr, METHODS))}"
    )
    if method == "generic":
        if isinstance(output, Output):
            raise TypeError(
                f"method is 'generic', output a {type(output).__name__}: must be logits"
            )
        check_process(process)
        process.check_inputs(x=x, z=z, t=t)
        process.check_noised(x, z, t)
        return dense_integrand(
            process, cavity_logits(process, output, z, t, parameterization), x, z, t
        )
    options = LossOptions(parameterization=parameterization)
    inputs = LossInputs.of(process, x, z, t, options, None, None)
    process.check_noised(x, z, t)
    return as_output(output).losses(inputs)
