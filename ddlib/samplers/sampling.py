"""Entry points of sampling: ``plan`` checks a call, ``sample`` checks it and runs it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self, overload

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ddlib.paces import Pace
from ddlib.paces.base import check_pace
from ddlib.parameterization.logits import Parameterization
from ddlib.processes import ForwardProcess, identity
from ddlib.processes.base import check_process
from ddlib.samplers.ancestral import Ancestral
from ddlib.samplers.base import Sampler
from ddlib.samplers.control import Control, Needs, SamplingCall
from ddlib.samplers.controls.truncation import Scheduled, Truncation
from ddlib.samplers.loop import draw, share_time
from ddlib.samplers.requirements import Part, check_requirements
from ddlib.samplers.runtime.logit_processors import LogitProcessors
from ddlib.samplers.runtime.model import Model
from ddlib.samplers.time_grid import check_times, equal_times
from ddlib.samplers.trajectory import Recorder, Trajectory
from ddlib.typing import Denoiser, Sharpen, Tokens
from ddlib.utils.random import Generator, KeyedGenerator
from ddlib.utils.validation import (
    check_count,
    check_flag,
    check_given,
    check_tokens,
    due,
    require,
)


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(SamplingCall):
    """A checked call of ``sample``."""

    seeds: tuple[int, ...] = ()
    """One for each row, in place of ``generator``; empty for none."""

    @property
    def network_calls(self) -> int:
        """Largest number of calls of the network by the sampler.

        ``Settled`` adds one per step where no step shares it, and a rule for lengths calls the
        network once per length of a row.
        """
        guarantees = self.sampler.guarantees
        runs = 1 if self.pace.block is None else self.free.shape[1] // self.pace.block
        return runs * (self.steps * guarantees.max_model_calls + guarantees.max_finalize_calls)

    @torch.inference_mode(False)  # else its states could not be a part of a loss
    def record(self) -> tuple[Tokens, Trajectory]:
        """Generate tokens and return their path too, see ``Trajectory``.

        Raises:
            TypeError: a part of the call with which a path has no known probability; a temperature
                or truncation, or forced transitions, in a process without levels.
        """
        needs = (
            Needs.INDEPENDENT_DRAWS
            | Needs.UNCHANGED_DRAWS
            | Needs.NOISE_FREE_END
            | Needs.TOKEN_DISTRIBUTIONS
        )
        check_requirements(self, [Part(True, needs, "record is ")])
        recorder = Recorder()
        return replace(self, observer=recorder).run(), recorder.trajectory(self)

    @torch.no_grad()
    def run(self) -> Tokens:
        """Generate tokens, (B, L) int64 in [0, V)."""
        self.network.capabilities.check_blocks(self.pace, self.free.shape[1])
        generator = self.generator
        if self.seeds:
            generator = KeyedGenerator(0, 0, torch.tensor(self.seeds, device=self.free.device))
        network = self.network
        call: SamplingCall = replace(
            self, generator=generator, network=network.within(network.context)
        )
        for control in self.controls:
            call = control.prepare(call)
        clean = draw(call)
        tokens = self.process.states_as_tokens(clean)
        _check_clean(self, clean, tokens)
        _check_kept(self, tokens, list(self.controls))
        for control in self.controls:
            finished = control.finish(call, tokens)
            require(
                isinstance(finished, Tensor) and finished.shape == tokens.shape,
                f"finish of {control!r} returned {_kind_of(finished)}, must be tokens of shape "
                f"{tuple(tokens.shape)}",
            )
            check_tokens(f"the result of finish of {control!r}", finished, call.process.vocab_size)
            _check_kept(self, finished, control)
            tokens = finished
        return tokens

    def __repr__(self) -> str:
        parts = {
            "process": self.process,
            "denoiser": self.network.capabilities.name,
            "shape": tuple(self.free.shape),
            "sampler": self.sampler,
            "steps": self.steps,
            "given_tokens": int((~self.free).sum()),
            "pace": self.pace,
            "controls": list(self.controls),
            "network_calls": self.network_calls,
        }
        return (
            "Plan(\n" + "".join(f"    {name}={value!r},\n" for name, value in parts.items()) + ")"
        )


class Given(NamedTuple):
    """Prompt anywhere in a sequence: tokens that are kept where ``given`` is True."""

    x: Int64[Tensor, "*n"]
    """(P,) or (B, P) tokens."""
    given: Bool[Tensor, "*n"]
    """True at the tokens that are kept; the others are drawn."""

    @classmethod
    def of(cls, process: ForwardProcess, prompt: Tensor) -> Self:
        """Return the tokens of states (P,) or (B, P), in which the mask marks a position to draw.

        Raises:
            TypeError, ValueError: not int64; states that are neither tokens nor the last mask.
        """
        check_tokens("prompt", prompt.view(-1, prompt.shape[-1]), process.num_states, "states")
        given = prompt < process.vocab_size
        require(
            bool((given | (prompt == process.num_states - 1)).all()),
            "prompt holds clusters or another mask, must be tokens, or the last mask "
            f"{process.num_states - 1} where a token is drawn",
        )
        return cls(prompt, given)


@torch.no_grad()
def plan(
    process: ForwardProcess,
    denoiser: Denoiser,
    shape: Sequence[int],
    sampler: Sampler | None = None,
    steps: int | Tensor = 128,
    prompt: Tensor | Given | None = None,
    *,
    temperature: Scheduled = 1.0,
    top_p: Scheduled = 1.0,
    pace: Pace | None = None,
    parameterization: Parameterization | None = None,
    controls: Sequence[Control] = (),
    generator: Generator | Sequence[int] = None,
    on_step: Callable[[int, Tensor, Tensor], None] | None = None,
) -> Plan:
    """Check a call of ``sample`` without making it.

    Arguments and errors are those of ``sample``. Each part of a call, such as a sampler or a
    control, states what it needs of the others, and ``ddlib.samplers.requirements.TABLE`` has a row
    for every need. The network is not called, and no random number is drawn.

    Returns:
        the checked call: ``run()`` draws the tokens, ``network_calls`` bounds its cost.

    Example:
        >>> import ddlib as dd
        >>> process, uniform = dd.presets.mdlm(4), lambda z, t: torch.zeros(*z.shape, 4)
        >>> call = plan(process, uniform, (2, 8), dd.samplers.LeftToRight(), steps=8)
        >>> call.network_calls, call.run().shape
        (9, torch.Size([2, 8]))
    """
    sampler = Ancestral() if sampler is None else sampler
    check_process(process, denoiser)
    stated = prompt.x if isinstance(prompt, Given) else prompt
    if prompt is not None and not isinstance(stated, Tensor):
        raise TypeError(
            f"prompt has tokens of type {type(stated).__name__}, must be a tensor, "
            "dd.Given(tokens, given), or None"
        )
    if not isinstance(sampler, Sampler):
        raise TypeError(
            f"sampler is {sampler!r}, must be a ddlib.samplers.Sampler object such as Ancestral()"
        )
    sampler.check(process)
    if isinstance(steps, Sequence):
        raise TypeError(f"steps is {steps!r}, must be an int, or a tensor of times")
    rows, length = _shape(shape)
    times = check_times(steps) if isinstance(steps, Tensor) else equal_times(steps)
    controls = _controls(controls)
    truncation = Truncation(temperature, top_p)
    if temperature != 1 or top_p != 1:
        controls = (truncation, *controls)
    pace = check_pace(pace)
    target = process.device if stated is None else stated.device
    _check_device(process, target)
    pace.check(length, target)
    fixed, free = _prompt(process, prompt, (rows, length), target)
    process.check_inputs(x=fixed)
    source, seeds = _source(generator, rows)
    processors = [function for one in controls for function in one.logits(process, length)]
    compact = not any(Needs.PART_BATCHES in one.breaks for one in controls)
    rules = LogitProcessors(processors) if processors else None
    call = Plan(
        process=process,
        network=Model(process, denoiser, parameterization, compact, rules),
        sharpen=identity,
        times=_grid(pace, times.to(target), length),
        free=free,
        generator=source,
        sampler=sampler,
        fixed=process.tokens_as_states(fixed),
        controls=controls,
        sharpening=lambda t: _compose([one.sharpen(t) for one in controls]),
        pace=pace,
        on_step=on_step,
        seeds=seeds,
    )
    check_requirements(call, _parts(call, steps))
    for control in controls:
        control.check(call)
    network = call.network.capabilities
    if network.undrawn and due(fixed):
        network.check_tokens("prompt", fixed, ~free)
    return call


@overload
def sample(
    process: ForwardProcess,
    denoiser: Denoiser,
    shape: Sequence[int],
    sampler: Sampler | None = None,
    steps: int | Tensor = 128,
    prompt: Tensor | Given | None = None,
    *,
    temperature: Scheduled = 1.0,
    top_p: Scheduled = 1.0,
    pace: Pace | None = None,
    parameterization: Parameterization | None = None,
    controls: Sequence[Control] = (),
    generator: Generator | Sequence[int] = None,
    on_step: Callable[[int, Tensor, Tensor], None] | None = None,
    record: Literal[False] = False,
) -> Tokens: ...


@overload
def sample(
    process: ForwardProcess,
    denoiser: Denoiser,
    shape: Sequence[int],
    sampler: Sampler | None = None,
    steps: int | Tensor = 128,
    prompt: Tensor | Given | None = None,
    *,
    temperature: Scheduled = 1.0,
    top_p: Scheduled = 1.0,
    pace: Pace | None = None,
    parameterization: Parameterization | None = None,
    controls: Sequence[Control] = (),
    generator: Generator | Sequence[int] = None,
    on_step: Callable[[int, Tensor, Tensor], None] | None = None,
    record: Literal[True],
) -> tuple[Tokens, Trajectory]: ...


def sample(
    process: ForwardProcess,
    denoiser: Denoiser,
    shape: Sequence[int],
    sampler: Sampler | None = None,
    steps: int | Tensor = 128,
    prompt: Tensor | Given | None = None,
    *,
    temperature: Scheduled = 1.0,
    top_p: Scheduled = 1.0,
    pace: Pace | None = None,
    parameterization: Parameterization | None = None,
    controls: Sequence[Control] = (),
    generator: Generator | Sequence[int] = None,
    on_step: Callable[[int, Tensor, Tensor], None] | None = None,
    record: bool = False,
) -> Tokens | tuple[Tokens, Trajectory]:
    """Generate tokens, (B, L) int64 in [0, V).

    ``sample(...)`` is ``plan(...).run()``, and with ``record=True`` ``plan(...).record()``.

    Args:
        process: the forward process to run backwards, on the device of the samples.
        denoiser: ``(z, t) -> logits``; put a module into ``eval()`` first. With a
            ``ddlib.typing.SplitDenoiser``, such as a DiT, samplers that first draw which positions
            jump compute the logits of these only. With a ``SparseDenoiser``, which a DiT is too,
            the same holds for features on a CPU.
        shape: (B, L).
        sampler: default ``Ancestral()``.
        steps: number of steps, at least 1, or a grid of times (steps + 1,), decreasing from 1 to 0,
            such as ``samplers.equal_jump_times``. The network is called at most once per step in
            most samplers (``Guarantees.max_model_calls``), and once more if t = 0 is not
            noise-free. A grid is for samplers that use the times (``Guarantees.by_times``), or with
            ``temperature`` or ``top_p`` as functions.
        prompt: (P,) or (B, P) tokens at the beginning, which are kept, P <= L; the mask marks a
            position to draw. Or a ``Given``: tokens, and where they are kept. Where tokens may be
            wrong (GIDD, uniform noise, ``Noisy``), a network with one time per sequence relies on
            the prompt as on tokens at that time, so samples are not those of p(x | prompt) unless
            it was trained with given tokens; a pace with a time per position, such as
            ``RandomOrder``, gives it time 0 at the prompt.
        temperature: divisor of the logits, 0 is greedy: of every distribution over tokens or
            clusters that is drawn from; in a process without levels of the network's distribution
            over the tokens that may have become the state, see ``ForwardProcess.sharpen``.
            ``temperature`` and ``top_p`` may be functions of the time at the start of a step, from
            1 to 0.
        top_p: keep the smallest set of tokens or clusters with at least this probability.
        pace: order of the positions; None is ``Together()``, one time for all. With ``Blocks`` the
            sequence is drawn block by block, each by a run of the sampler; ``steps`` are those of
            one block. With another pace they are those of each of its parts. The denoiser then
            takes times (B, L). A denoiser with blocks (``block_size``) was trained with clean
            tokens in earlier blocks: a pace with other blocks, or with parts of these blocks, gives
            a warning.
        parameterization: meaning of the logits, as in ``nelbo``; by default the denoiser's
            attribute of that name, or "cavity" without one.
        controls: what else acts on the call, in this order: parts of ``ddlib.controls`` such as
            ``Truncation``, ``Forbidden``, ``EndOfText`` or ``Memory``, and those of
            ``ddlib.contrib``, such as ``Constraint``, ``Cache`` or a rule for lengths.
            ``temperature`` and ``top_p`` act before them.
        generator: source of randomness; or a list of B seeds, one for each row: a sequence then
            depends on its seed and not on the batch.
        on_step: called as ``on_step(k, t, z)`` after each step, with a copy of z (B, L) and t (B,),
            or (B, L) along a pace, and with k = -1 at the start.
        record: return the path too, with the log-probability of every draw, for ``log_prob`` and
            ``reward_loss``. The sampler must draw each state by itself, from a distribution that
            the states before the step determine.

    Returns:
        tokens, or with ``record`` tokens and a ``Trajectory``.

    Raises:
        TypeError, ValueError: an invalid shape, steps, grid, prompt, seeds, temperature or
            truncation; logits as in ``nelbo``; a part whose needs process, network, sampler and the
            other parts do not meet.
    """
    call = plan(
        process,
        denoiser,
        shape,
        sampler,
        steps,
        prompt,
        temperature=temperature,
        top_p=top_p,
        pace=pace,
        parameterization=parameterization,
        controls=controls,
        generator=generator,
        on_step=on_step,
    )
    return call.record() if check_flag("record", record) else call.run()


def _check_clean(call: Plan, states: Tokens, tokens: Tokens) -> None:
    """Raise ValueError unless the states that a sampler has returned are clean tokens."""
    clean = (call.process.tokens_as_states(tokens) == states) & (tokens >= 0)
    if not bool(clean.all()):
        row, position = (~clean).nonzero()[0].tolist()
        raise ValueError(
            f"finalize of {type(call.sampler).__name__} returned state {states[row, position]} at "
            f"position {position} of row {row}, must return a token"
        )


def _check_kept(call: Plan, tokens: Tokens, actor: object) -> None:
    """Raise ValueError unless the given tokens are in the samples."""
    wrong = ~call.free & (call.process.tokens_as_states(tokens) != call.fixed)
    if bool(wrong.any()):
        row, position = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"{actor!r} has changed the token given at position {position} of row {row}, which "
            "must be kept: run.free is False there"
        )


def _parts(call: Plan, steps: int | Tensor) -> list[Part]:
    """Return the parts of a call with their needs."""
    guarantees = call.sampler.guarantees
    needs = Needs.NOTHING if guarantees.supports_step_distribution else Needs.TOKEN_DRAWS
    needs |= Needs.NOTHING if guarantees.supports_fields else Needs.ONE_ALPHABET
    parts = [Part(call.sampler, needs)]
    if isinstance(steps, Tensor):
        parts.append(Part(steps.tolist(), Needs.TIMES, "steps is "))
    if call.seeds:
        parts.append(Part(list(call.seeds), Needs.ALIGNED_ROWS, "generator is "))
    parts += [Part(control, control.needs, "controls holds ") for control in call.controls]
    of_network = Needs.NETWORK_TIMES | Needs.TOKEN_DISTRIBUTIONS
    if call.pace.block is not None:
        parts.append(Part(call.pace, Needs.ONE_SEQUENCE | of_network, "pace is "))
    elif not share_time(call.pace, call.free.shape[1]):
        parts.append(Part(call.pace, Needs.STEP_TIMES | of_network, "pace is "))
    return parts


def _compose(functions: Sequence[Sharpen]) -> Sharpen:
    """Return the functions one after the other; ``identity`` if all change nothing."""
    changing = [function for function in functions if function is not identity]
    if len(changing) < 2:
        return changing[0] if changing else identity

    def apply(log_probs: Tensor) -> Tensor:
        for function in changing:
            log_probs = function(log_probs)
        return log_probs

    return apply


def _grid(pace: Pace, times: Tensor, length: int) -> Tensor:
    """Return the grid of all parts of a pace, given that of one; of a block for ``Blocks``."""
    parts = pace.parts(length)
    if pace.block is not None:
        return times
    part = torch.arange(parts - 1, -1, -1, device=times.device)[:, None]
    grid = torch.cat([times[:1], ((part + times[1:]) / parts).flatten()])
    if not share_time(pace, length):
        return grid
    chance = torch.zeros(len(grid), length, dtype=torch.float64, device=times.device)
    return pace.check_path(pace.times(grid, chance), chance)


def _kind_of(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return rows and length, checked."""
    if not isinstance(shape, Sequence):
        raise TypeError(
            f"shape is {shape!r}, must be (B, L): the number of sequences and their length"
        )
    require(len(shape) == 2, f"shape is {tuple(shape)}, must be (B, L)")
    return check_count("shape's B", shape[0]), check_count("shape's L", shape[1])


