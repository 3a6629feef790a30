"""Samplers run the network only where something jumps, and draw what they would draw if it ran
everywhere.
"""

import pytest
import torch
from test_memory import LiveBytes
from zoo.calls import generate, seeded, trajectory
from zoo.networks import D, Halves, plain
from zoo.processes import LEVELS, V
from zoo.samplers import SAMPLERS, every_pair, every_sampler
from zoo.trees import PARENTS

import ddlib as dd
from ddlib.processes import GIDD, Masked, Uniform
from ddlib.samplers import Ancestral, FirstHitting
from ddlib.schedules import Cosine, Linear

OTHERS = {"gidd": GIDD(V, p_uniform=0.3), "uniform": Uniform(V, Linear())}
pytestmark = pytest.mark.usefixtures("as_users_call")


@every_pair
def test_halves_draw_the_words_of_the_whole(name, sampler):
    process = LEVELS[name]
    halves = Halves(process, bias="xi" in name)
    sharper = (
        {"parameterization": "posterior", "temperature": 0.5},
        {"temperature": 0.0},
        {"top_p": 0.7},
    )
    for options in sharper:
        drawn = [
            generate(process, denoiser, sampler, (8, 6), **options)
            for denoiser in (halves, plain(halves))
        ]
        assert torch.equal(*drawn) and (
            len(drawn[0].unique()) > 2 or options == {"temperature": 0.0}
        )


@every_pair
def test_leaving_sequences_out_changes_no_word(name, sampler):
    process = LEVELS[name]
    last = LEVELS[name].num_states - 1
    prompt = torch.tensor(
        [[1, 0, 4, 2, 2], [2, last, 5, 5, last], [3, last, 3, 1, 0], [4, last, last, last, last]]
    )
    for denoiser, given in (
        (Halves(process), {"prompt": prompt}),
        (plain(Halves(process)), {}),
    ):
        left_out, all_in = (
            generate(
                process,
                denoiser,
                sampler,
                steps=15,
                controls=[*([] if compact else [dd.controls.WholeBatch()])],
                **given,
            )
            for compact in (True, False)
        )
        assert torch.equal(left_out, all_in) and len(all_in.unique()) > 2


@pytest.mark.parametrize("name", OTHERS)
def test_the_network_sees_every_position_if_it_decides_which_jump(name):
    process = OTHERS[name]
    halves = Halves(process)
    assert torch.equal(
        generate(process, halves, steps=20), generate(process, plain(halves), steps=20)
    )
    assert halves.whole == 20 and halves.calls == 40 and halves.sequences == 160


@every_pair
def test_chunks_change_no_word(name, sampler, monkeypatch):
    process = LEVELS[name]
    whole = generate(process, Halves(process), sampler, steps=3)
    monkeypatch.setattr("ddlib.samplers.runtime.model._HELD", 3 * V)
    assert torch.equal(generate(process, Halves(process), sampler, steps=3), whole)


@pytest.mark.parametrize("name", [name for name, process in LEVELS.items() if process.exact_ends])
@every_sampler
@pytest.mark.parametrize("steps", [2, 15])
def test_the_network_runs_on_sequences_that_jump_and_its_head_where_they_do(
    name, sampler, steps, products
):
    process = LEVELS[name]
    halves = Halves(process)
    levels = process.level_of(trajectory(process, halves, sampler, steps=steps).flatten(1)).view(
        steps + 1, 4, 5
    )
    moved = levels[1:] != levels[:-1]
    assert halves.whole == 0
    assert halves.calls == int(moved.any(-1).any(-1).sum())
    assert halves.sequences == int(moved.any(-1).sum())
    assert sum(rows for rows, _ in products) == int(moved.sum())


def test_a_step_without_a_jump_makes_no_call():
    process = LEVELS["hdlm"]
    halves = Halves(process)
    generate(process, halves, shape=(1, 3), steps=200)
    assert 0 < halves.calls <= 3 * process.hierarchy.depth
    full = torch.tensor([[1, 2, 3], [4, 5, 0]])
    halves = Halves(process)
    for known in (process, LEVELS["geometric"]):
        assert torch.equal(generate(known, halves, shape=(2, 3), prompt=full), full)
    assert halves.calls == 0


