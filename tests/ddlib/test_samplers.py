"""Properties of every sampler besides its distribution: tokens, kept prompts, few network calls,
clusters.
"""

import contextlib

import pytest
import torch
from zoo.calls import seeded
from zoo.processes import LEVELS, Plain, V
from zoo.samplers import SAMPLERS, every_sampler
from zoo.trees import ABOVE, PARENTS

import ddlib as dd
from ddlib.hierarchies import Soft, Tree
from ddlib.hierarchies.base import descendant_logits
from ddlib.processes import GIDD, Hierarchical, RateMatrix, Uniform
from ddlib.samplers import Ancestral, FirstHitting, Sampler
from ddlib.schedules import Geometric, Linear

SOME_LEVELS = {name: LEVELS[name] for name in ("masked", "hdlm", "hdlm-xi", "levels", "levels-xi")}
SOME_LEVELS["levels-geometric"] = Hierarchical(Tree([PARENTS, ABOVE], xi=0.7), Geometric(0.2, 30.0))
OTHERS = {
    "gidd": GIDD(V, p_uniform=0.3),
    "uniform": Uniform(V, Linear()),
    "uniform-geometric": Uniform(V, Geometric(0.2, 30.0)),
    "plain": Plain(GIDD(V, p_uniform=0.3)),  # at t = 1 exactly no token is left
    "rates": RateMatrix(torch.ones(V + 1, V + 1) - (V + 1) * torch.eye(V + 1), Linear(), V),
}
ALL = SOME_LEVELS | OTHERS
PAIRS = [(p, s) for p in SOME_LEVELS for s in ("ancestral", "first")] + [
    (p, "ancestral") for p in OTHERS
]
PAIRS += [("levels-xi", "ancestral-force"), ("levels-xi", "first-force")]
every_pair = pytest.mark.parametrize(
    ("process", "sampler"),
    [pytest.param(ALL[p], SAMPLERS[s], id=f"{p}-{s}") for p, s in PAIRS],
)
unchecked = pytest.mark.usefixtures(
    "as_users_call"
)  # shape checks are on in the first tests; here they cost minutes
every_level_process = pytest.mark.parametrize(
    "process",
    [pytest.param(process, id=p) for p, process in SOME_LEVELS.items()],
)


class Network:
    """A cheap random function of a token, its neighbour and the time, row by row.

    Counts its calls.
    """

    def __init__(self, process, dtype=torch.float32, scale=1.0):
        generator = seeded(7)
        self.table = (scale * torch.randn(2, process.num_states, V, generator=generator)).to(dtype)
        self.calls = 0

    def __call__(self, z, t):
        assert (
            z.dtype == torch.int64 and t.dtype == torch.get_default_dtype() and t.shape == (len(z),)
        )
        self.calls += 1
        self.logits = (
            self.table[0][z] + self.table[1][z.roll(1, -1)] + t[:, None, None].to(self.table.dtype)
        )
        return self.logits


def generate(process, sampler=None, shape=(3, 5), seed=0, network=None, **options):
    network = Network(process) if network is None else network
    source = seeded(seed) if isinstance(seed, int) else seed
    usual = {"steps": 12}
    return dd.sample(process, network, shape, sampler, **(usual | options), generator=source)


def trajectory(process, sampler=None, **options):
    """The states after every step, (steps + 1, B, L), and the tokens."""
    states = []
    tokens = generate(process, sampler, on_step=lambda k, t, z: states.append(z.clone()), **options)
    return torch.stack(states), tokens


def sure(z, t):
    """A network that has no doubt about token 2."""
    return torch.tensor([0.0, 0.0, 60.0, 0.0, 0.0, 0.0]).expand(*z.shape, V)


def left_clusters(process, states):
    """For every move down from a cluster, whether it left the cluster."""
    before = states[:-1].flatten()
    after = states[1:].flatten()
    low = process.hierarchy.level_of(after)
    high = process.hierarchy.level_of(before)
    left = torch.ones(len(before), dtype=torch.bool)
    for i in range(process.hierarchy.depth):
        for j in range(i + 1, process.hierarchy.depth):
            ancestor = process.hierarchy.between(i, j).parents[process.hierarchy.local(after, i)]
            left &= ~((low == i) & (high == j) & (ancestor == process.hierarchy.local(before, j)))
    return left[(low < high) & (high < process.hierarchy.depth)]


