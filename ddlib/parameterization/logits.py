"""What the network's output means.

The closed forms plug the network's law in as if it were a law of clean words: ``q_t(z|p) = sum_x p(x) q_t(z|x)``. The
best such law is the *cavity*, p(x | the other positions), without the evidence of the position itself. A network
trained by cross-entropy on noisy text gives the *posterior*, p(x | all positions). They agree for masks and plain
hierarchies and differ for xi < 1 and uniform noise; ``posterior = normalise(cavity * q_t(z|.))`` converts exactly.

Logits are of words, (B, L, V), or of the children of each state, (B, L, S - 1), from which a law over words follows
(``ddlib.parameterization.tree_softmax``).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CellType

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ddlib.parameterization.tree_softmax import Children, children_of, has_tree
from ddlib.processes import ForwardProcess
from ddlib.typing import Denoiser, Logits, OwnTimes, SplitDenoiser, Times, Tokens
from ddlib.utils.validation import check_devices, check_finite, check_logits, require, warn_once

_EMPTY = CellType()  # a name that is closed over and has no value yet
_IMPOSSIBLE = -1e30  # finite, so that a cluster in which every word is impossible gives no NaN gradient


def _cavity(process: ForwardProcess, logits: Logits, z: Tokens, t: Times) -> Logits:
    return logits


def _posterior(process: ForwardProcess, logits: Logits, z: Tokens, t: Times) -> Logits:
    likelihood = process.token_likelihood(z, t)
    log_likelihood = torch.where(likelihood > 0, likelihood, 1.0).log().to(logits.dtype)
    return torch.where(likelihood > 0, logits.log_softmax(-1) - log_likelihood, _IMPOSSIBLE)


_LAWS = {"cavity": _cavity, "posterior": _posterior}


Parameterization = str | Children
"""What the network's output means: "cavity", "posterior", "children", or a ``Children`` of a tree of one's own."""


def output_layer(
    denoiser: SplitDenoiser, parameterization: Parameterization
) -> tuple[Float[Tensor, "K D"], Float[Tensor, "K"] | None]:
    """Matrix and bias as ``linear_nelbo`` and its like take them with this parameterization.

    They come as they lie in memory if a network with a tree predicts children and the parameterization has ``rows``, as
    ``Children.of(denoiser)`` has, and otherwise in the order of the words or states.
    """
    if isinstance(parameterization, Children) and parameterization.rows is not None and has_tree(denoiser):
        return denoiser.siblings()[:2]
    return denoiser.words()


def meaning(denoiser: object, law: str) -> Parameterization:
    """What a network's logits mean: of one that predicts children those of its tree, of another ``law``."""
    return Children.of(denoiser, law) if has_tree(denoiser) else law


def stated(denoiser: object, parameterization: Parameterization | None) -> Parameterization:
    """What a denoiser's logits mean: as passed, else its attribute ``parameterization``, else "cavity".

    Guidances and models from the hub have the attribute.
    """
    if parameterization is not None:
        return parameterization
    own: Parameterization | None = getattr(denoiser, "parameterization", None)
    return "cavity" if own is None else own


def takes_own_times(denoiser: object) -> bool:
    """Whether a denoiser says that it may be told a time per position, ``typing.OwnTimes``."""
    return isinstance(denoiser, OwnTimes) and bool(denoiser.own_times)


def check_time_input(denoiser: Denoiser, clean: int | None, asker: str) -> None:
    """Raises TypeError unless a denoiser may be told a time per position and, beside it, the clean text.

    Args:
        denoiser: whose attributes say so, ``typing.OwnTimes`` and ``typing.BlockDenoiser``.
        clean: of how many positions a block is of which it may only see the noisy one; None if it is told no text.
        asker: who tells it, for messages.
    """
    name = _called(denoiser)
    if not takes_own_times(denoiser):
        inner: Mapping[str, object] = getattr(denoiser, "heard", {})  # of a guidance
        lacking = [part for part in inner if not takes_own_times(inner[part])]
        who = f"{lacking[0]} of {name}, {_called(inner[lacking[0]])}," if lacking else f"denoiser {name}"
        raise TypeError(
            f"{asker} gives every position a time of its own, and the {who} takes one time per sequence: one "
            "that takes t (B, L) says so by the attribute own_times = True, as ddlib_models.DiT does"
        )
    seen = getattr(denoiser, "block_size", None)
    if clean is not None and seen != clean:
        raise TypeError(
            f"at_once is True with {asker}, and the denoiser {name} has block_size {seen}, must be {clean}: of a block "
            "it may see what is noisy, and the clean text of those before"
        )


def _called(part: object) -> str:
    return str(getattr(part, "__qualname__", type(part).__qualname__))


def networks(denoiser: object, depth: int = 3) -> Iterator[nn.Module]:
    """Modules that a callable is, holds or closes over, processes left out; a module's own parts are in the module."""
    if isinstance(denoiser, nn.Module):
        if not isinstance(denoiser, ForwardProcess):
            yield denoiser
    elif depth and denoiser is not None:
        cells = getattr(denoiser, "__closure__", None) or ()
        held = [getattr(denoiser, "__self__", None), getattr(denoiser, "func", None)]  # of methods and partials
        held += [cell.cell_contents for cell in cells if cell != _EMPTY]
        held += getattr(denoiser, "__dict__", {}).values()
        for one in held:
            for part in one if isinstance(one, (list, tuple)) else [one]:
                if callable(part):
                    yield from networks(part, depth - 1)


