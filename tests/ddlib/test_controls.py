"""Options of every sampler: temperature and top-p, forbidden tokens, endings, seeds of rows."""

import math

import pytest
import torch
from refusals import refuses
from zoo.calls import generate, seeded, trajectory
from zoo.networks import Halves, never, plain
from zoo.processes import FOUR_OF_EVERY_KIND, LEVELS, SIX_TOKENS, V
from zoo.samplers import serves
from zoo.trees import PARENTS

import ddlib as dd
from ddlib import registry
from ddlib.contrib import Psi, ThetaTrapezoidal
from ddlib.hierarchies import Flat, Tree
from ddlib.parameterization.logits import posterior_logits
from ddlib.processes import GIDD, Hierarchical, Masked, Noisy, PerWord, Product, RateMatrix
from ddlib.samplers import Ancestral, Confidence, Euler, FirstHitting, Remask
from ddlib.samplers.controls import Ending, EndOfText, Settled
from ddlib.schedules import Geometric, Linear

F64 = torch.float64
unchecked = pytest.mark.usefixtures(
    "as_users_call"
)  # shape checks are on in the other tests; here they cost seconds


SAMPLERS = {
    kind: registry.get("samplers", kind).examples()[0] for kind in registry.built_in("samplers")
}
PAIRS_OF_PARTS = [
    pytest.param(process, sampler, id=f"{name}-{kind}")
    for name, process in SIX_TOKENS.items()
    for kind, sampler in SAMPLERS.items()
    if serves(sampler, process)
]
every_pair = pytest.mark.parametrize(("process", "sampler"), PAIRS_OF_PARTS)
every_pair_that_stops = pytest.mark.parametrize(
    ("process", "sampler"),
    [pair for pair in PAIRS_OF_PARTS if pair.values[1].guarantees.supports_stopping],
)
every_process = pytest.mark.parametrize(
    "process",
    [pytest.param(process, id=name) for name, process in SIX_TOKENS.items()],
)
some_levels = pytest.mark.parametrize("name", ["masked", "hdlm", "levels", "levels-xi"])
MASKED = Masked(V, Linear())
PROBS = torch.tensor([0.3, 0.05, 0.4, 0.05, 0.1, 0.1])


def fixed(probs):
    """A network with the same logits at every state and time."""
    return lambda z, t: probs.log().expand(*z.shape, len(probs))


def counts(**options):
    tokens = generate(MASKED, fixed(PROBS), shape=(50, 40), **options)
    return torch.bincount(tokens.flatten(), minlength=V) / tokens.numel()


def test_a_scheduled_option_is_evaluated_at_the_time_of_every_step():
    called_at = []
    grid = torch.tensor([1.0, 0.75, 0.25, 0.0])

    def knob(t):
        called_at.append(t)
        return 0.5

    moving = generate(MASKED, Halves(MASKED), steps=grid, temperature=knob)
    assert torch.equal(moving, generate(MASKED, Halves(MASKED), steps=grid, temperature=0.5))
    assert called_at == [1.0, 1.0, 0.75, 0.25, 0.0]  # checked, three steps, the end


