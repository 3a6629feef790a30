"""Probability of a recorded path, for gradients of rewards (theory section 22)."""

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import pad

from ddlib.parameterization.capabilities import warn_of_alias
from ddlib.parameterization.logits import Parameterization
from ddlib.processes import ForwardProcess
from ddlib.processes.base import check_process
from ddlib.samplers.base import SamplingContext
from ddlib.samplers.control import SamplingCall
from ddlib.samplers.runtime.model import Model
from ddlib.samplers.trajectory import Step, Trajectory, check_trajectory
from ddlib.typing import Denoiser
from ddlib.utils.validation import require


def log_prob(
    process: ForwardProcess,
    denoiser: Denoiser,
    trajectory: Trajectory,
    steps: int | None = None,
    *,
    per_draw: bool = False,
    parameterization: Parameterization | None = None,
    generator: torch.Generator | None = None,
) -> Float64[Tensor, "*n"]:
    r"""Compute the log-probability of a recorded path, given its levels, under a network.

    .. math::

        \log p(\mathrm{path} \mid \mathrm{levels})
        = \sum_k \sum_{l \in A_k} \log \pi(z_{k+1, l} \mid z_k, p)

    A_k are the positions that step k draws. In a ``LevelProcess`` the levels are drawn without the
    network, so the gradient of the result is that of the log-probability of the path; in other
    processes pi is q(z_s | z_t, p), and positions that stay count too. Temperature, truncation and
    forced transitions are those of the call that made the path. The states of all steps are known,
    so the cost is that of sampling, and a backward pass.

    Args:
        process: the process of the call.
        denoiser: ``(z, t) -> logits``, such as the network that made the path with other weights.
        trajectory: the second result of ``dd.sample(..., record=True)``.
        steps: number of steps that are evaluated, chosen at random and weighted, so that the result
            is an unbiased estimate; None for all.
        per_draw: return one term per draw, not their sum.
        parameterization: meaning of the logits, as in ``nelbo``; by default what the denoiser
            states, else that of the recorded call.
        generator: source of the choice of ``steps``, on the CPU.

    Returns:
        (B,) nats, or with ``per_draw`` (N, B, L), 0 where nothing is drawn; differentiable.

    Raises:
        TypeError, ValueError: an argument that is not a trajectory; one of another process;
            ``steps`` out of range, or with ``per_draw``; logits as in ``nelbo``.
    """
    require(
        steps is None or not per_draw,
        f"steps is {steps} with per_draw=True, must be None: pass trajectory.choose({steps})",
    )
    call = _call(process, denoiser, trajectory, parameterization)
    if steps is not None:
        trajectory = trajectory.choose(steps, generator)
    result = _stack(trajectory, lambda step: step.log_probs(_run(call, step)))
    return result if per_draw else trajectory.weight * result.sum((0, 2))


def path_kl(
    process: ForwardProcess,
    denoiser: Denoiser,
    reference: Denoiser,
    trajectory: Trajectory,
    *,
    parameterization: Parameterization | None = None,
) -> Float64[Tensor, "N B"]:
    """Compute the divergence between two networks' draws, step by step along a recorded path.

    Its mean over paths of ``denoiser``, summed over steps, is KL(p || reference) of paths, given
    the levels, which is an upper bound of that of the sequences. Its own gradient is not that of
    the mean, as the visited states depend on the weights: ``reward_loss`` adds the other part.

    Args:
        process: the process of the call.
        denoiser: the network that is trained.
        reference: the network that it should stay close to; without a gradient.
        trajectory: the second result of ``dd.sample(..., record=True)``.
        parameterization: meaning of the logits of both, as in ``log_prob``.

    Returns:
        (N, B) nats of each step, summed over positions; differentiable in ``denoiser``.

    Raises:
        TypeError, ValueError: as ``log_prob``.
    """
    warn_of_alias(denoiser, reference)
    call = _call(process, denoiser, trajectory, parameterization)
    other = _call(process, reference, trajectory, parameterization)
    terms = _stack(trajectory, lambda step: step.divergence(_run(call, step), _run(other, step)))
    return terms.sum(-1)


def _call(
    process: ForwardProcess,
    denoiser: Denoiser,
    trajectory: Trajectory,
    parameterization: Parameterization | None,
) -> SamplingCall:
    """Return the call of the trajectory with another network, checked."""
    check_process(process, denoiser)
    check_trajectory(trajectory)
    recorded = trajectory.call
    if process is not recorded.process:
        other = state_difference(process, recorded.process.state_dict())
        require(
            not other,
            f"trajectory is of {recorded.process!r}, and process is {process!r}, must be the same: "
            f"{other}",
        )
    network = recorded.network
    if parameterization is None and getattr(denoiser, "parameterization", None) is None:
        parameterization = network.parameterization
    model = Model(process, denoiser, parameterization, network.compact, network.logit_processors)
    return replace(recorded, process=process, network=model)


def state_difference(process: ForwardProcess, saved: dict[str, Tensor]) -> str:
    """Return the first difference of a process and a saved state; empty if there is none."""
    state = process.state_dict()
    try:
        copy.deepcopy(process).load_state_dict(saved)
    except (RuntimeError, ValueError) as error:
        return str(error)
    for name, value in state.items():
        # extra states are compared above
        if not name.endswith("_extra_state") and not torch.equal(saved[name].cpu(), value.cpu()):
            return f"{name} has other values"
    return ""


def _run(call: SamplingCall, step: Step) -> SamplingContext:
    """Return the context of a step."""
    network = call.network.within(step.context)
    return replace(call, network=network, sharpen=call.sharpening(step.time))


def _stack(
    trajectory: Trajectory, compute: Callable[[Step], Float64[Tensor, "B l"]]
) -> Float64[Tensor, "N B L"]:
    """Compute terms of each step, at the positions of the whole sequence."""
    length = trajectory.log_probs.shape[2]
    rows = [
        pad(compute(step), (step.columns.start, length - step.columns.stop))[None]
        for step in trajectory.steps
    ]
    # of a path without steps too
    return torch.cat([trajectory.log_probs[:0], *rows])
