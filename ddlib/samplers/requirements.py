"""Requirements of the parts of a sampling call: one table, compared row by row before any draw."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ddlib.parameterization.capabilities import Capabilities
from ddlib.processes import ForwardProcess, LevelProcess, identity
from ddlib.processes.base import Component
from ddlib.samplers.control import Control, Needs, SamplingCall
from ddlib.samplers.loop import share_time


class UnsupportedError(TypeError):
    """Refusal of a call one part of which needs what the others do not offer.

    Args:
        message: the message.
        part: the part whose need is not met.
        need: the need.
    """

    def __init__(self, message: str, part: object, need: Needs) -> None:
        super().__init__(message)
        self.part = part
        self.need = need


class Part(NamedTuple):
    """A part of a call."""

    part: object
    needs: Needs
    option: str = ""
    """Text before the part in messages."""


class Requirement(NamedTuple):
    """A row of the table."""

    need: Needs
    is_met: Callable[[SamplingCall], bool]
    """Whether process, network, sampler and pace meet it; a control may offer or break it."""
    message: Callable[[SamplingCall, str], str]
    """Message for a call and the option that needs it."""


def network_of(call: SamplingCall) -> Capabilities:
    """Return the capabilities of the network."""
    return call.network.capabilities


def lacking(call: SamplingCall, holds: Callable[[ForwardProcess], bool]) -> list[Component]:
    """Return the components of the process, such as the fields of a product, without a property."""
    return [each for each in call.process.components if not holds(each.process)]


def has_mask(process: ForwardProcess) -> bool:
    """Return whether there are states that are not tokens."""
    return process.num_states > process.vocab_size


def final_tokens(process: ForwardProcess) -> bool:
    """Return whether tokens stay once they are drawn."""
    tokens = torch.arange(process.vocab_size, device=process.device)[:, None]
    return not bool(process.replaceable(tokens).any())


def unchanged_draws(call: SamplingCall) -> bool:
    """Return whether the distribution that a step draws from is known: that of the states in a
    level, or the posterior itself.
    """
    if isinstance(call.process, LevelProcess):
        return True
    forced = call.sampler.guarantees.forces_transitions
    truncated = any(call.sharpening(t) is not identity for t in call.times.flatten().tolist())
    return not (forced or (truncated and draws_by_level(call.process)))


def draws_by_level(process: ForwardProcess) -> bool:
    """Return whether a token may be drawn in parts, such as a cluster and then its member, each
    after temperature and truncation.
    """
    return any(isinstance(each.process, LevelProcess) for each in process.components)


def noise_free_end(process: ForwardProcess) -> bool:
    """Return whether tokens have no noise at t = 0."""
    tokens = torch.arange(process.vocab_size, device=process.device)[:, None]
    start = torch.zeros(len(tokens), dtype=torch.float64, device=process.device)
    return bool((process.likelihood(tokens, tokens, start) == 1).all())


def masked_tree(process: ForwardProcess) -> bool:
    """Return whether each token has one ancestor per level, and only masks are at t = 1."""
    return (
        isinstance(process, LevelProcess)
        and process.exact_ends
        and all(edge.plain for edge in process.hierarchy.maps[:-1])
    )


def takes_windows(call: SamplingCall) -> bool:
    """Return whether the network caches computations around the blocks of the pace."""
    able = network_of(call)
    size = call.pace.block
    whole = size is not None and able.block_size > 0 and size % able.block_size == 0
    return able.caches_windows or (able.caches_blocks and whole)


def draws_of_chance(call: SamplingCall) -> list[Control]:
    """Return the controls that sharpen the same log-probabilities in different ways."""
    row = torch.linspace(0, 1, call.process.vocab_size, device=call.free.device).log_softmax(-1)
    ends = (1.0, 0.0)
    return [
        one
        for one in call.controls
        if not all(torch.equal(one.sharpen(t)(row), one.sharpen(t)(row)) for t in ends)
    ]


def without_path(call: SamplingCall) -> object:
    """Return the control or sampler by which a path has no probability."""
    controls = [one for one in call.controls if Needs.INDEPENDENT_DRAWS in one.breaks]
    return [*controls, *draws_of_chance(call), call.sampler][0]


def breaking(call: SamplingCall, need: Needs) -> object:
    """Return the control by which a call lacks a property, or else the sampler."""
    return next((one for one in call.controls if need in one.breaks), call.sampler)


def fixed_sizes(call: SamplingCall) -> bool:
    """Return whether levels are drawn from uniforms at all positions, and states given these."""
    guarantees = call.sampler.guarantees
    drawn = guarantees.independent_draws and guarantees.supports_joint_draws
    return drawn and isinstance(call.process, LevelProcess)


TABLE = (
    Requirement(
        Needs.ONE_ALPHABET,
        lambda call: len(call.process.components) == 1,
        lambda call, option: (
            f"{option}, which needs the same tokens at all positions, {call.process!r} has "
            f"{len(call.process.components)} fields"
        ),
    ),
    Requirement(
        Needs.MASK,
        lambda call: not lacking(call, has_mask),
        lambda call, option: (
            f"{option}, which needs a mask state, {lacking(call, has_mask)[0]!r} has none"
        ),
    ),
    Requirement(
        Needs.FINAL_TOKENS,
        lambda call: not lacking(call, final_tokens),
        lambda call, option: (
            f"{option}, which needs tokens that do not change once drawn, those of "
            f"{lacking(call, final_tokens)[0]!r} may be wrong"
        ),
    ),
    Requirement(
        Needs.MASKED_TREE,
        lambda call: not lacking(call, masked_tree),
        lambda call, option: (
            f"{option}, which needs masks, clusters that keep their tokens (xi = 1), and only "
            f"masks at t = 1, such as Masked(V, Linear()): {lacking(call, masked_tree)[0]!r} does "
            "not support it"
        ),
    ),
    Requirement(
        Needs.TOKEN_DRAWS,
        lambda call: not network_of(call).has_step_distribution,
        lambda call, option: (
            f"{option} draws from token distributions, {call.network.denoiser!r} guides the "
            "distribution of z_s: use Ancestral(), or on='tokens', which every sampler supports"
        ),
    ),
    Requirement(
        Needs.TOKEN_DISTRIBUTIONS,
        lambda call: not network_of(call).has_step_distribution,
        lambda call, option: (
            f"{option}, which needs token distributions, and {call.network.denoiser!r} guides the "
            "distribution of z_s: omit it, or use on='tokens'"
        ),
    ),
    Requirement(
        Needs.MEMORY,
        lambda call: network_of(call).takes_memory,
        lambda call, option: (
            f"{option}, and the denoiser {network_of(call).name} does not support it: a network "
            "whose features(z, t, memory=) takes those of its previous call must have the "
            "attribute takes_memory = True, as ddlib_models.DiT(memory=True) does; a guidance has "
            "no features"
        ),
    ),
    Requirement(
        Needs.ONE_SEQUENCE,
        lambda call: call.sampler.guarantees.supports_stopping,
        lambda call, option: (
            f"{option}, which {call.sampler!r} does not support: a row has several sequences"
        ),
    ),
    Requirement(
        Needs.INDEPENDENT_DRAWS,
        lambda call: call.sampler.guarantees.independent_draws and not draws_of_chance(call),
        lambda call, option: (
            f"{option} with {without_path(call)!r}, by which a path has no probability in closed "
            "form: use Ancestral(), FirstHitting(), an order without noise such as Confidence(), "
            "or Remask of another rule than 'confidence', and no control of the draws, the length "
            "or the network's features"
        ),
    ),
    Requirement(
        Needs.UNCHANGED_DRAWS,
        unchanged_draws,
        lambda call, option: (
            f"{option}, and {call.process!r} has no levels: z_s is then drawn by several draws, "
            "whose distribution has no closed form with forced transitions, nor with temperature "
            "or truncation where a field has levels, which must be omitted"
        ),
    ),
    Requirement(
        Needs.NOISE_FREE_END,
        lambda call: not lacking(call, noise_free_end),
        lambda call, option: (
            f"{option}, which needs a process without noise at t = 0, "
            f"{lacking(call, noise_free_end)[0]!r} has some"
        ),
    ),
    Requirement(
        Needs.JOINT_DRAWS,
        lambda call: call.sampler.guarantees.supports_joint_draws,
        lambda call, option: (
            f"{option}, which {breaking(call, Needs.JOINT_DRAWS)!r} does not support: a sampler "
            "must draw each token when it is unmasked and keep it or remask it, as LeftToRight(), "
            "Confidence() and Ancestral() do"
        ),
    ),
    Requirement(
        Needs.TIMES,
        lambda call: call.sampler.guarantees.by_times,
        lambda call, option: (
            f"{option}, and {call.sampler!r} only uses the number of steps: pass steps={call.steps}"
        ),
    ),
    Requirement(
        Needs.NO_TIMES,
        lambda call: not call.sampler.guarantees.by_times,
        lambda call, option: (
            f"{option} with a block, and {call.sampler!r} has the same time at all positions: use "
            "Confidence, or block=None"
        ),
    ),
    Requirement(
        Needs.STEP_TIMES,
        lambda call: call.sampler.guarantees.own_times,
        lambda call, option: (
            f"{option}, which {call.sampler!r} does not support: its step has one time for all "
            "positions of a sequence; use Ancestral()"
        ),
    ),
    Requirement(
        Needs.NETWORK_TIMES,
        lambda call: network_of(call).own_times,
        lambda call, option: network_of(call).lacking_times(repr(call.pace)),
    ),
    Requirement(
        Needs.NO_BLOCKS,
        lambda call: call.pace.block is None,
        lambda call, option: (
            f"{option}, and pace is {call.pace!r}, must have no blocks: each block is a call with "
            "other positions"
        ),
    ),
    Requirement(
        Needs.BLOCKS,
        lambda call: call.pace.block is not None,
        lambda call, option: (
            f"{option} and pace is {call.pace!r}, must be Blocks(n): cached positions outside of a "
            f"block must not change, and {call.sampler!r} may change (remask) any position of a "
            "sequence in each step; with Blocks(n) only positions within a block change"
        ),
    ),
    Requirement(
        Needs.WINDOWS,
        takes_windows,
        lambda call, option: (
            f"{option}, which the denoiser {network_of(call).name} does not support: it must "
            "evaluate a window of positions with cached keys and values of the others "
            "(ddlib.typing.WindowDenoiser), as ddlib_models.DiT and "
            "ddlib_models.hf.causal_lm.CausalLM do; encoders of transformers, as in MaskedLM, do "
            "not take such a cache, nor do rows behind padding: sample prompts of one length "
            "together"
        ),
    ),
    Requirement(
        Needs.ONE_TIME,
        lambda call: share_time(call.pace, call.free.shape[1]),
        lambda call, option: (
            f"{option} and pace is {call.pace!r}, must be Together(): with it all positions of a "
            "row have one time"
        ),
    ),
    Requirement(
        Needs.MOVABLE_POSITIONS,
        lambda call: call.sampler.guarantees.movable_positions,
        lambda call, option: (
            f"{option}, which {call.sampler!r} does not support: positions are inserted and "
            "deleted, and it may store values per position, as a film does; use Ancestral() or "
            "Confidence(), not filmed"
        ),
    ),
    Requirement(
        Needs.FIXED_LENGTH,
        lambda call: True,
        lambda call, option: (
            f"{option} and {breaking(call, Needs.FIXED_LENGTH)!r}, must not hold both: it is for "
            "sequences of the fixed length L"
        ),
    ),
    Requirement(
        Needs.PART_BATCHES,
        lambda call: True,
        lambda call, option: (
            f"{option} and {breaking(call, Needs.PART_BATCHES)!r}, must not hold both: a row must "
            "keep its memory in steps without a call"
        ),
    ),
    Requirement(
        Needs.FIXED_SIZES,
        fixed_sizes,
        lambda call, option: (
            f"{option} with {call.sampler!r} on {call.process!r}, whose steps draw by sizes that "
            "depend on the states: use a process with levels, and Ancestral(), FirstHitting(), an "
            "order without noise such as Confidence(), or Remask of another rule than 'confidence'"
        ),
    ),
    Requirement(
        Needs.ALIGNED_ROWS,
        lambda call: not network_of(call).shifts_rows,
        lambda call, option: (
            f"{option}, and the rows of {network_of(call).name} begin at different columns: the "
            "noise of a position is that of its column, so a sequence would not be that of its "
            "seed alone. Pass a generator, or sample prompts of one length together"
        ),
    ),
)


def check_requirements(call: SamplingCall, parts: Sequence[Part]) -> None:
    """Raise UnsupportedError unless the call meets the needs of all its parts."""
    offered = Needs.NOTHING
    broken = Needs.NOTHING
    for control in call.controls:
        offered |= control.offers
        broken |= control.breaks
    for part in parts:
        for row in TABLE:
            if row.need not in part.needs:
                continue
            if row.need in broken or not (row.need in offered or row.is_met(call)):
                raise UnsupportedError(
                    row.message(call, f"{part.option}{part.part!r}"), part.part, row.need
                )