def test_a_temperature_that_falls_is_greedy_only_where_it_is_zero():
    """Half the tokens are drawn while t > 1/2, at temperature 1, the other half are the
    likeliest.
    """
    share = counts(steps=40, temperature=lambda t: 1.0 if t > 0.5 else 0.0)
    assert (share - 0.5 * PROBS - 0.5 * torch.eye(V)[PROBS.argmax()]).abs().max() < 0.05


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 1}, [2]),
        ({"top_k": 2}, [0, 2]),
        ({"top_k": 3}, [0, 2, 4, 5]),
        ({"top_k": 9}, [*range(V)]),
        ({"min_p": 0.5}, [0, 2]),
        ({"min_p": 0.25}, [0, 2, 4, 5]),
        ({"min_p": 1.0}, [2]),
        ({"min_p": 0.0}, [*range(V)]),
        ({"min_p": 0.1, "temperature": 0.5}, [0, 2]),
        ({"top_k": 3, "top_p": 0.7}, [0, 2]),
    ],
    ids=str,
)
def test_top_k_and_min_p_keep_the_likeliest_in_proportion(options, kept):
    want = torch.zeros(V).index_copy(
        0, torch.tensor(kept), PROBS[kept] ** (1 / options.get("temperature", 1))
    )
    found = counts(controls=[dd.controls.Truncation(**options)])
    assert found.nonzero()[:, 0].tolist() == kept and (found - want / want.sum()).abs().max() < 0.05


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"top_p": 0.3}], ids=str)
@pytest.mark.parametrize("sampler", [Ancestral(), Euler(), ThetaTrapezoidal(), Psi(0.5)], ids=repr)
@pytest.mark.parametrize(
    "process",
    [
        *(FOUR_OF_EVERY_KIND[name] for name in ("gidd", "uniform", "rates")),
        Noisy(Flat(4), Linear(), 0.2),
        Noisy(Tree([[0, 1, 1, 2]]), Linear(), [0.1, 0.2]),
        PerWord(Linear(), [1.0, 2.0, 0.5, 1.0]),
    ],
    ids=repr,
)
def test_the_likeliest_token_alone_is_left_after_any_number_of_steps(process, sampler, options):
    """The evidence of a state is not sharpened: with it, a wrong token would stay."""
    probs = torch.tensor([0.2, 0.15, 0.25, 0.4])
    tokens = dd.sample(process, fixed(probs), (50, 20), sampler, 40, generator=seeded(), **options)
    assert bool((tokens == 3).all())


def halved(log_probs):
    return 2 * log_probs.log_softmax(-1)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_last_draw_of_a_process_with_levels_sharpens_the_posterior(name, dtype):
    """As every descent does: not the network's distribution alone."""
    process = LEVELS[name]
    z = torch.arange(process.num_states)[None]
    t = torch.tensor([0.2], dtype=torch.float64)
    logits = torch.randn(1, z.shape[1], V, generator=seeded(), dtype=dtype)
    expected = halved(posterior_logits(process, logits, z, t)).softmax(-1)
    cavity = process.sharpen(logits, z, t, halved)
    found = posterior_logits(process, cavity, z, t).softmax(-1)
    assert cavity.dtype == dtype
    torch.testing.assert_close(found, expected)
    fields = torch.tensor([0] * process.num_states + [1])
    product = Product({"levels": process, "other": Masked(V, Linear())}, fields)
    z = torch.cat([z, torch.tensor([[product.num_states - 1]])], 1)
    logits = torch.cat([logits, logits[:, :1]], 1)
    inside = posterior_logits(product, product.sharpen(logits, z, t, halved), z, t).softmax(-1)
    torch.testing.assert_close(inside[:, :-1], expected)
    torch.testing.assert_close(inside[:, -1], halved(logits[:, 0]).softmax(-1))


def test_the_last_draw_at_temperature_zero_is_the_likeliest_token_given_the_state():
    """Of two steps and the last draw, by enumeration: 0.557, 0.017 and 0.426."""
    process = Hierarchical(Tree([[0, 0, 1]], xi=0.9), Geometric(0.4, 3.0))
    denoiser = fixed(torch.tensor([0.3, 0.25, 0.45]))
    tokens = dd.sample(process, denoiser, (40_000, 1), steps=2, generator=seeded(), temperature=0.0)
    share = tokens.flatten().bincount(minlength=3) / 40_000
    assert (share - torch.tensor([0.557, 0.017, 0.426])).abs().max() < 0.01


@pytest.mark.parametrize("process", [PerWord(Linear(), [1.0, 2.0, 1.0]), GIDD(3, 0.0)], ids=repr)
def test_a_prompt_that_the_network_excludes_is_recorded_at_a_temperature(process):
    options = {"controls": [dd.controls.Forbidden([2])], "temperature": 0.5, "record": True}
    tokens, path = dd.sample(
        process, fixed(torch.ones(3)), (2, 3), steps=3, prompt=torch.tensor([2]), **options
    )
    assert bool((tokens[:, 0] == 2).all())
    assert bool(path.log_probs.isfinite().all())