@every_pair
@pytest.mark.parametrize("steps", [1, 3, 20])
def test_every_position_ends_as_a_word(process, sampler, steps):
    network = Network(process)
    states, tokens = trajectory(process, sampler, steps=steps, network=network)
    assert tokens.shape == (3, 5) and tokens.dtype == torch.int64
    assert bool(((tokens >= 0) & (tokens < V)).all()) and len(tokens.unique()) > 1
    assert network.calls <= steps + (not process.exact_ends)
    assert torch.equal(states[-1], tokens) or not process.exact_ends


@unchecked
@every_pair
def test_a_certain_network_draws_its_token(process, sampler):
    stray = (
        sampler.force_transition and process is SOME_LEVELS["levels-xi"]
    )  # forced to stay in a wrong cluster
    assert bool((generate(process, sampler, (8, 8), network=sure, steps=3) == 2).all()) != stray


@unchecked
@every_pair
def test_prompts_stand_at_every_step_and_the_rest_is_drawn(process, sampler):
    for prompt in (torch.tensor([4, 0]), torch.tensor([[1], [5], [3]])):
        states, tokens = trajectory(process, sampler, prompt=prompt, shape=(3, 6))
        size = prompt.shape[-1]
        assert bool((states[..., :size] == prompt).all()) and bool(
            (tokens[:, :size] == prompt).all()
        )
        assert bool((tokens < V).all()) and len(tokens[:, size:].unique()) > 1


@pytest.mark.parametrize(
    "process", [*SOME_LEVELS.values(), OTHERS["gidd"]], ids=[*SOME_LEVELS, "gidd"]
)
def test_infilling_draws_the_masks_and_nothing_else(process):
    prompt = torch.tensor([[9, 2, 9, 9, 0, 1], [3, 9, 9, 4, 9, 5]])
    given = prompt < V
    prompt[~given] = process.num_states - 1
    for sampler in (
        (Ancestral(), FirstHitting()) if isinstance(process, Hierarchical) else (Ancestral(),)
    ):
        states, tokens = trajectory(process, sampler, prompt=prompt, shape=(2, 6))
        assert bool((states[:, given] == prompt[given]).all()) and bool((tokens < V).all())
        full = torch.tensor([[0, 1, 2, 3, 4, 5]])
        network = Network(process)
        assert torch.equal(generate(process, sampler, (1, 6), prompt=full, network=network), full)
        assert network.calls == 0 or not process.exact_ends or not isinstance(process, Hierarchical)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_given_time_grid_replaces_the_steps(dtype):
    grid = torch.tensor([1.0, 0.9, 0.25, 0.125, 0.0], dtype=dtype)
    seen = []
    generate(SOME_LEVELS["hdlm"], steps=grid, on_step=lambda k, t, z: seen.append((k, t)))
    assert [k for k, _ in seen] == [-1, 0, 1, 2, 3]
    assert all(torch.equal(t, grid[i].double().expand(3)) for i, (_, t) in enumerate(seen))


