"""Parameterization of the network: meaning of its logits, and their conversion to cavity logits.

The closed forms use the network's output as a distribution over clean tokens: ``q_t(z|p) = sum_x p(x) q_t(z|x)``. The
optimal one is the *cavity* distribution, p(x | the other positions), without the evidence of the position itself. A
network that is trained by cross-entropy on noisy sequences estimates the *posterior*, p(x | all positions). The two
agree for masks and plain hierarchies and differ for xi < 1 and uniform noise; ``posterior = normalise(cavity *
q_t(z|.))`` converts exactly.

Logits are over tokens, (B, L, V), or over the children of each state, (B, L, S - 1), which determine a distribution
over tokens (``ddlib.parameterization.tree_softmax``).
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

_EMPTY = CellType()  # a closure variable without a value yet
_IMPOSSIBLE = -1e30  # finite, so that a cluster of impossible tokens alone has no NaN gradient


def _cavity(process: ForwardProcess, logits: Logits, z: Tokens, t: Times) -> Logits:
    return logits


def _posterior(process: ForwardProcess, logits: Logits, z: Tokens, t: Times) -> Logits:
    likelihood = process.token_likelihood(z, t)
    log_likelihood = torch.where(likelihood > 0, likelihood, 1.0).log().to(logits.dtype)
    return torch.where(likelihood > 0, logits.log_softmax(-1) - log_likelihood, _IMPOSSIBLE)


_CONVERSIONS = {"cavity": _cavity, "posterior": _posterior}


Parameterization = str | Children
"""Meaning of the network's output: "cavity", "posterior", "children", or a ``Children`` of another tree."""


def output_layer(
    denoiser: SplitDenoiser, parameterization: Parameterization
) -> tuple[Float[Tensor, "K D"], Float[Tensor, "K"] | None]:
    """Return the matrix and bias that ``linear_nelbo`` and the other fused losses take with this parameterization.

    Their rows are in memory order if the network predicts the children of a tree and the parameterization has ``rows``,
    as ``Children.of(denoiser)`` has, and otherwise in the order of the tokens or states.
    """
    if isinstance(parameterization, Children) and parameterization.rows is not None and has_tree(denoiser):
        return denoiser.siblings()[:2]
    return denoiser.words()


def meaning(denoiser: object, law: str) -> Parameterization:
    """Return the meaning of a network's logits: ``Children`` of its tree if it has one, else ``law``."""
    return Children.of(denoiser, law) if has_tree(denoiser) else law


def stated(denoiser: object, parameterization: Parameterization | None) -> Parameterization:
    """Return the meaning of a denoiser's logits: as passed, else its attribute ``parameterization``, else "cavity".

    Guidances and models from the hub have the attribute.
    """
    if parameterization is not None:
        return parameterization
    attribute: Parameterization | None = getattr(denoiser, "parameterization", None)
    return "cavity" if attribute is None else attribute


def takes_own_times(denoiser: object) -> bool:
    """Return whether a denoiser takes a time per position, ``typing.OwnTimes``."""
    return isinstance(denoiser, OwnTimes) and bool(denoiser.own_times)


def check_time_input(denoiser: Denoiser, clean: int | None, asker: str) -> None:
    """Raise TypeError unless a denoiser takes a time per position and, if required, the clean sequence.

    Args:
        denoiser: the network; its attributes are those of ``typing.OwnTimes`` and ``typing.BlockDenoiser``.
        clean: number of positions of a block, if the denoiser takes the clean sequence too; None if it does not.
        asker: name of the caller in error messages.
    """
    name = _name(denoiser)
    if not takes_own_times(denoiser):
        inner: Mapping[str, object] = getattr(denoiser, "heard", {})  # of a guidance
        lacking = [part for part in inner if not takes_own_times(inner[part])]
        lacks = f"{lacking[0]} of {name}, {_name(inner[lacking[0]])}," if lacking else f"denoiser {name}"
        raise TypeError(
            f"{asker} gives every position a time of its own, and the {lacks} takes one time per sequence: one "
            "that takes t (B, L) says so by the attribute own_times = True, as ddlib_models.DiT does"
        )
    seen = getattr(denoiser, "block_size", None)
    if clean is not None and seen != clean:
        raise TypeError(
            f"at_once is True with {asker}, and the denoiser {name} has block_size {seen}, must be {clean}: of a block "
            "it may see what is noisy, and the clean text of those before"
        )