class Shifted(Ancestral):
    """Returns other states than tokens."""

    def __init__(self, by):
        super().__init__()
        self.declare(by=by)
        self.by = by

    def finalize(self, run, state):
        return state.z + self.by


test_what_finalize_returns_is_checked = refuses(r"""
    dd.sample(MASKED, fixed(PROBS), (2, 3), Shifted(-50), 2) | ValueError
        | finalize of Shifted returned state -\d+ at position 0 of row 0, must return a token
    dd.sample(MASKED, fixed(PROBS), (2, 3), Shifted(100), 2) | ValueError
        | finalize of Shifted returned state 1\d\d at position 0 of row 0, must return a token
""")


@unchecked
@every_pair
def test_forbidden_words_are_never_drawn(process, sampler):
    prompt = torch.tensor([1])
    tokens = generate(
        process,
        Halves(process),
        sampler,
        (20, 6),
        controls=[dd.controls.Forbidden([1, 3])],
        prompt=prompt,
    )
    assert (tokens[:, 0] == 1).all()  # the prompt stands
    assert not torch.isin(tokens[:, 1:], torch.tensor([1, 3])).any()
    assert torch.isin(torch.tensor([0, 2]), tokens).all()


@every_process
def test_forbidden_tokens_give_the_conditional_distribution_without_them(process):
    def without(z, t):
        return Halves(process)(z, t).masked_fill(
            torch.tensor([0, 1, 0, 1, 0, 0]).bool(), -torch.inf
        )

    assert torch.equal(
        generate(process, Halves(process), controls=[dd.controls.Forbidden((1, 3))]),
        generate(process, without),
    )


@unchecked
@some_levels
@pytest.mark.parametrize(
    "control", [dd.controls.Forbidden([1, 3]), dd.controls.RepetitionPenalty(3.0)], ids=str
)
def test_child_logits_and_those_of_words_draw_the_same_text(name, control):
    process = LEVELS[name]
    tree = Tree([PARENTS])
    table = torch.randn(
        20, tree.num_states - 1, generator=torch.Generator().manual_seed(1), dtype=F64
    )
    for sampler in (Ancestral(), Confidence()):
        ours = generate(
            process,
            lambda z, t: table[z],
            sampler,
            parameterization=dd.Children(tree),
            controls=[control],
        )
        theirs = generate(
            process, lambda z, t: dd.token_logits(tree, table[z]), sampler, controls=[control]
        )
        assert torch.equal(ours, theirs)


@unchecked
@some_levels
@pytest.mark.parametrize("sampler", [FirstHitting(), Confidence()], ids=repr)
def test_a_strong_repetition_penalty_avoids_repetition(name, sampler):
    process = LEVELS[name]
    edges = len(LEVELS[name].levels) - 1
    tokens = generate(
        process,
        Halves(process),
        sampler,
        (20, V),
        steps=V * edges,
        controls=[dd.controls.RepetitionPenalty(1e25)],
    )
    different = [len(set(row)) for row in tokens.tolist()]
    # a token comes after its cluster: a cluster without unused tokens repeats one
    assert set(different) == {V} if name == "masked" else sum(different) > 4.2 * 20


@every_process
def test_a_word_counts_less_by_the_penalty_where_it_stands_elsewhere(process):
    def punished(z, t):
        logits = Halves(process)(z, t).log_softmax(-1)
        for b, i in ((b, i) for b in range(len(z)) for i in range(z.shape[1])):
            others = {int(state) for j, state in enumerate(z[b]) if j != i and state < V}
            logits[b, i, list(others)] -= math.log(2.5)
        return logits

    ours = generate(
        process,
        Halves(process),
        controls=[dd.controls.RepetitionPenalty(2.5), dd.controls.WholeBatch()],
    )
    assert torch.equal(ours, generate(process, punished, controls=[dd.controls.WholeBatch()]))


END = 4


@unchecked
@every_pair_that_stops
def test_nothing_follows_the_end_of_a_text(process, sampler):
    tokens = generate(process, Halves(process), sampler, (30, 8), controls=[EndOfText(END, fill=5)])
    for row in tokens.tolist():
        assert END not in row or set(row[row.index(END) + 1 :]) <= {5}
    assert (tokens == END).any()


