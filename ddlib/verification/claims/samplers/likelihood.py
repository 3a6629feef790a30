"""Claims about likelihoods of samplers with a deterministic order."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ddlib.contrib import Cache
from ddlib.contrib.order_costs import order_costs
from ddlib.paces import Blocks
from ddlib.processes import ForwardProcess
from ddlib.processes.examples import levels, three
from ddlib.samplers import Sampler
from ddlib.samplers.base import level_process
from ddlib.samplers.likelihood import Likelihood, likelihood
from ddlib.samplers.ordered import model_time
from ddlib.samplers.sampling import sample
from ddlib.schedules import Linear
from ddlib.verification.claims.samplers.blocks import CausalDenoiser, ExactDenoiser
from ddlib.verification.claims.samplers.sampler import hurried
from ddlib.verification.framework.cases import Case, at_length, context, few, supported_cases
from ddlib.verification.framework.claim import Claim, Comparison, Point
from ddlib.verification.framework.inputs import compare_joint_draws
from ddlib.verification.framework.reference import exact_cavity, sequences

_DRAWS, _ALL = 2000, 99
"""Number of steps that suffices for one edge at a time."""


def runs(sampler: Sampler, on: ForwardProcess | None = None) -> list[Case]:
    """Return cases of the sampler with masks, a tree, or the given process, if it has a
    likelihood.
    """
    processes = [three()["masked"], levels(Linear())] if on is None else [few(on)]
    # the claims about samplers report errors that are not refusals
    return supported_cases(
        sampler, processes, lambda process: Likelihood.check(process, sampler), (Exception,)
    )


def inconsistent_network(process: ForwardProcess) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a network of two positions without a consistent joint distribution.

    Its output at a position depends on both states and on the time. So likelihoods depend on the
    order of generation.
    """
    generator = torch.Generator().manual_seed(8)

    def randn(*shape: int) -> Tensor:
        return 2 * torch.randn(*shape, generator=generator, dtype=torch.float64)

    size = process.vocab_size
    table = randn(2, 2, process.num_states, size)
    late = randn(2, size)
    places = torch.arange(2)

    def logits(z: Tensor, t: Tensor) -> Tensor:
        # (B, 1, L) states at the second position of the table, for all first ones
        by_state = table[places[:, None], places, z[:, None]].sum(2)
        return by_state + t.to(torch.float64)[:, None, None] * late

    return logits


def _probabilities(run: Case, denoiser: Callable[[Tensor, Tensor], Tensor], steps: int) -> Tensor:
    """Compute the probability of every sequence of two tokens."""
    tokens = sequences(run.process.vocab_size, 2)
    return likelihood(run.process, denoiser, tokens, run.subject, steps=steps).log_likelihood.exp()


def _sums(run: Case, point: Point) -> Iterator[Comparison]:
    total = _probabilities(run, inconsistent_network(run.process), int(point["steps"])).sum()
    yield Comparison(
        "likelihoods of all sequences, summed", (), total, torch.ones_like(total), 1e-9
    )


def _draws(run: Case, point: Point) -> Iterator[Comparison]:
    steps = int(point["steps"])
    size = run.process.vocab_size
    denoiser = inconsistent_network(run.process)
    noise = torch.Generator().manual_seed(9)
    tokens = sample(run.process, denoiser, (_DRAWS, 2), run.subject, steps, generator=noise)
    yield compare_joint_draws(
        "draws", ("x_0", "x_1"), tokens, _probabilities(run, denoiser, steps).view(size, size)
    )


def _exact_network(run: Case, point: Point) -> Iterator[Comparison]:
    probs = _probabilities(run, exact_cavity(run.process, run.pair), _ALL)
    yield Comparison(
        "likelihood, with the exact network",
        ("x_0", "x_1"),
        probs.view_as(run.pair),
        run.pair,
        1e-9,
    )


def _enumerate_paths(run: Case, denoiser: Callable[[Tensor, Tensor], Tensor], group: int) -> Tensor:
    """Compute the probability of every sequence of two tokens, (V, V), from all paths of the
    sampler.

    The sampler chooses positions at every pair of states. Their new states are independent, each in
    proportion to the mass of the tokens under it; the matrix of these transitions is applied once
    per edge.
    """
    steps = 2 * (len(run.process.levels) - 1)
    grid = sequences(run.process.num_states, 2)
    call = context(
        run.process, denoiser, grid.shape, torch.linspace(1, 0, steps + 2), torch.Generator()
    )
    process = level_process(call)
    size = run.process.num_states
    state = run.subject.init(call)
    state = state._replace(z=grid, t=model_time(call, grid, state.memo))
    target = run.subject.plan_step(call, state, 0, group=group).target
    tokens = torch.arange(process.vocab_size)
    level = process.level_of(torch.arange(size)[None])[0]
    under = torch.stack(
        [process.ascend(tokens[None], torch.full_like(tokens[None], j))[0] for j in level.tolist()]
    )
    # (S, V): the tokens under each state
    under = (under == torch.arange(size)[:, None]).to(torch.float64)
    mass = denoiser(grid, state.t.to(torch.get_default_dtype())).softmax(-1) @ under.T
    mass = torch.where((level == target[..., None]) & (under[grid] @ under.T > 0), mass, 0.0)
    moves = (target < level[grid])[..., None]
    chance = torch.where(moves, mass / mass.sum(-1, keepdim=True), one_hot(grid, size))
    matrix = (chance[:, 0, :, None] * chance[:, 1, None, :]).flatten(1)
    # both positions are masks
    reached = one_hot(torch.tensor(size * size - 1), size * size).to(torch.float64)
    for _ in range(steps):
        reached = reached @ matrix
    return reached.view(size, size)[tokens][:, tokens]