def _name(part: object) -> str:
    return str(getattr(part, "__qualname__", type(part).__qualname__))


def networks(denoiser: object, depth: int = 3) -> Iterator[nn.Module]:
    """Yield the modules that a callable is, has as attributes or closes over; processes and submodules excluded."""
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
    """Return whether any part of the modules of a callable is in train mode."""
    return any(part.training for network in networks(denoiser) for part in network.modules())


@contextmanager
def evaluating(denoiser: object, device: torch.device, caller: str) -> Iterator[None]:
    """Warn once if a module in train mode behaves as in training during the calls inside.

    It does so if it draws from torch's global state, as dropout does, or writes to its buffers, as batch normalisation
    does. This is detected by behaviour, not by the type of the modules: a module in train mode that does neither
    computes the same as in eval mode.
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
            f"{caller}: the denoiser {_name(denoiser)} is in train mode and {does}; its result is not that of the "
            "network that was trained: call model.eval() before, and model.train() after",
        )


def check_graph(denoiser: object, values: Tensor, caller: str) -> None:
    """Warn once if the result of a network in eval mode keeps its autograd graph.

    A result with a graph is correct and required for training on a bound: in train mode there is no warning.
    """
    found = list(networks(denoiser)) if values.requires_grad and not torch.compiler.is_compiling() else []
    if found and not any(network.training for network in found):
        warn_once(
            "graph",
            f"{caller}: the denoiser {_name(denoiser)} is in eval mode and its result keeps the autograd graph, and "
            "with it the memory of the forward pass: call it under torch.no_grad(), or ignore this where it is "
            "differentiated",
        )


def _random_state(device: torch.device) -> Tensor:
    """State of torch's global generator on a device."""
    return torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)


def _writes(denoiser: object) -> int:
    """Number of writes to buffers."""
    buffers = [buffer for network in networks(denoiser) for buffer in network.buffers()]
    return sum(0 if buffer.is_inference() else buffer._version for buffer in buffers)


def tree_of(process: ForwardProcess, parameterization: Parameterization) -> Children | None:
    """Return the ``Children`` whose states the logits are over; None where they are over tokens.

    Raises:
        ValueError: an unknown name, "children" for a process without a hierarchy, a tree over other tokens.
    """
    if isinstance(parameterization, str) and parameterization in _CONVERSIONS:
        return None
    if parameterization == "children":
        require(
            process.hierarchy is not None,
            f"parameterization is 'children', {type(process).__name__} has no hierarchy: give dd.Children(tree)",
        )
        assert process.hierarchy is not None
        parameterization = children_of(process.hierarchy)
    if not isinstance(parameterization, Children):
        names = ", ".join(map(repr, [*_CONVERSIONS, "children"]))
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
    """Check logits and convert them to logits of the cavity distribution over tokens, in float32 or float64.

    Args:
        process: the forward process.
        logits: output of the network, (B, L, V) over tokens, or (B, L, S - 1) over states for child logits; half
            precision is raised to float32. Never modified.
        z: (B, L) noisy states, the input of the network.
        t: (B,) their times, or (B, L), one for each position.
        parameterization: "cavity" (as in the papers), "posterior" (as trained by cross-entropy), "children" or a
            ``dd.Children``.

    Raises:
        ValueError: unknown parameterization, vocabulary mismatch, NaN or +inf logits.
    """
    children = tree_of(process, parameterization)
    name = str(parameterization) if children is None else children.law
    check_logits(logits, z.shape, process.vocab_size, None if children is None else children.columns)
    check_devices(logits=logits, z=z)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if children is not None:
        logits = children.words(logits)
    check_finite(logits)
    return _CONVERSIONS[name](process, logits, z, t)


def posterior_logits(process: ForwardProcess, logits: Logits, z: Tokens, t: Times) -> Logits:
    """Return the log of ``cavity * q_t(z|.)``, unnormalised: -inf at tokens from which ``z`` cannot come.

    Raises:
        TypeError, ValueError: as ``cavity_logits``; states or times out of range.
    """
    process.check_inputs(z=z, t=t)
    check_logits(logits, z.shape, process.vocab_size)
    check_finite(logits)
    likelihood = process.token_likelihood(z, t)
    possible = likelihood > 0  # before the log, so that gradients of learned speeds are 0 at impossible tokens
    evidence = torch.where(possible, torch.where(possible, likelihood, 1.0).log(), -torch.inf)
    return logits.log_softmax(-1) + evidence.to(logits.dtype)