def test_the_batch_holds_all_sequences_on_request():
    halves = Halves(LEVELS["masked"])
    generate(LEVELS["masked"], halves, steps=30, controls=[dd.controls.WholeBatch()])
    assert 0 < halves.calls < 30 and halves.sequences == 4 * halves.calls


def test_a_condition_per_row_without_the_whole_batch_is_refused_by_name():
    """Both where torch does not broadcast the condition, and where it does and the output has too
    many rows.
    """
    process = LEVELS["masked"]
    row = torch.arange(4.0)[:, None, None]

    def denoiser(z, t):
        return plain(Halves(process))(z, t) + row

    guided = dd.guidance.ClassifierFree(process, denoiser, plain(Halves(process)), 1.5, "states")
    for network, name in ((denoiser, "denoiser"), (guided, "ClassifierFree")):
        with pytest.raises(
            ValueError, match=rf"{name} fails on \d of 4 sequences and not on all.*WholeBatch"
        ):
            generate(process, network, steps=30)
        assert generate(process, network, steps=30, controls=[dd.controls.WholeBatch()]).shape == (
            4,
            5,
        )
    with pytest.raises(RuntimeError, match=r"^own$"):
        generate(process, lambda z, t: (_ for _ in ()).throw(RuntimeError("own")), steps=30)


@every_sampler
def test_logits_of_a_position_are_at_the_time_of_its_sequence(sampler, monkeypatch):
    called_at = []
    read_at = []

    def recorded(process, layout, logits, z, t):
        assert logits.shape == (len(z), 1, V) and z.shape == (len(t), 1)
        read_at.append(t)
        return logits

    monkeypatch.setattr("ddlib.samplers.runtime.model.to_cavity", recorded)
    process = Masked(V, Cosine())
    halves = Halves(process)
    features = halves.features
    halves.features = lambda z, t: called_at.append(t) or features(z, t)
    generate(process, halves, sampler, (4, 1), steps=30)
    t = torch.cat(read_at)
    assert torch.equal(t.float(), torch.cat(called_at)) and len(t) == 4


@pytest.mark.parametrize("name", ["masked", "hdlm", "levels"])
def test_first_hitting_needs_one_row_a_jump(name, products):
    process = LEVELS[name]
    halves = Halves(process)
    jumps = 5 * process.hierarchy.depth
    generate(process, halves, FirstHitting(), steps=jumps)
    assert (
        halves.calls == jumps and sum(rows for rows, _ in products) == 4 * jumps == halves.sequences
    )


def test_columns_of_clusters_are_all_that_is_multiplied(products):
    process = LEVELS["hdlm"]
    states = trajectory(process, Halves(process), Ancestral(), steps=50, shape=(1, 5))
    level = process.level_of(states[1:, 0])
    before = process.level_of(states[:-1, 0])
    landed = states[:-1, 0][(before == 1) & (level == 0)] - V
    sizes = torch.bincount(torch.tensor(PARENTS))[landed]
    from_mask = int(((before == 2) & (level < 2)).sum())
    assert sum(rows * columns for rows, columns in products) == int(sizes.sum()) + from_mask * V


@pytest.mark.parametrize(
    ("name", "sampler"),
    [("masked", "first"), ("hdlm", "ancestral"), ("hdlm-xi", "ancestral")],
)
def test_nothing_of_all_positions_and_words_is_built(name, sampler):
    size = 2000
    shape = (1, 32)
    steps = 20
    parents = torch.arange(size) % 40
    process = {
        "masked": dd.presets.mdlm(size),
        "hdlm": dd.presets.hdlm(parents),
        "hdlm-xi": dd.presets.hdlm(parents, xi=0.8),
    }[name]
    halves = Halves(process)
    halves.weight = torch.randn(size, D, generator=seeded())
    halves.bias = None
    with LiveBytes() as recorder:
        tokens = generate(
            process, halves, SAMPLERS[sampler], shape, steps=steps, parameterization="posterior"
        )
    assert bool((tokens < size).all()) and size < recorder.largest < tokens.numel() * size / 3