@unchecked
@every_pair_that_stops
def test_a_text_does_not_end_before_its_time(process, sampler):
    tokens = generate(
        process, Halves(process), sampler, (30, 12), controls=[EndOfText(END, least=5, last=False)]
    )
    assert not (tokens[:, :5] == END).any() and (tokens[:, 5:] == END).any()
    assert any(set(row[row.index(END) + 1 :]) - {END} for row in tokens.tolist() if END in row)


def test_an_ending_other_than_the_last_may_be_followed_by_tokens():
    tokens = generate(
        MASKED, fixed(PROBS), shape=(20, 30), controls=[EndOfText(END, least=5, last=False)]
    )
    assert not (tokens[:, :5] == END).any()
    assert all(set(row[row.index(END) + 1 :]) - {END} for row in tokens.tolist() if END in row[:25])


def test_positions_behind_the_end_are_not_evaluated():
    logits = [torch.zeros(V), torch.zeros(V)]
    logits[0][END] = logits[1][0] = 50.0  # the end first, at position 0, zeros elsewhere

    def network(z, t):
        return torch.stack(logits[:1] + logits[1:] * (z.shape[1] - 1)).expand(len(z), -1, -1)

    states = trajectory(
        MASKED, network, FirstHitting(), shape=(1, 6), steps=6, controls=[EndOfText(END)]
    )
    ended = (states[:, 0, 0] == END).nonzero()[0, 0]
    assert (states[ended:, 0] == END).all() and len(
        states
    ) == ended + 1  # all stands: no step is left
    assert (states[:ended, 0] != END).all()


def test_ends_in_the_prompt_do_not_count():
    prompt = torch.tensor([END, V, 2, V, V, 3])
    tokens = generate(
        MASKED,
        fixed(torch.eye(V)[END].clamp_min(1e-9)),
        prompt=prompt,
        controls=[EndOfText(END, fill=0)],
        shape=(3, 6),
    )
    assert tokens.tolist() == [[END, END, 2, 0, 0, 3]] * 3


PAIRS = RateMatrix(  # tokens are exchanged in pairs
    torch.tensor(
        [[-3.0, 2, 0, 0, 1], [2, -3, 0, 0, 1], [0, 0, -3, 2, 1], [0, 0, 2, -3, 1], [0, 0, 0, 0, 0]]
    ).double(),
    Linear(),
    4,
)


def stops_early(process, steps, shape):
    """A network that is certain is called at the start and once more, for every number of steps."""
    calls = []
    sure = torch.full((process.vocab_size,), -30.0).index_fill(0, torch.tensor(2), 0.0)

    def network(z, t):
        calls.append(float(t[0]))
        return sure.expand(*z.shape, -1)

    tokens = generate(process, network, Ancestral(), shape, steps=steps, controls=[Settled()])
    assert (tokens == 2).all() and calls == pytest.approx([1.0, 1 - 1 / steps], abs=1e-6)


@every_process
def test_a_confident_network_stops_early_with_the_likeliest_tokens(process):
    stops_early(process, 50, (4, 5))


def test_tokens_that_are_exchanged_are_fixed_like_masks():
    stops_early(PAIRS, 4, (3, 8))


@unchecked
@pytest.mark.parametrize(
    ("process", "sampler"),
    [
        pytest.param(process, sampler, id=f"{name}-{sampler}")
        for name, process in SIX_TOKENS.items()
        for sampler in (Ancestral(), Psi(0.7), FirstHitting(), Remask(0.3))
        if serves(sampler, process)
    ],
)
def test_a_sampler_that_never_stops_draws_the_same_with_no_more_calls_on_the_grid(process, sampler):
    for denoiser in (Halves(process), plain(Halves(process))):
        ours = generate(process, denoiser, sampler, controls=[Settled(0.0, 7)])
        assert torch.equal(ours, generate(process, Halves(process), sampler))
    counted = Halves(process)
    generate(process, counted, sampler, steps=7, controls=[Settled(0.0, 7)])
    assert (
        counted.calls
        <= (7 if sampler.guarantees.on_time_grid else 14) + sampler.guarantees.max_finalize_calls
    )