@unchecked
@every_pair
def test_a_seed_repeats_and_another_seed_does_not(process, sampler):
    first, again, other = (generate(process, sampler, (8, 8), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


@unchecked
@every_pair
@pytest.mark.parametrize("steps", [7, 40])
def test_with_keyed_noise_a_sample_does_not_depend_on_its_batch(process, sampler, steps):
    if isinstance(sampler, FirstHitting) and not process.exact_ends and steps < 9:
        return  # fewer calls than jumps are shared by the longest path of the batch
    index = torch.arange(4)
    whole = generate(process, sampler, (4, 3), seed=dd.KeyedGenerator(0, 3, index), steps=steps)
    for rows in ([3, 0], [2]):
        part = generate(
            process, sampler, (len(rows), 3), seed=dd.KeyedGenerator(0, 3, index[rows]), steps=steps
        )
        assert torch.equal(part, whole[rows])


@unchecked
@every_level_process
def test_first_hitting_calls_the_network_once_per_jump(process):
    jumps = process.hierarchy.depth * 4
    for steps in (jumps, jumps + 1, 5 * jumps, jumps - 1, 2):
        network = Network(process)
        states, _ = trajectory(process, FirstHitting(), shape=(2, 4), network=network, steps=steps)
        assert (
            network.calls == min(steps, jumps)
            if process.exact_ends
            else network.calls <= min(steps, jumps) + 1
        )
        assert (
            steps < jumps
            or not process.exact_ends
            or int((states[1:] != states[:-1]).sum(-1).max()) == 1
        )


@unchecked
@every_level_process
@pytest.mark.parametrize("force", [False, True])
def test_ancestral_runs_the_network_only_on_steps_with_a_jump(process, force):
    network = Network(process)
    states, _ = trajectory(process, Ancestral(force), shape=(1, 2), steps=100, network=network)
    levels = process.hierarchy.level_of(states)
    busy = int((levels[1:] != levels[:-1]).any(-1).sum())
    assert 0 < busy <= 2 * process.hierarchy.depth and network.calls == busy + (
        not process.exact_ends
    )


@unchecked
@every_sampler
@pytest.mark.parametrize("name", ["hdlm", "hdlm-xi", "levels", "levels-xi", "levels-geometric"])
@pytest.mark.parametrize("steps", [2, 20])
def test_tokens_stay_inside_their_clusters_when_forced_or_when_xi_is_one(name, sampler, steps):
    process = SOME_LEVELS[name]
    states, _ = trajectory(process, sampler, shape=(20, 6), steps=steps)
    left = left_clusters(process, states)
    plain = all(edge.spread is None for edge in process.hierarchy.maps)
    assert len(left) > 20 and bool(left.any()) != (
        plain or sampler.force_transition
    )  # else some do leave


@pytest.mark.parametrize("xi", [1.0, 0.7])
def test_forced_descents_from_each_of_several_masks_are_free(xi):
    process = Hierarchical(Tree([PARENTS], xi=xi, masks=3), Linear())
    logits = torch.randn(3, V)
    masks = torch.arange(3) + process.num_states - 3
    for target in (0, 1):
        free, forced = (
            descendant_logits(process.hierarchy, logits, masks, 2, target, force)
            for force in (False, True)
        )
        assert torch.equal(free, forced) and bool(free.isfinite().all())


def test_forced_descents_from_a_state_that_is_no_likeliest_parent_are_free():
    process = Hierarchical(Soft([[0.6, 0.4], [0.7, 0.3], [0.9, 0.1]]), Linear())
    logits = torch.randn(1, 3)
    free, forced = (
        descendant_logits(process.hierarchy, logits, torch.tensor([4]), 1, 0, force)
        for force in (False, True)
    )
    assert torch.equal(free, forced)


@unchecked
@pytest.mark.parametrize("name", ["masked", "hdlm", "hdlm-xi", "levels", "levels-xi"])
@pytest.mark.parametrize(
    "options", [{"temperature": t} for t in (0.0, 1e-3, 1e-40)] + [{"top_p": 0.1}], ids=str
)
@pytest.mark.parametrize(
    "sampler", [Ancestral(True), FirstHitting(True)], ids=["ancestral", "first"]
)
def test_greedy_words_are_the_likeliest_of_their_cluster(name, sampler, options):
    """A likeliest token outside the present cluster is not drawn."""
    process = SOME_LEVELS[name]
    hierarchy = SOME_LEVELS[name].hierarchy
    network = Network(process, scale=20.0)
    landed = []
    last = torch.full((8, 6), process.num_states - 1)

    def look(k, t, z):
        nonlocal last
        if k >= 0 and bool(((z < V) & (last >= V)).any()):
            level = hierarchy.level_of(last)[..., None]
            allowed = torch.ones(*z.shape, V, dtype=torch.bool)
            for j in range(1, hierarchy.depth):
                ours = hierarchy.between(0, j).parents == hierarchy.local(last, j)[..., None]
                allowed = torch.where(level == j, ours, allowed)
            best = network.logits.masked_fill(~allowed, -torch.inf).argmax(-1)
            top = network.logits.argmax(-1)
            if "top_p" in options:  # a nucleus outside the cluster has no effect inside
                within = allowed.gather(-1, z.clamp_max(V - 1)[..., None])[..., 0]
                best = torch.where(within & (best != top), z, best)
            landed.append((z == best)[(z < V) & (last >= V)])
        last = z.clone()

    tokens = generate(
        process,
        sampler,
        (8, 6),
        network=network,
        on_step=look,
        controls=[dd.controls.WholeBatch()],
        **options,
    )
    assert bool((tokens < V).all()) and len(torch.cat(landed)) == 48
    assert bool(torch.cat(landed).all())


def test_top_p_draws_from_the_nucleus_and_from_all_of_it():
    probs = torch.tensor([0.3, 0.05, 0.4, 0.05, 0.1, 0.1])
    tokens = generate(
        SOME_LEVELS["masked"],
        shape=(40, 20),
        network=lambda z, t: probs.log().expand(*z.shape, V),
        top_p=0.6,
    )
    counts = torch.bincount(tokens.flatten(), minlength=V)
    assert counts.nonzero()[:, 0].tolist() == [0, 2] and counts[2] / counts[0] == pytest.approx(
        4 / 3, rel=0.25
    )


@pytest.mark.parametrize("name", ALL)
def test_a_posterior_network_samples_as_the_cavity_network_it_belongs_to(name):
    process = ALL[name]
    cavity = Network(ALL[name])

    def posterior(z, t):
        inside = t.double().clamp(1e-6, 1)  # after t = 0 the network has no influence
        return dd.posterior_logits(process, cavity(z, t).double(), z, inside).clamp_min(-1e9)

    drawn = generate(process, None, (4, 6), network=posterior, parameterization="posterior")
    assert torch.equal(drawn, generate(process, shape=(4, 6)))


@unchecked
@every_pair
def test_half_precision_logits_are_raised_not_drawn_from(process, sampler):
    for half in (Network(process, torch.float16), Network(process, torch.bfloat16)):
        raised = generate(process, sampler, network=lambda z, t, f=half: f(z, t).float())
        assert torch.equal(generate(process, sampler, network=half), raised)


@unchecked
@pytest.mark.parametrize("process", OTHERS.values(), ids=OTHERS.keys())
def test_first_hitting_names_the_process_that_it_cannot_sample(process):
    name = type(process).__name__
    with pytest.raises(
        TypeError, match=rf"FirstHitting needs a process with levels, {name}.*use Ancestral"
    ):
        generate(process, FirstHitting())


class Replace(Sampler):
    """A user's own: at every step every token is replaced by the network's favourite."""

    def step(self, run, state, k):
        best = run.predict(state.z, state.t).argmax(-1)
        return state._replace(z=best, t=run.times[k + 1].expand(len(best)))


class Idle(Sampler):
    """A user's mistake: time runs out and the masks are still there."""

    def step(self, run, state, k):
        return state._replace(t=run.times[k + 1].expand(len(state.z)))


@pytest.mark.parametrize("name", ALL)
def test_a_custom_sampler_is_a_few_lines(name):
    process = ALL[name]
    prompt = torch.tensor([5, 5])
    states, tokens = trajectory(process, Replace(), prompt=prompt)
    assert (
        bool((tokens < V).all())
        and bool((tokens[:, :2] == 5).all())
        and bool((states[..., :2] == 5).all())
    )


def test_masks_that_a_sampler_leaves_are_refused_or_drawn_never_made_up():
    with contextlib.suppress(ValueError):
        assert bool((generate(SOME_LEVELS["hdlm"], Idle(), network=sure) == 2).all())


@unchecked
@every_pair
def test_nothing_that_is_handed_in_is_modified(process, sampler):
    logits = torch.randn(2, 4, V)
    prompt = torch.tensor([[1], [2]])
    grid = torch.linspace(1, 0, 6)
    things = (logits, prompt, grid, *process.buffers())
    copies = [v.clone() for v in things]
    by_times = sampler is None or sampler.guarantees.by_times
    options = {"prompt": prompt, "temperature": 0.7, "top_p": 0.9} | (
        {"steps": grid} if by_times else {}
    )
    generate(
        process,
        sampler,
        (2, 4),
        network=lambda z, t: logits,
        controls=[dd.controls.WholeBatch()],
        **options,
    )
    assert all(torch.equal(a, b) for a, b in zip(copies, things, strict=True))