def _controls(controls: Sequence[Control]) -> tuple[Control, ...]:
    """Return the controls, checked."""
    must = "ddlib.controls.Control objects such as EndOfText(token)"
    if not isinstance(controls, Sequence):
        raise TypeError(f"controls is {controls!r}, must be a list of {must}")
    for control in controls:
        if not isinstance(control, Control):
            raise TypeError(f"controls holds {control!r}, must be {must}")
        members = [name for name in vars(Control) if not name.startswith("_")]
        if all(getattr(type(control), name) is getattr(Control, name) for name in members):
            raise TypeError(
                f"controls holds {control!r}, which has no effect: its class overrides none of "
                f"{', '.join(members)}"
            )
    return tuple(controls)


def _check_device(process: ForwardProcess, target: torch.device) -> None:
    """Raise ValueError unless the process is on the device of the prompt."""
    here = process.device
    require(
        target.type == here.type and (target.index is None or target.index == here.index),
        f"prompt is on {target}, and the process on {here}: use process.to({str(target)!r})",
    )


def _source(generator: Generator | Sequence[int], rows: int) -> tuple[Generator, tuple[int, ...]]:
    """Return a generator, or the seeds of the rows, checked; the other one is empty."""
    if generator is None or isinstance(generator, torch.Generator | KeyedGenerator):
        return generator, ()
    if not isinstance(generator, Sequence):
        raise TypeError(
            f"generator is {generator!r}, must be a generator, or a list of ints, one seed for "
            f"each of the {rows} rows of shape"
        )
    require(
        len(generator) == rows,
        f"generator holds {len(generator)} seeds, must be {rows}, one for each row of shape",
    )
    seeds = tuple(check_count("seed", seed, 0) for seed in generator)
    require(max(seeds) < 2**63, f"generator holds {max(seeds)}, must be seeds below 2^63")
    return None, seeds