def test_rows_that_are_sure_stop_alone():
    sure = torch.full((V,), -30.0).index_fill(0, torch.tensor(2), 0.0)

    def network(z, t):  # rows differ by their prompt
        return torch.where((z[:, :1] == 0)[..., None], sure, PROBS.log()).expand(*z.shape, V)

    prompt = torch.tensor([[0], [1]])
    states = trajectory(
        MASKED, network, Ancestral(), shape=(2, 40), prompt=prompt, controls=[Settled()]
    )
    assert (states[2, 0, 1:] == 2).all() and (states[2, 1] == V).any() and (states[-1] < V).all()
    assert torch.bincount(states[-1, 1], minlength=V).count_nonzero() > 2


def test_a_row_is_a_function_of_its_seed():
    process = LEVELS["levels-xi"]
    whole = dd.sample(process, Halves(process), (3, 5), steps=6, generator=[7, 1, 7])
    assert torch.equal(whole[0], whole[2]) and not torch.equal(whole[0], whole[1])
    assert torch.equal(
        dd.sample(process, Halves(process), (1, 5), steps=6, generator=[1]), whole[1:2]
    )


class Never(Ending):
    def select_finished(self, run, state, drawn, memo):
        return state.z, torch.zeros_like(drawn), None


def test_a_custom_ending_that_never_occurs_changes_nothing():
    process = LEVELS["hdlm"]
    ours = generate(process, Halves(process), controls=[Never(), Never()])
    assert torch.equal(ours, generate(process, Halves(process)))
    assert repr(EndOfText(3, 2)) == "EndOfText(token=3, least=2, last=True, fill=3)"


TREE = dd.presets.hdlm(PARENTS)


def controlled(**options):
    return dd.sample(TREE, never, (2, 3), **options)


test_bad_input_is_named_before_the_network_is_called = refuses(r"""
    controlled(top_p=lambda t: "much") | TypeError | top_p\(1\) is 'much'
    dd.sample(MASKED, fixed(torch.eye(V)[2]), (2, 3), controls=[dd.controls.Forbidden([2])])
        | ValueError
            | forbidden contains all tokens to which the network gives a positive probability
    dd.sample(MASKED, fixed(PROBS), (2, 3), steps=2, temperature=lambda t: 1.0 if t == 1 else
        math.nan)
        | ValueError | temperature\(0\.5\) is nan
""")


def test_an_end_that_other_tokens_may_have_become_does_not_stop_a_sequence():
    logits = torch.tensor([0.55, 0.05, 0.2, 0.2]).log()
    options = {"controls": [EndOfText(1)], "generator": seeded()}
    x = dd.sample(PAIRS, lambda z, t: logits.expand(*z.shape, 4), (2000, 1), steps=8, **options)
    assert abs(float((x == 1).double().mean()) - 0.05) < 0.02


def test_controls_that_contradict_each_other_are_refused():
    process = dd.presets.hdlm([0, 0, 1, 1])
    noisy = dd.presets.gidd(4, 0.2)

    def network(z, t):
        return torch.zeros(*z.shape, 4)

    class Cut(dd.controls.Control):
        def finish(self, run, tokens):
            return tokens[:, :1]

    cases = {
        "must not hold both: the end would never be drawn": (
            process,
            [dd.controls.Forbidden([3]), dd.controls.EndOfText(3)],
        ),
        r"all tokens of cluster \[1\] of level 1": (
            process,
            [dd.controls.Forbidden([2]), dd.controls.Forbidden([3])],
        ),
        r"finish of .* returned shape \(2, 1\), must be tokens of shape \(2, 3\)": (
            process,
            [Cut()],
        ),
    }
    for message, (chosen, parts) in cases.items():
        with pytest.raises(ValueError, match=message):
            dd.sample(chosen, network, (2, 3), steps=2, controls=parts)
    tokens = dd.sample(
        noisy, network, (50, 3), steps=8, controls=[dd.controls.EndOfText(1, least=3)]
    )
    assert not (tokens == 1).any()