def _paths(run: Case, point: Point) -> Iterator[Comparison]:
    group = int(point["group"])
    denoiser = inconsistent_network(run.process)
    tokens = sequences(run.process.vocab_size, 2)
    probs = likelihood(run.process, denoiser, tokens, run.subject, group=group).log_likelihood.exp()
    expected = _enumerate_paths(run, denoiser, group)
    yield Comparison(
        "likelihood, against all paths", ("x_0", "x_1"), probs.view_as(expected), expected, 1e-9
    )


def _one_by_one(run: Case, point: Point) -> Iterator[Comparison]:
    tokens = sequences(run.process.vocab_size, 2)
    axes = ("x_0", "x_1")
    denoiser = inconsistent_network(run.process)
    exact = exact_cavity(run.process, run.pair)
    costs = order_costs(run.process, denoiser, tokens, run.subject, 2)
    total = (-costs.chain).exp().sum()
    yield Comparison("chains of all sequences, summed", (), total, torch.ones_like(total), 1e-9)
    sets = likelihood(run.process, denoiser, tokens, run.subject, group=2).log_likelihood
    yield Comparison("nats of sets", ("sequence",), costs.sets, -sets, 1e-9)
    chain = (-order_costs(run.process, exact, tokens, run.subject, 2).chain).exp()
    yield Comparison("chain, with the exact network", axes, chain.view_as(run.pair), run.pair, 1e-9)


def _by_blocks(run: Case, point: Point) -> Iterator[Comparison]:
    tokens = sequences(run.process.vocab_size, 2)
    for denoiser in (ExactDenoiser, CausalDenoiser):
        for cached in (True, False):
            network = denoiser(run.process, run.pair)
            by = Blocks(1)
            probs = likelihood(
                run.process,
                network,
                tokens,
                run.subject,
                pace=by,
                controls=[] if cached else [Cache("none")],
            ).log_likelihood.exp()
            quantity = (
                f"likelihood by blocks, with {denoiser.__name__}{', cached' if cached else ''}"
            )
            yield Comparison(quantity, ("x_0", "x_1"), probs.view_as(run.pair), run.pair, 1e-9)


CLAIMS = (
    Claim(
        "likelihood",
        "sums to one",
        "likelihoods of all sequences sum to one, for any network",
        "1e-9",
        _sums,
        ({"steps": _ALL}, {"steps": 2}),
        ({"steps": 1}, {"steps": 3}),
        at_length(2),
    ),
    Claim(
        "likelihood",
        "as drawn",
        "sequences are drawn with the frequency of their likelihood",
        "binomial bounds, false alarm 1e-6",
        _draws,
        ({"steps": _ALL}, {"steps": 2}),
        ({"steps": 1}, {"steps": 3}),
        at_length(2),
        rests_on=("sums to one",),
    ),
    Claim(
        "likelihood",
        "best network",
        "with the exact network it is the probability of the sequence",
        "1e-9",
        _exact_network,
        applies=at_length(2, hurried),
        rests_on=("sums to one",),
    ),
    Claim(
        "likelihood",
        "all paths",
        "in sets it is the sum over all paths of the sampler, for any network",
        "1e-9",
        _paths,
        ({"group": 1}, {"group": 2}),
        applies=at_length(2),
        rests_on=("sums to one",),
        means=(
            "the order may depend on the states alone, and positions of a set are independent "
            "given the states"
        ),
    ),
    Claim(
        "likelihood",
        "one at a time",
        "the chain of an order sums to one, and is exact with the exact network",
        "1e-9",
        _one_by_one,
        applies=at_length(2),
        rests_on=("sums to one",),
    ),
    Claim(
        "likelihood",
        "by blocks",
        "with the exact network it is exact by blocks too, with a cache and without",
        "1e-9",
        _by_blocks,
        applies=at_length(1),
        rests_on=("sums to one",),
    ),
)
