"""Entry point of sampling: ``sample`` checks its arguments and runs a sampler."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ddlib.paces import Pace
from ddlib.parameterization.logits import Parameterization
from ddlib.processes import ForwardProcess
from ddlib.processes.base import check_process
from ddlib.samplers.ancestral import Ancestral
from ddlib.samplers.base import Sampler
from ddlib.samplers.constraints import Automaton
from ddlib.samplers.constraints.support import check_constraint, check_satisfiable, token_ancestors
from ddlib.samplers.lengths import Length
from ddlib.samplers.runtime.context import MemoryContext
from ddlib.samplers.runtime.logit_processors import LogitProcessors, Scheduled, Truncation
from ddlib.samplers.runtime.loop import (
    SamplingCall,
    check_guided,
    check_memory,
    draw_along_pace,
    draw_tokens,
)
from ddlib.samplers.runtime.model import Model
from ddlib.samplers.runtime.reuse import check_reuse, reuse_of
from ddlib.samplers.stopping import Ending
from ddlib.samplers.time_grid import check_times, equal_times
from ddlib.typing import Denoiser, Tokens
from ddlib.utils.random import Generator, KeyedGenerator
from ddlib.utils.validation import check_count, check_shape, check_tokens, require


@torch.no_grad()
def sample(
    process: ForwardProcess,
    denoiser: Denoiser,
    shape: Sequence[int],
    sampler: Sampler | None = None,
    steps: int | None = None,
    prompt: Tensor | None = None,
    *,
    infill: bool = False,
    times: Tensor | None = None,
    temperature: Scheduled = 1.0,
    top_p: Scheduled = 1.0,
    top_k: int | None = None,
    min_p: float = 0.0,
    forbidden: Sequence[int] = (),
    repetition_penalty: float = 1.0,
    endings: Sequence[Ending] = (),
    parameterization: Parameterization | None = None,
    compact: bool = True,
    pace: Pace | None = None,
    keep: bool | str = True,
    length: Length | None = None,
    constraint: Automaton | None = None,
    memory: bool = False,
    generator: Generator = None,
    seeds: Sequence[int] | None = None,
    device: torch.device | str | None = None,
    on_step: Callable[[int, Tensor, Tensor], None] | None = None,
) -> Tokens:
    """Generate tokens, (B, L) int64 in [0, V).

    Args:
        process: the forward process to run backwards.
        denoiser: ``(z, t) -> logits``; put a module into ``eval()`` first. With a
            ``ddlib.typing.SplitDenoiser``, such as a DiT, samplers that first draw which positions
            jump compute the logits of these only. With a ``SparseDenoiser``, which a DiT is too,
            the same holds for features on a CPU.
        shape: (B, L).
        sampler: default ``Ancestral()``.
        steps: number of steps, at least 1, by default 128. The network is called at most once per
            step in most samplers (``Sampler.max_model_calls``), and once more if t = 0 is not
            noise-free.
        prompt: (P,) or (B, P) tokens at the beginning, which are kept, P <= L; with ``infill``
            states, where the mask marks a position to draw. Where tokens may be wrong (GIDD,
            uniform noise, ``Noisy``), a network with one time per sequence relies on the prompt as
            on tokens at that time, so samples are not those of p(x | prompt); a pace with a time
            per position, such as ``RandomOrder``, gives it time 0 at the prompt.
        infill: whether ``prompt`` may hold masks.
        times: (steps + 1,) a custom grid, decreasing from 1 to 0, in place of ``steps``, such as
            ``samplers.equal_jump_times``; for samplers that use the times (``Sampler.by_times``),
            or with ``temperature`` or ``top_p`` as functions.
        temperature: divisor of the logits of every distribution over tokens or clusters that is
            drawn from; 0 is greedy. ``temperature`` and ``top_p`` may be functions of the time at
            the start of a step, from 1 to 0.
        top_p: keep the smallest set of tokens or clusters with at least this probability.
        top_k: keep this many of the likeliest tokens or clusters; None for all.
        min_p: keep tokens or clusters that are at least this share as likely as the likeliest.
        forbidden: numbers of tokens that are never drawn; those in the prompt are kept.
        repetition_penalty: at least 1; tokens elsewhere in the sequence have their probability
            divided by it, before normalisation.
        endings: criteria for finishing a sequence early, such as ``EndOfText`` and ``Settled``.
        parameterization: meaning of the logits, as in ``nelbo``; by default the denoiser's
            attribute of that name, or "cavity" without one.
        compact: leave sequences without a jump in a step out of the network's batch. Turn it off
            for a denoiser that depends on the number of the row, or that is compiled for one batch
            size.
        pace: order of the positions; None is ``Together()``, one time for all. With ``Blocks`` the
            sequence is drawn block by block, each by a run of the sampler; ``steps`` and ``times``
            are those of one block. With another pace they are those of each of its parts. The
            denoiser then takes times (B, L). A denoiser with blocks (``block_size``) was trained
            with clean tokens in earlier blocks: a pace with other blocks, or with parts of these
            blocks, gives a warning.
        keep: whether a ``ddlib.typing.BlockDenoiser`` caches its computations for earlier blocks.
            The tokens are the same; the cache saves time and takes memory. For a ``WindowDenoiser``
            with ``Blocks``, approximate caches by name: "prefix" reuses keys and values of the
            positions before a block, "dual" also those behind it, from the first call of the block,
            or with "dual:refresh=4" from every fourth call of a sequence in it.
        length: rule that lengthens and shortens each sequence while it is drawn, such as ``RhoEOS``
            and ``Daedal``; L is then the largest length. The prompt holds tokens at the beginning
            alone. None for sequences of length L.
        constraint: automaton that accepts each sequence, prompt included. It excludes tokens first;
            ``forbidden``, ``temperature`` and truncation act on the others. For masks, and trees
            whose clusters keep their tokens (xi = 1), and samplers that draw by
            ``draw_states`` (``Sampler.supports_constraint``).
        memory: whether each call of the network takes the features of the sequence's previous call,
            for a ``ddlib.typing.TakesMemory`` such as ``DiT(memory=True)``. Without it the network
            is called as ``bound`` and ``likelihood`` call it, without memory.
        generator: source of randomness.
        seeds: (B,) in place of ``generator``, one for each row: a sequence depends on its seed and
            not on the batch. Not with a denoiser whose rows begin at different columns, behind
            padding.
        device: where to sample; default the prompt's, else the process's.
        on_step: called as ``on_step(k, t, z)`` after each step, with z (B, L) and t (B,), or (B, L)
            along a pace, and with k = -1 at the start.

    Raises:
        TypeError, ValueError: an invalid shape, steps, grid, prompt, seeds, temperature or
            truncation; forbidden tokens that are all tokens of a cluster; logits as in ``nelbo``; a
            sampler that does not support the process; a pace that does not support the length, the
            sampler or the denoiser; an approximate cache without blocks, or of a denoiser that does
            not support it; a constraint that no sequence satisfies, or that the process, the
            sampler or an ending does not support; ``memory`` with a denoiser without, blocks,
            particles or ``compact=False``.
    """
    sampler = Ancestral() if sampler is None else sampler
    for name, value in (("prompt", prompt), ("times", times)):
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"{name} is {value!r}, must be a tensor or None")
    if not isinstance(sampler, Sampler):
        raise TypeError(
            f"sampler is {sampler!r}, must be a ddlib.samplers.Sampler object such as Ancestral()"
        )
    check_process(process, denoiser)
    sampler.check(process)
    if not isinstance(shape, Sequence):
        raise TypeError(
            f"shape is {shape!r}, must be (B, L): the number of sequences and their length"
        )
    require(len(shape) == 2, f"shape is {tuple(shape)}, must be (B, L)")
    for name, size in zip("BL", shape, strict=True):
        check_count(f"shape's {name}", size)
    if times is not None:
        require(
            steps is None or steps == times.numel() - 1,
            f"steps is {steps} and times holds {times.numel()}, only one may be given: times "
            "determine the number of "
            "steps",
        )
        require(
            sampler.guarantees.by_times or callable(temperature) or callable(top_p),
            f"times is given, and {sampler!r} only uses the number of steps: pass "
            f"steps={times.numel() - 1}",
        )
    grid = equal_times(128 if steps is None else steps) if times is None else check_times(times)
    truncation = Truncation(temperature, top_p, top_k, min_p)
    if not isinstance(endings, Sequence):
        raise TypeError(f"endings is {endings!r}, must be a list of ddlib.samplers.Ending objects")
    for ending in endings:
        if not isinstance(ending, Ending):
            raise TypeError(
                f"endings holds {ending!r}, must be ddlib.samplers.Ending objects such as "
                "EndOfText(token)"
            )
        ending.check(process)
        if not sampler.guarantees.supports_stopping:
            raise TypeError(
                f"endings holds {ending!r}, which {sampler!r} does not support: a row has several "
                "sequences"
            )
    if pace is not None and not isinstance(pace, Pace):
        raise TypeError(
            f"pace is {pace!r}, must be a ddlib.paces.Pace object such as Blocks(32), or None"
        )
    if length is not None:
        if not isinstance(length, Length):
            raise TypeError(
                f"length is {length!r}, must be a ddlib.samplers.Length object such as "
                "RhoEOS(token)"
            )
        length.check(process, sampler)
        if memory:
            raise TypeError(
                f"length is {length!r} and memory is True, must be False: features belong to fixed "
                "positions"
            )
    if constraint is not None:
        check_constraint(constraint, process, sampler, endings)
        if length is not None:
            raise TypeError(
                f"constraint is {constraint!r} and length is {length!r}, must be None: a "
                "constraint is for sequences "
                "of the fixed length L"
            )
    vetoes = [ending.forbids for ending in endings]
    processors = LogitProcessors(process, forbidden, repetition_penalty, vetoes, shape[1])
    target = (
        torch.device(device)
        if device is not None
        else process.device
        if prompt is None
        else prompt.device
    )
    here = process.device
    there = target.type != "cuda" or torch.cuda.is_available()
    require(
        there, f"device is {target}, by prompt or device, and this PyTorch has none of that type"
    )
    require(
        target.type == here.type and (target.index is None or target.index == here.index),
        f"sampling is on {target}, by prompt or device, and the process on {here}: use "
        f"process.to({str(target)!r})",
    )
    fixed, free = _prompt(process, prompt, tuple(shape), infill, target)

    model = Model(process, denoiser, parameterization, compact, processors if processors else None)
    if memory:
        check_memory(model.capabilities, sampler, pace, compact)
        model = model.within(MemoryContext(denoiser))
    check_guided(model, sampler, plain=truncation.idle and not processors, endings=endings)
    model.capabilities.check_blocks(pace, shape[1])
    if seeds is not None and model.capabilities.shifts_rows:
        raise TypeError(
            f"seeds is {seeds!r}, and the rows of {model.capabilities.name} begin at different "
            "columns: the noise of "
            "a position is that of its column, so a sequence would not be that of its seed alone. "
            "Pass generator=, or "
            "sample prompts of one length together"
        )
    reuse = reuse_of(keep)
    check_reuse(reuse, pace, model.capabilities, sampler)
    for name, rule in (("length", length), ("constraint", constraint)):
        if rule is not None and model.capabilities.has_step_distribution:
            raise TypeError(
                f"{name} is {rule!r}, and {denoiser!r} guides the distribution of z_s: use "
                "on='tokens'"
            )
    if constraint is not None:
        constraint = constraint.to(target).without(forbidden).over(token_ancestors(process))
        check_satisfiable(constraint, fixed.masked_fill(free, process.num_states - 1), endings)
    run = SamplingCall(
        process,
        model,
        truncation.at(1.0),
        grid.to(target),
        free,
        generator if seeds is None else _seeded(seeds, generator, shape[0], target),
        sampler=sampler,
        fixed=fixed,
        truncation=truncation,
        endings=tuple(endings),
        on_step=on_step,
        pace=pace,
        keep=reuse,
        length=length,
        constraint=constraint,
    )
    fixed = draw_tokens(run) if pace is None else draw_along_pace(run, pace)
    for ending in endings:
        fixed = ending.trim(fixed, free)
    if constraint is not None and not bool(constraint.accepts(fixed).all()):
        raise RuntimeError(
            f"{sampler!r} has supports_constraint = True and drew a sequence that {constraint!r} "
            "rejects"
        )
    return fixed


def _seeded(
    seeds: Sequence[int], generator: Generator, rows: int, device: torch.device
) -> KeyedGenerator:
    if not isinstance(seeds, Sequence):
        raise TypeError(
            f"seeds is {seeds!r}, must be a list of ints, one for each of the {rows} rows of shape"
        )
    require(
        generator is None,
        f"seeds is {seeds!r} and generator is {generator!r}, only one may be given",
    )
    require(
        len(seeds) == rows, f"seeds holds {len(seeds)}, must be {rows}, one for each row of shape"
    )
    require(
        max(seeds, default=0) < 2**63, f"seeds holds {max(seeds, default=0)}, must be below 2^63"
    )
    index = torch.tensor([check_count("seeds", seed, 0) for seed in seeds], device=device)
    return KeyedGenerator(0, 0, index)


def _prompt(
    process: ForwardProcess,
    prompt: Tensor | None,
    shape: tuple[int, ...],
    infill: bool,
    device: torch.device,
) -> tuple[Tokens, Tensor]:
    """Return the fixed tokens, (B, L), and the positions of the others, which are to be drawn, (B,
    L) bool.
    """
    fixed = torch.zeros(shape, dtype=torch.int64, device=device)
    free = torch.ones(shape, dtype=torch.bool, device=device)
    require(
        prompt is not None or not infill,
        "infill is True and prompt is None, must be given: infill unmasks its masks",
    )
    if prompt is None:
        return fixed, free
    require(
        prompt.ndim in (1, 2), f"prompt has shape {tuple(prompt.shape)}, must be (P,) or (B, P)"
    )
    if prompt.shape[-1] == 0:
        return fixed, free
    given = prompt[None] if prompt.ndim == 1 else prompt
    check_tokens("prompt", given, process.num_states, "states")
    require(
        given.shape[1] <= shape[1],
        f"prompt has {given.shape[1]} tokens, must have at most {shape[1]}, the length of the "
        "sequence",
    )
    check_shape(
        "prompt",
        given.expand(shape[0], -1) if len(given) == 1 else given,
        (shape[0], None),
        "(P,) or (B, P)",
    )
    tokens = given < process.vocab_size
    if infill:
        require(
            process.num_states > process.vocab_size,
            f"infill needs a mask state, {process!r} has none",
        )
    else:
        require(
            bool(tokens.all()), "prompt holds masks or clusters, must be tokens unless infill=True"
        )
    require(
        bool((tokens | (given == process.num_states - 1)).all()),
        "prompt holds clusters or another mask, must be tokens, or the last mask "
        f"{process.num_states - 1} where "
        "infill=True draws a token",
    )
    fixed[:, : given.shape[1]] = torch.where(tokens, given, 0)
    free[:, : given.shape[1]] = ~tokens
    return fixed, free
