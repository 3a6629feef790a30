"""Claims about samplers with the exact denoiser of a known distribution."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, pairwise

import torch
from torch import Tensor

from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.processes.examples import four, levels
from ddlib.samplers import Sampler, SamplingContext, State
from ddlib.samplers.controls import Truncation, WholeBatch
from ddlib.samplers.sampling import sample
from ddlib.schedules import Linear
from ddlib.utils.random import KeyedGenerator
from ddlib.utils.validation import require
from ddlib.verification.framework.cases import Case, at_length, few, needs, supported_cases
from ddlib.verification.framework.claim import Claim, Comparison, Point
from ddlib.verification.framework.inputs import at, compare_draws, compare_joint_draws, in_any_batch
from ddlib.verification.framework.reference import exact_cavity

SUPPORTS = "raises TypeError for masked, hierarchical and uniform processes alike"
_STEPS = 48
_DRAWS = 4000
_ROWS = 24


def processes() -> list[ForwardProcess]:
    """Return one process of every kind, over four tokens."""
    return [four()["masked"], levels(Linear(), [0.7, 0.8]), four()["uniform"]]


def runs(sampler: Sampler, on: ForwardProcess | None = None) -> list[Case]:
    """Return cases of the sampler with each supported kind of process, or with the given one.

    Raises:
        TypeError: the given process is not supported.
        ValueError: no process is supported, or no length of the sequences that are drawn.
    """
    short = [fits(Case(sampler, processes()[0])) for fits in (at_length(1), at_length(2))]
    require(not all(short), f"{sampler!r} is verified on sequences of 1 and 2 tokens: {short[-1]}")

    def check(process: ForwardProcess) -> None:
        run = Case(sampler, process)
        sampler.check(process)
        try:
            sampler.init(run.context(run.token, 1, torch.Generator().manual_seed(0), 2))
        except TypeError:
            raise
        except Exception:  # supported, but with an error that the claims will report
            return

    return (
        supported_cases(sampler, processes(), check, none=SUPPORTS)
        if on is None
        else supported_cases(sampler, [few(on)], check, ())
    )


def _one_token(run: Case, point: Point) -> Iterator[Comparison]:
    probs = run.token
    tokens = run.draw(probs, _DRAWS, torch.Generator().manual_seed(1), int(point["steps"]))
    inside = tokens.clamp(0, len(probs) - 1)
    yield Comparison("tokens", ("example", "position"), tokens, inside, 0.0)
    yield compare_draws("draws of a token", ("position", "x"), tokens, probs[None])


def _truncation(run: Case, point: Point) -> Iterator[Comparison]:
    """Check temperature and truncation where every draw of a token is from one distribution."""
    size = run.process.vocab_size
    # no two tokens are equally likely
    probs = run.token * torch.linspace(1.0, 1.1, size, dtype=torch.float64)
    probs = probs / probs.sum()
    tokens = run.draw(
        probs,
        _DRAWS,
        torch.Generator().manual_seed(6),
        _steps_of_one_draw(run),
        controls=[Truncation(**point)],  # type: ignore[arg-type]
    )
    expected = probs ** (1 / point.get("temperature", 1.0))
    order = probs.argsort(descending=True)
    before = probs[order].cumsum(0) - probs[order]
    rank = torch.arange(size)
    allowed = (rank < point.get("top_k", size)) & (before < point.get("top_p", 1.0))
    expected[order[~allowed]] = 0.0
    yield compare_draws(
        "draws of a token", ("position", "x"), tokens, (expected / expected.sum())[None]
    )


def _steps_of_one_draw(run: Case) -> int:
    """Return the number of steps after which the token follows the sharpened distribution.

    0 if tokens are drawn in parts, such as a cluster and then its member: then it does not.
    """
    process = run.process
    states = torch.arange(process.num_states)[None]
    size = process.vocab_size
    likelihood = process.token_likelihood(states, at(0.5))[0]
    possible = likelihood > 0
    final = torch.equal(possible[:size], torch.eye(size) > 0)
    if isinstance(process, LevelProcess):
        whole = final and bool((likelihood[size:] == likelihood[size:, :1]).all())
    else:
        whole = bool(possible[size:].all()) and (final or bool(possible[:size].all()))
    few = 3 if run.subject.guarantees.exact_marginals else _STEPS
    return few if whole else 0


def _no_single_draw(run: Case) -> str:
    reason = (
        f"{type(run.process).__name__} has tokens that are drawn in parts, each after "
        "temperature and truncation"
    )
    return _no_draw(run) or ("" if _steps_of_one_draw(run) else reason)


def _on_the_way(run: Case, point: Point) -> Iterator[Comparison]:
    """Check the states at each time of the grid: remasking must balance unmasking."""
    comparisons: list[Comparison] = []
    steps = int(point["steps"])
    callback = _comparing_callback(run, run.token[None, None], comparisons)
    run.draw(run.token, _DRAWS, torch.Generator().manual_seed(5), steps, on_step=callback)
    yield from comparisons


def _comparing_callback(
    run: Case, tokens: Tensor, into: list[Comparison], every: int = 1
) -> Callable[[int, Tensor, Tensor], None]:
    """Return a callback for ``on_step`` that compares the states after every ``every`` steps with
    q_t.

    ``tokens`` (1, L, V) are the distributions of the tokens.
    """

    def compare(k: int, t: Tensor, z: Tensor) -> None:
        if (k + 1) % every == 0:
            probs = run.process.predictive(tokens, t[:1])[0]
            into.append(
                compare_draws(f"draws of z at t = {float(t[0]):.3g}", ("position", "z"), z, probs)
            )

    return compare


_discretised = needs("exact_marginals", "has approximate steps")
hurried = needs("consistent_joint", "has approximate sequences")
"""Return the reason why sequences need not follow the joint distribution; empty if they must."""
_keeping = needs("keeps_tokens", "may replace tokens")
_no_draw = needs("exact_marginals consistent_joint", "has tokens that are not draws")
"""Return the reason why draws are not checked: neither marginals nor the joint distribution
converge.
"""


def _off_the_grid(run: Case) -> str:
    off = (
        ""
        if run.subject.guarantees.on_time_grid
        else "its states are at times of events, not of the grid"
    )
    return _discretised(run) or off


def _two_tokens(run: Case, point: Point) -> Iterator[Comparison]:
    # rates may diverge near the data, so steps are concentrated there
    grid = torch.linspace(1, 0, int(point["steps"]) + 1, dtype=torch.float64) ** 2
    joint = run.pair
    comparisons: list[Comparison] = []
    callback = _comparing_callback(
        run, torch.stack([joint.sum(1), joint.sum(0)])[None], comparisons, len(grid) // 5
    )
    guarantees = run.subject.guarantees
    steps = grid if guarantees.by_times else len(grid) - 1
    watch = callback if guarantees.on_time_grid else None
    tokens = run.draw(joint, _DRAWS, torch.Generator().manual_seed(2), steps, on_step=watch)
    yield from comparisons
    yield compare_joint_draws("draws of two dependent tokens", ("x_0", "x_1"), tokens, joint)


def _prompts(run: Case, point: Point) -> Iterator[Comparison]:
    size = run.process.vocab_size
    prompt_token = min(1, run.process.vocab_size - 1)
    tokens = run.draw(
        run.pair, _DRAWS, torch.Generator().manual_seed(3), 96, prompt=torch.tensor([prompt_token])
    )
    yield Comparison(
        "the prompt", ("example",), tokens[:, 0], torch.full((_DRAWS,), prompt_token), 0.0
    )
    evidence = run.process.token_likelihood(
        torch.arange(size)[None], torch.tensor([0.5], dtype=torch.float64)
    )[0]
    if not torch.equal(evidence > 0, torch.eye(size) > 0):
        # a token is not certain evidence in this process: the prompt is only exact evidence as t ->
        # 0
        return
    probs = run.pair[prompt_token] / run.pair[prompt_token].sum()
    yield compare_draws("draws given a prompt", ("position", "x"), tokens[:, 1:], probs[None])


def _calls(run: Case, point: Point) -> Iterator[Comparison]:
    steps = int(point["steps"])
    calls = count()
    exact = exact_cavity(run.process, run.pair)

    def counting_network(z: Tensor, t: Tensor) -> Tensor:
        next(calls)
        return exact(z, t)

    tokens = sample(
        run.process,
        counting_network,
        (16, 2),
        run.subject,
        steps,
        generator=torch.Generator().manual_seed(4),
    )
    used = torch.tensor(next(calls))
    limit = (
        run.subject.guarantees.max_model_calls * steps + run.subject.guarantees.max_finalize_calls
    )
    yield Comparison(
        f"network calls, at most {limit} in {steps} steps", (), used, used.clamp_max(limit), 0.0
    )
    yield Comparison(
        "tokens", ("example", "position"), tokens, tokens.clamp(0, run.process.vocab_size - 1), 0.0
    )


def _time_input(run: Case, point: Point) -> Iterator[Comparison]:
    """Compare the time at which the network is called on the states of the grid with the time of
    these states.
    """
    exact = exact_cavity(run.process, run.pair)
    rows = 256
    latest: list[Tensor] = []  # time and states after the latest step
    calls: list[Comparison] = []

    def watching_network(z: Tensor, t: Tensor) -> Tensor:
        if latest and torch.equal(z, latest[1]):
            calls.append(
                Comparison("time of a network call", ("example",), t, latest[0].expand_as(t), 1e-6)
            )
        return exact(z, t)

    def keep(k: int, t: Tensor, z: Tensor) -> None:
        latest[:] = [t, z]

    generator = torch.Generator().manual_seed(7)
    sample(
        run.process,
        watching_network,
        (rows, 2),
        run.subject,
        int(point["steps"]),
        generator=generator,
        controls=[WholeBatch()],
        on_step=keep,
    )
    yield from calls


def _falling_times(run: Case, point: Point) -> Iterator[Comparison]:
    """Check that no call of the network is at a later time than the one before."""
    exact = exact_cavity(run.process, run.pair)
    times: list[Tensor] = []

    def watching_network(z: Tensor, t: Tensor) -> Tensor:
        times.append(t)
        return exact(z, t)

    sample(
        run.process,
        watching_network,
        (256, 2),
        run.subject,
        int(point["steps"]),
        generator=torch.Generator().manual_seed(8),
        controls=[WholeBatch()],
    )
    for before, t in pairwise([torch.ones_like(times[0]), *times]):
        yield Comparison("time of a network call", ("example",), t, t.minimum(before), 1e-6)


def _final_tokens(run: Case, point: Point) -> Iterator[Comparison]:
    states: list[Tensor] = []
    tokens = run.draw(
        run.pair,
        256,
        torch.Generator().manual_seed(6),
        int(point["steps"]),
        on_step=lambda k, t, z: states.append(z.clone()),
    )
    for k, (before, after) in enumerate(pairwise([*states, tokens]), start=1):
        kept = torch.where(run.process.level_of(before) == 0, before, after)
        yield Comparison(f"state after step {k}", ("example", "position"), after, kept, 0.0)


def _no_final_tokens(run: Case) -> str:
    tokens = torch.arange(run.process.vocab_size)[:, None]
    if bool(run.process.replaceable(tokens).any()):
        return f"{type(run.process).__name__} has tokens that noise replaces by others"
    return _keeping(run)


def _back_and_forth(run: Case) -> str:
    several = run.subject.guarantees.max_model_calls > 1
    return "a step of several calls may go forward and back" if several else ""


def _repeats(run: Case, point: Point) -> Iterator[Comparison]:
    yield from in_any_batch("tokens", lambda index, noise: run.draw(run.pair, len(index), noise, 8))


def _halfway(run: Case, steps: int) -> tuple[SamplingContext, State]:
    """Return context and state of rows with keyed noise, after half of the steps."""
    call = run.context(
        run.pair, _ROWS, KeyedGenerator(seed=1, step=3, index=torch.arange(_ROWS)), steps
    )
    state = run.subject.init(call)
    for k in range(steps // 2):
        state = run.subject.step(call, state, k)
    return call, state


def _row_selection(run: Case, point: Point) -> Iterator[Comparison]:
    # one row twice, one not at all
    steps = int(point["steps"])
    rows = torch.arange(_ROWS) * 5 % (_ROWS - 1)
    call, state = _halfway(run, steps)
    assert isinstance(call.generator, KeyedGenerator)
    noise = copy.copy(call.generator)  # at the same position of its streams
    noise.index = noise.index[rows]
    subset = replace(call, free=call.free[rows], generator=noise)
    picked = run.subject.select_rows(state, rows)
    for k in range(steps // 2, steps):
        state = run.subject.step(call, state, k)
        picked = run.subject.step(subset, picked, k)
    tokens = run.subject.finalize(call, state)[rows]
    yield Comparison(
        "tokens of a row", ("row", "position"), run.subject.finalize(subset, picked), tokens, 0.0
    )


def _no_row_selection(run: Case) -> str:
    call, state = _halfway(run, 2)
    try:
        run.subject.select_rows(state, torch.arange(len(call.free)))
    except TypeError as error:
        return str(error)
    return ""


CLAIMS = (
    Claim(
        "sampler",
        "one token",
        "a token follows its distribution",
        "binomial bounds, false alarm 1e-6",
        _one_token,
        ({"steps": _STEPS},),
        ({"steps": 200},),
        at_length(1, _no_draw),
    ),
    Claim(
        "sampler",
        "few steps",
        "a token follows its distribution after one step and after three",
        "binomial bounds, false alarm 1e-6",
        _one_token,
        ({"steps": 1}, {"steps": 3}),
        applies=at_length(1, _discretised),
        rests_on=("one token",),
    ),
    Claim(
        "sampler",
        "temperature",
        "a token follows its distribution after temperature, top_k and top_p",
        "binomial bounds, false alarm 1e-6",
        _truncation,
        ({"temperature": 0.5}, {"top_k": 2}, {"top_p": 0.6}),
        applies=at_length(1, _no_single_draw),
        rests_on=("one token",),
        means="draw tokens from run.sharpen(log-probabilities), in step and in finalize",
    ),
    Claim(
        "sampler",
        "on the way",
        "the state of a token follows q_t at every time of the grid",
        "binomial bounds, false alarm 1e-6",
        _on_the_way,
        ({"steps": 6},),
        ({"steps": 24},),
        at_length(1, _off_the_grid),
        rests_on=("one token",),
    ),
    Claim(
        "sampler",
        "two tokens",
        "two dependent tokens follow their joint distribution, and each its q_t on the way",
        "binomial bounds, false alarm 1e-6",
        _two_tokens,
        ({"steps": 100},),
        ({"steps": 400},),
        at_length(2, hurried),
        rests_on=("one token",),
    ),
    Claim(
        "sampler",
        "prompt",
        "the prompt is kept and conditions the rest",
        "binomial bounds, false alarm 1e-6",
        _prompts,
        applies=at_length(2, hurried),
        rests_on=("two tokens",),
    ),
    Claim(
        "sampler",
        "network calls",
        "at most max_model_calls, and tokens even after one step",
        "exactly",
        _calls,
        ({"steps": 1}, {"steps": 5}),
        applies=at_length(2),
    ),
    Claim(
        "sampler",
        "final tokens",
        "a token that was drawn is the same after every further step",
        "exactly",
        _final_tokens,
        ({"steps": 6},),
        applies=at_length(2, _no_final_tokens),
    ),
    Claim(
        "sampler",
        "time input",
        "the network is called at the time of the states that it is called on",
        "1e-6",
        _time_input,
        ({"steps": 5},),
        applies=at_length(2, _off_the_grid),
        means="call run.predict(state.z, at(run, k)) in step k, not at the next time",
    ),
    Claim(
        "sampler",
        "falling times",
        "no call of the network is at a later time than the one before",
        "1e-6",
        _falling_times,
        ({"steps": 5},),
        applies=at_length(2, _back_and_forth),
    ),
    Claim(
        "sampler",
        "keyed noise",
        "the same noise draws the same tokens, in any batch",
        "exactly",
        _repeats,
        applies=at_length(2),
    ),
    Claim(
        "sampler",
        "rows picked",
        "selected or repeated rows continue as they would alone",
        "exactly",
        _row_selection,
        ({"steps": 12},),
        applies=at_length(2, _no_row_selection),
        rests_on=("keyed noise",),
    ),
)