def in_training(denoiser: object) -> bool:
    """Whether any part of the modules behind a callable is in train mode."""
    return any(part.training for network in networks(denoiser) for part in network.modules())


@contextmanager
def evaluating(denoiser: object, device: torch.device, caller: str) -> Iterator[None]:
    """Warn once of a call inside in which a module in train mode behaved as in training.

    It draws from torch's global state, as dropout does, or writes to its buffers, as batch normalisation does. What a
    module does decides, not which modules it consists of: one in train mode that does neither is what it is in eval
    mode.
    """
    if torch.compiler.is_compiling() or not in_training(denoiser):
        yield
        return
    before = _random_state(device), _writes(denoiser)
    yield
    drew, wrote = not torch.equal(before[0], _random_state(device)), before[1] != _writes(denoiser)
    if drew or wrote:
        does = "draws random numbers, as dropout does" if drew else "writes to its buffers, as batch normalisation does"
        warn_once(
            "train mode",
            f"{caller}: the denoiser {_called(denoiser)} is in train mode and {does}; its result is not that of the "
            "network that was trained: call model.eval() before, and model.train() after",
        )


def check_graph(denoiser: object, values: Tensor, caller: str) -> None:
    """Warn once of a network in eval mode whose result keeps its autograd graph.

    A result with a graph is right, and what training on a bound needs: in train mode nothing is warned of.
    """
    found = list(networks(denoiser)) if values.requires_grad and not torch.compiler.is_compiling() else []
    if found and not any(network.training for network in found):
        warn_once(
            "graph",
            f"{caller}: the denoiser {_called(denoiser)} is in eval mode and its result keeps the autograd graph, and "
            "with it the memory of the forward pass: call it under torch.no_grad(), or ignore this where it is "
            "differentiated",
        )


def _random_state(device: torch.device) -> Tensor:
    """The state of torch's global generator on a device."""
    return torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)


def _writes(denoiser: object) -> int:
    """How often buffers were written to."""
    buffers = [buffer for network in networks(denoiser) for buffer in network.buffers()]
    return sum(0 if buffer.is_inference() else buffer._version for buffer in buffers)


def tree_of(process: ForwardProcess, parameterization: Parameterization) -> Children | None:
    """Of which tree's states the logits are; None where they are of words.

    Raises:
        ValueError: an unknown name, "children" of a process without a hierarchy, a tree over other words.
    """
    if isinstance(parameterization, str) and parameterization in _LAWS:
        return None
    if parameterization == "children":
        require(
            process.hierarchy is not None,
            f"parameterization is 'children', {type(process).__name__} has no hierarchy: give dd.Children(tree)",
        )
        assert process.hierarchy is not None
        parameterization = children_of(process.hierarchy)
    if not isinstance(parameterization, Children):
        names = ", ".join(map(repr, [*_LAWS, "children"]))
        raise ValueError(f"parameterization is {parameterization!r}, must be one of {names} or a dd.Children")
    size = parameterization.tree.vocab_size
    require(
        size == process.vocab_size,
        f"parameterization has a tree over {size} words, the process has vocab_size {process.vocab_size}",
    )
    return parameterization


def cavity_logits(
    process: ForwardProcess,
    logits: Float[Tensor, "B L K"],
    z: Tokens,
    t: Times,
    parameterization: Parameterization = "cavity",
) -> Logits:
    """Checked logits over words of the cavity law, in float32 or float64, whatever the network's parameterization.

    Args:
        process: the forward process.
        logits: what the network said, (B, L, V) over words, or (B, L, S - 1) over states for child logits; half
            precision is raised to float32. Never modified.
        z: (B, L) the noisy states it said it about.
        t: (B,) their times, or (B, L), one for each position.
        parameterization: "cavity" (the papers'), "posterior" (what cross-entropy learns), "children" or a
            ``dd.Children``.

    Raises:
        ValueError: unknown parameterization, vocabulary mismatch, NaN or +inf logits.
    """
    children = tree_of(process, parameterization)
    law = str(parameterization) if children is None else children.law
    check_logits(logits, z.shape, process.vocab_size, None if children is None else children.columns)
    check_devices(logits=logits, z=z)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if children is not None:
        logits = children.words(logits)
    check_finite(logits)
    return _LAWS[law](process, logits, z, t)


def posterior_logits(process: ForwardProcess, logits: Logits, z: Tokens, t: Times) -> Logits:
    """Log of ``cavity * q_t(z|.)``, unnormalised: -inf at words from which ``z`` cannot come.

    Raises:
        TypeError, ValueError: as ``cavity_logits``; states or times out of range.
    """
    process.check_inputs(z=z, t=t)
    check_logits(logits, z.shape, process.vocab_size)
    check_finite(logits)
    likelihood = process.token_likelihood(z, t)
    possible = likelihood > 0  # asked first, so that gradients of learned speeds are 0 where words are impossible
    evidence = torch.where(possible, torch.where(possible, likelihood, 1.0).log(), -torch.inf)
    return logits.log_softmax(-1) + evidence.to(logits.dtype)
