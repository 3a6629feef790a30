"""Parameterization of the network: meaning of its logits, and their conversion to cavity logits.

The closed forms use the network's output as a distribution over clean tokens: ``q_t(z|p) = sum_x
p(x) q_t(z|x)``. The optimal one is the *cavity* distribution, p(x | the other positions), without
the evidence of the position itself. A network that is trained by cross-entropy on noisy sequences
estimates the *posterior*, p(x | all positions). The two agree for masks and plain hierarchies and
differ for xi < 1 and uniform noise; ``posterior = normalise(cavity * q_t(z|.))`` converts exactly.

Logits are over tokens, (B, L, V), or over the children of each state, (B, L, S - 1), which
determine a distribution over tokens (``ddlib.parameterization.tree_softmax``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ddlib.parameterization.tree_softmax import Children, children_of
from ddlib.processes import ForwardProcess
from ddlib.typing import Logits, Times, Tokens
from ddlib.utils.precision import float32_or_wider
from ddlib.utils.validation import check_devices, check_finite, check_logits, check_shape, require

_IMPOSSIBLE = -1e30  # finite, so that a cluster of impossible tokens alone has no NaN gradient


def _cavity(process: ForwardProcess, logits: Logits, z: Tokens, t: Times) -> Logits:
    return logits


def _posterior(process: ForwardProcess, logits: Logits, z: Tokens, t: Times) -> Logits:
    evidence = process.token_evidence(z, t)
    log_evidence = torch.where(evidence > 0, evidence, 1.0).log().to(logits.dtype)
    return torch.where(evidence > 0, logits.log_softmax(-1) - log_evidence, _IMPOSSIBLE)


_CONVERSIONS = {"cavity": _cavity, "posterior": _posterior}


Parameterization = str | Children
"""Meaning of the network's output: "cavity", "posterior", "children", or a ``Children`` of another
tree.
"""


@dataclass(frozen=True)
class TokenLogits:
    """Parameterization by tokens: meaning of an output layer with a logit for every token, as
    ``Children`` for states.

    Members with names of ``Children`` have their meaning there.
    """

    parameterization: str
    """"cavity" or "posterior"."""
    rows: ClassVar[None] = None
    """Rows of the output layer's matrix are in the order of the tokens."""

    def token_logits(self, logits: Logits) -> Logits:
        """Return the logits, which are over tokens."""
        return logits


def layout_of(
    process: ForwardProcess, parameterization: Parameterization
) -> Children | TokenLogits:
    """Return the columns of the logits: the states of a tree, or the tokens of the process.

    Raises:
        ValueError: an unknown name, "children" for a process without a hierarchy, a tree over other
            tokens.
    """
    if isinstance(parameterization, str) and parameterization in _CONVERSIONS:
        return TokenLogits(parameterization)
    if parameterization == "children":
        if process.hierarchy is None:
            name = type(process).__name__
            raise ValueError(
                f"parameterization is 'children', {name} has no hierarchy: pass dd.Children(tree)"
            )
        parameterization = children_of(process.hierarchy)
    if not isinstance(parameterization, Children):
        names = ", ".join(map(repr, [*_CONVERSIONS, "children"]))
        raise ValueError(
            f"parameterization is {parameterization!r}, must be one of {names} or a dd.Children"
        )
    size = parameterization.tree.vocab_size
    require(
        size == process.vocab_size,
        f"parameterization has a tree over {size} tokens, the process has vocab_size "
        f"{process.vocab_size}",
    )
    return parameterization