def _prompt(
    process: ForwardProcess,
    prompt: Tensor | Given | None,
    shape: tuple[int, ...],
    device: torch.device,
) -> tuple[Tokens, Tensor]:
    """Return the fixed tokens, (B, L), and the positions of the others, which are to be drawn, (B,
    L) bool.
    """
    fixed = torch.zeros(shape, dtype=torch.int64, device=device)
    free = torch.ones(shape, dtype=torch.bool, device=device)
    if prompt is None:
        return fixed, free
    x = prompt.x if isinstance(prompt, Given) else prompt
    require(x.ndim in (1, 2), f"prompt has shape {tuple(x.shape)}, must be (P,) or (B, P)")
    if x.shape[-1] == 0:
        return fixed, free
    x, given = prompt if isinstance(prompt, Given) else Given.of(process, prompt)
    require(given is not None, "prompt.given is None, must be a torch.bool tensor")
    check_given(x, None, given)
    kept = torch.where(given, x, 0).view(-1, x.shape[-1])
    check_tokens("prompt", kept, process.vocab_size)
    length = kept.shape[1]
    require(
        length <= shape[1],
        f"prompt has {length} tokens, must have at most {shape[1]}, the length of the sequence",
    )
    require(
        len(kept) in (1, shape[0]),
        f"prompt has shape {tuple(x.shape)}, must be (P,) or (B, P)",
    )
    fixed[:, :length] = kept
    free[:, :length] = ~given
    return fixed, free
