"""``sample``: what is asked for is checked, and drawn."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ddlib.paces import Pace
from ddlib.parameterization.logits import Parameterization, stated
from ddlib.processes import ForwardProcess
from ddlib.samplers.ancestral import Ancestral
from ddlib.samplers.base import Sampler, SamplingContext
from ddlib.samplers.runtime.context import FullContext
from ddlib.samplers.runtime.guided import check_guided
from ddlib.samplers.runtime.logit_processors import LogitProcessors, Scheduled, Truncation
from ddlib.samplers.runtime.loop import SamplingLoop
from ddlib.samplers.runtime.model import ModelWrapper
from ddlib.samplers.runtime.pace_sampling import along
from ddlib.samplers.stopping import Ending
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
    keep: bool = True,
    generator: Generator = None,
    seeds: Sequence[int] | None = None,
    device: torch.device | str | None = None,
    on_step: Callable[[int, Tensor, Tensor], None] | None = None,
) -> Tokens:
    """Generates words, (B, L) int64 in [0, V).

    Args:
        process: the forward process to run backwards.
        denoiser: ``(z, t) -> logits``; put a module into ``eval()`` first. Of a ``ddlib.typing.SplitDenoiser``, such
            as a DiT, samplers whose jumps come first compute the logits of jumping positions only; of a
            ``SparseDenoiser``, which a DiT is too, on a CPU also no more features than that.
        shape: (B, L).
        sampler: default ``Ancestral()``.
        steps: number of steps, at least 1, by default 128; no more network calls than that, plus one where t = 0 is not
            exact.
        prompt: (P,) or (B, P) words that stand at the front, P <= L; with ``infill`` states, of which the mask means
            "draw this one".
        infill: whether ``prompt`` may hold masks.
        times: (steps + 1,) a grid of one's own, decreasing from 1 to 0, in place of ``steps``; for samplers whose steps
            go by it (``Sampler.by_times``), or functions of the time.
        temperature: of every law of words or clusters that is drawn from; 0 is greedy. This and ``top_p`` may be
            functions of the time that a step begins at, from 1 to 0.
        top_p: keep the fewest of its members that hold this much probability.
        top_k: keep the likeliest so many of its members; None for all.
        min_p: keep its members that are at least this share as likely as the likeliest.
        forbidden: numbers of words that are never drawn; where a prompt has them they stand.
        repetition_penalty: a word that stands elsewhere in the text counts this many times less, at least 1.
        endings: when a text is finished early, such as ``EndOfText`` and ``Settled``.
        parameterization: what the logits mean, as in ``nelbo``; by default the denoiser's attribute of that name, and
            "cavity" where it has none.
        compact: leave sequences without a jump in a step out of the network's batch. Turn it off for a denoiser that
            goes by the number of the row, or that is compiled for one batch size.
        pace: which position when; None is ``Together()``, one time for all. ``Blocks`` draws the text block by block,
            each by a run of the sampler: ``steps`` and ``times`` are those of a block. Along another pace the steps are
            those of each of its parts. The denoiser is then told times (B, L).
        keep: whether a ``ddlib.typing.BlockDenoiser`` keeps what it worked out about the blocks before. The same words
            for less work; turn it off for less memory.
        generator: source of randomness.
        seeds: (B,) in its place, one for each row: a text is a function of its own, whatever the batch.
        device: where to sample; default the prompt's, else the process's.
        on_step: called as ``on_step(k, t, z)`` after each step, with z (B, L) and t (B,), or (B, L) along a pace, and
            with k = -1 at the start.

    Raises:
        TypeError, ValueError: a bad shape, steps, grid, prompt, seeds, or knob of the laws; forbidden words that leave
            a cluster none; logits as in ``nelbo``; a sampler that the process cannot serve; a pace that cannot serve
            the length, or that the sampler or the denoiser cannot follow.
    """
    sampler = Ancestral() if sampler is None else sampler
    for name, value in (("prompt", prompt), ("times", times)):
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"{name} is {value!r}, must be a tensor or None")
    if not isinstance(sampler, Sampler):
        raise TypeError(f"sampler is {sampler!r}, must be a ddlib.samplers.Sampler object such as Ancestral()")
    sampler.check(process)
    require(len(shape) == 2, f"shape is {tuple(shape)}, must be (B, L)")
    for name, size in zip("BL", shape, strict=True):
        check_count(f"shape's {name}", size)
    if times is not None:
        require(
            steps is None or steps == times.numel() - 1,
            f"steps is {steps} and times holds {times.numel()}, must be one of them: a grid has its steps",
        )
        require(
            sampler.by_times or callable(temperature) or callable(top_p),
            f"times is given, and {sampler!r} goes by their number alone: pass steps={times.numel() - 1}",
        )
    sharpening = Truncation(temperature, top_p, top_k, min_p)
    for ending in endings:
        if not isinstance(ending, Ending):
            raise TypeError(f"endings holds {ending!r}, must be ddlib.samplers.Ending objects such as EndOfText(word)")
        ending.check(process)
        if not sampler.supports_stopping:
            raise TypeError(f"endings holds {ending!r}, which {sampler!r} cannot serve: a row is several texts there")
    wording = LogitProcessors(process, forbidden, repetition_penalty, [ending.forbids for ending in endings])
    place = torch.device(device) if device is not None else process.device if prompt is None else prompt.device
    fixed, free = _prompt(process, prompt, tuple(shape), infill, place)

    meaning = stated(denoiser, parameterization)

    def network(sight: FullContext | None = None) -> ModelWrapper:
        return ModelWrapper(process, denoiser, meaning, compact, wording if wording else None, sight)

    whole = network()
    check_guided(whole, sampler, plain=sharpening.idle and not wording)
    generator = generator if seeds is None else _seeded(seeds, generator, shape[0], place)
    run = SamplingContext(process, whole, sharpening.at(1.0), _grid(steps, times).to(place), free, generator)
    course = SamplingLoop(sampler, sharpening, tuple(endings), on_step)
    fixed = course.words(run, fixed) if pace is None else along(pace, course, run, fixed, network, keep)
    for ending in endings:
        fixed = ending.trim(fixed, free)
    return fixed


def _seeded(seeds: Sequence[int], generator: Generator, rows: int, device: torch.device) -> KeyedGenerator:
    require(generator is None, f"seeds is {seeds!r} and generator is {generator!r}, must be one of them")
    require(len(seeds) == rows, f"seeds holds {len(seeds)}, must be {rows}, one for each row of shape")
    index = torch.tensor([check_count("seeds", seed, 0) for seed in seeds], device=device)
    return KeyedGenerator(0, 0, index)


def _grid(steps: int | None, times: Tensor | None) -> Tensor:
    if times is None:
        return torch.linspace(1, 0, check_count("steps", 128 if steps is None else steps) + 1, dtype=torch.float64)
    require(times.ndim == 1 and len(times) > 1, f"times has shape {tuple(times.shape)}, must be (steps + 1,)")
    grid = times.to(torch.float64)
    require(bool((grid.diff() < 0).all()), f"times {times.tolist()} must be strictly decreasing")
    require(float(grid[0]) == 1 and float(grid[-1]) == 0, f"times runs {times[0]}..{times[-1]}, must run from 1 to 0")
    return grid


def _prompt(
    process: ForwardProcess, prompt: Tensor | None, shape: tuple[int, ...], infill: bool, device: torch.device
) -> tuple[Tokens, Tensor]:
    """The words that stand, (B, L), and where the others are to be drawn, (B, L) bool."""
    fixed = torch.zeros(shape, dtype=torch.int64, device=device)
    free = torch.ones(shape, dtype=torch.bool, device=device)
    require(prompt is not None or not infill, "infill is True and prompt is None: there are no masks to fill in")
    if prompt is None:
        return fixed, free
    require(prompt.ndim in (1, 2), f"prompt has shape {tuple(prompt.shape)}, must be (P,) or (B, P)")
    if prompt.shape[-1] == 0:
        return fixed, free
    given = prompt[None] if prompt.ndim == 1 else prompt
    check_tokens("prompt", given, process.num_states, "states")
    require(given.shape[1] <= shape[1], f"prompt has {given.shape[1]} tokens, the sequence only {shape[1]}")
    check_shape("prompt", given.expand(shape[0], -1) if len(given) == 1 else given, (shape[0], None), "(P,) or (B, P)")
    words = given < process.vocab_size
    if infill:
        require(process.num_states > process.vocab_size, f"infill needs a mask state, {process!r} has none")
    else:
        require(bool(words.all()), "prompt holds masks or clusters, must be words unless infill=True")
    require(
        bool((words | (given == process.num_states - 1)).all()),
        f"prompt holds clusters, must be words and, to be filled in, the mask {process.num_states - 1}",
    )
    fixed[:, : given.shape[1]] = torch.where(words, given, 0)
    free[:, : given.shape[1]] = ~words
    return fixed, free