def token_columns(process: ForwardProcess, width: int) -> list[slice]:
    """Return the logits of each component's tokens, by their columns.

    Args:
        process: the forward process.
        width: number of columns: of the largest alphabet, which the components share, or of the
            tokens of all components, one after the other.
    """
    sizes = [each.process.vocab_size for each in process.components]
    starts = [0] * len(sizes) if width <= process.vocab_size else accumulate([0, *sizes[:-1]])
    return [slice(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def num_columns(process: ForwardProcess, width: int) -> int:
    """Return the number of columns that logits, or rows that an output layer, of ``width`` must
    have: the number of the tokens of all components if it is that, else of the largest alphabet.
    """
    total = sum(each.process.vocab_size for each in process.components)
    return total if width == total else process.vocab_size


def check_columns(
    process: ForwardProcess, layout: Children | TokenLogits, logits: Tensor, shape: Sequence[int]
) -> None:
    """Raise TypeError or ValueError unless ``logits`` is floating point of shape (B, L, V), (B, L,
    N) with the tokens of all components of the process, or (B, L, S - 1).
    """
    if isinstance(layout, Children):
        check_logits(logits, shape, process.vocab_size, layout.columns)
    else:
        width = logits.shape[-1] if isinstance(logits, Tensor) and logits.ndim else 0
        check_logits(logits, shape, num_columns(process, width))


def check_layer(
    process: ForwardProcess,
    layout: Children | TokenLogits,
    weight: Tensor,
    bias: Tensor | None,
    width: int | None = None,
    owner: str = "",
) -> None:
    """Raise TypeError or ValueError unless an output layer has a row for each column of the logits.

    Args:
        process: the forward process.
        layout: columns of the logits.
        weight: (rows, D).
        bias: (rows,), or None.
        width: D; None for any.
        owner: whose layer it is, for messages, such as "the denoiser's ".
    """
    size = num_columns(process, len(weight))
    rows = "V"
    meaning = ""
    seems = ""
    if isinstance(layout, Children):
        size = layout.columns
        rows = "S - 1"
        meaning = ", a row for every state except the root,"
        if layout.rows is not None:
            size = max(layout.num_rows, len(weight))
            rows = "rows"
            meaning = ""
        if len(weight) == process.vocab_size != size:
            seems = "; V rows are logits of tokens, parameterization='cavity'"
    columns = "D" if width is None else width
    rule = f"({rows}, D){meaning} = ({size}, {columns}){seems}"
    check_shape(f"{owner}weight", weight, (size, width), rule)
    if bias is not None:
        check_shape(f"{owner}bias", bias, (size,), f"({rows},) = ({size},)")


def cavity_logits(
    process: ForwardProcess,
    logits: Float[Tensor, "B L K"],
    z: Tokens,
    t: Times,
    parameterization: Parameterization = "cavity",
) -> Logits:
    """Check logits and convert them to logits of the cavity distribution over tokens, in float32 or
    float64.

    Args:
        process: the forward process.
        logits: output of the network, (B, L, V) over tokens, or (B, L, S - 1) over states for child
            logits; half precision is raised to float32. Never modified.
        z: (B, L) noisy states, the input of the network.
        t: (B,) their times, or (B, L), one for each position.
        parameterization: "cavity" (as in the papers), "posterior" (as trained by cross-entropy),
            "children" or a ``dd.Children``.

    Raises:
        ValueError: unknown parameterization, vocabulary mismatch, NaN or +inf logits.
    """
    layout = layout_of(process, parameterization)
    check_columns(process, layout, logits, z.shape)
    check_devices(logits=logits, z=z)
    return to_cavity(process, layout, logits, z, t)


def to_cavity(
    process: ForwardProcess,
    layout: Children | TokenLogits,
    logits: Float[Tensor, "B L K"],
    z: Tokens,
    t: Times,
) -> Logits:
    """Convert logits of checked shape and device as ``cavity_logits``, given their columns.

    Raises:
        ValueError: NaN or +inf logits.
    """
    logits = layout.token_logits(float32_or_wider(logits))
    logits = process.restrict_logits(logits, z)
    check_finite(logits)
    return _CONVERSIONS[layout.parameterization](process, logits, z, t)


def posterior_logits(
    process: ForwardProcess, logits: Float[Tensor, "B L K"], z: Tokens, t: Times
) -> Logits:
    """Return the log of ``cavity * q_t(z|.)``, unnormalised, in float32 or float64: -inf at tokens
    from which ``z`` never comes.

    Raises:
        TypeError, ValueError: as ``cavity_logits``; states or times out of range.
    """
    process.check_inputs(z=z, t=t)
    check_columns(process, TokenLogits("cavity"), logits, z.shape)
    check_devices(logits=logits, z=z)
    logits = process.restrict_logits(float32_or_wider(logits), z)
    check_finite(logits)
    log_evidence = process.token_evidence(z, t).log()
    return logits.log_softmax(-1) + log_evidence.to(logits.dtype)
