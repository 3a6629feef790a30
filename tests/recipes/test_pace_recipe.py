"""Paces in recipes: what is trained, validated, evaluated and drawn at one, and what is refused
before any work.
"""

import math
from dataclasses import replace

import pytest
import torch
from training_runs import curve, loss_of, losses, objective
from zoo.calls import seeded
from zoo.runs import ALONE, batch_of, publishes, quiet, recipe, recipe_in, text

import ddlib as dd
from ddlib.paces import Blocks, LeftToRight, RandomOrder, Together
from ddlib.utils.validation import UsageWarning
from ddlib_models import DiT
from recipes.config import Output, at_once, read_recipe, recipe_yaml
from recipes.engine import train
from recipes.engine.objectives.noising import add_noise
from recipes.engine.run import Run
from recipes.engine.validation import validate
from recipes.evaluate import Options, evaluate
from recipes.generate import Options as GenerateOptions
from recipes.generate import generate
from recipes.generation.samples import protocol
from recipes.generation.sampling import NOISE, Sampling, draw
from recipes.model_io import open_saved

VOCAB = 7


def batch(rows=4, length=8):
    return batch_of(torch.randint(VOCAB, (rows, length), generator=seeded(1)))


def network(process, block):
    """In float64, and no two words alike to it."""
    torch.manual_seed(2)
    model = DiT(process.num_states, VOCAB, 16, 2, 2, cond_dim=8, block_size=block).double()
    for value in model.parameters():
        torch.nn.init.normal_(value, std=0.3)
    return model


def gradients(model):
    return torch.cat(
        [value.grad.flatten() for value in model.parameters() if value.grad is not None]
    )


def test_together_gives_the_noise_without_a_pace():
    process = dd.presets.hdlm(torch.arange(VOCAB) // 3)
    noisy = add_noise(process, batch(), 3, 4)
    noise = dd.KeyedGenerator(3, 4, torch.arange(4))
    t = dd.sample_times(4, generator=noise)
    assert torch.equal(noisy.t, t)
    assert torch.equal(noisy.z, process.sample(batch().x, t, noise))
    assert torch.equal(noisy.measure, torch.ones(4).double())


@pytest.mark.parametrize("pace", [Blocks(2), LeftToRight(), RandomOrder(2)], ids=repr)
@pytest.mark.parametrize("interval", [(0.0, 1.0), (0.3, 0.8)])
def test_one_part_of_a_text_is_noised_and_counts_for_all(pace, interval):
    process = dd.presets.mdlm(VOCAB)
    low, high = interval
    parts = 8 // pace.size
    size = pace.size
    for weigh in (True, False):
        loss = objective(times="bell", interval=interval, weigh_times=weigh)
        density = dd.times.Bell()
        noisy = add_noise(process, batch(64), 3, 4, loss, density, pace)
        moving = noisy.measure > 0
        assert torch.equal(moving.sum(1), torch.full((64,), size))
        assert bool(((noisy.t[moving] >= low) & (noisy.t[moving] <= high)).all())
        still = noisy.t[~moving]
        assert set(still.tolist()) == {0.0, 1.0}  # words or noise, not at the ends of the interval
        assert torch.equal(noisy.z[noisy.t == 0], noisy.x[noisy.t == 0])
        assert bool((noisy.z[~moving & (noisy.t == 1)] == VOCAB).all())
        counts = (
            density.weight(noisy.t[moving], interval) if weigh else torch.ones(64 * size).double()
        )
        torch.testing.assert_close(noisy.measure[moving], parts * counts, rtol=1e-6, atol=0)


@pytest.mark.parametrize("interval", [(0.0, 1.0), (0.45, 0.95)])
def test_all_blocks_at_once_have_times_of_their_own(interval):
    process = dd.presets.mdlm(VOCAB)
    loss = objective(interval=interval, weigh_times=False)
    noisy = add_noise(process, batch(64), 3, 4, loss, pace=Blocks(4), at_once=True)
    assert noisy.at_once
    assert torch.equal(noisy.measure, torch.ones(64, 8).double())
    low, high = interval
    blocks = noisy.t.view(64, 2, 4)
    assert torch.equal(blocks, blocks[:, :, :1].expand(-1, -1, 4))
    assert float(blocks.min()) >= low
    assert float(blocks.max()) <= high
    # of 64 texts in strata the times of either block are spread evenly
    spread = (blocks[:, :, 0].double().sort(0).values - low) / (high - low)
    torch.testing.assert_close(
        spread[:, 0], (torch.arange(64) + 0.5) / 64, rtol=0, atol=1 / 64, check_dtype=False
    )


@pytest.mark.parametrize("process", [dd.presets.mdlm(VOCAB), dd.presets.gidd(VOCAB, 0.1)], ids=repr)
@pytest.mark.parametrize("plain", [False, True], ids=["fused", "plain"])
def test_training_all_blocks_at_once_is_training_each_after_the_words_before_it(process, plain):
    model = network(process, 2)
    size = 2
    loss = objective(weighting="clip:5")
    whole = add_noise(process, batch(), 3, 4, loss, pace=Blocks(size), at_once=True)
    whole = replace(whole, t=whole.t.double())
    scale = torch.tensor(1 / 32, dtype=torch.float64)
    total, found = loss_of(loss, _Plain(model) if plain else model, process, whole, scale)
    total.backward()
    together = gradients(model)
    model.grad = None
    model.zero_grad()
    for block in range(8 // size):
        # the block alone: words before it, and its own noise
        end = (block + 1) * size
        own = torch.arange(end) >= end - size
        z, t = (
            torch.where(own, a[:, :end], b[:, :end])
            for a, b in ((whole.z, whole.x), (whole.t, 0 * whole.t))
        )
        part = dd.training_loss(
            process,
            model(z, t),
            whole.x[:, :end],
            z,
            dd.paces.Draw(t, own.expand_as(t).double()),
            dd.weightings.Clip(5.0),
            reduction="none",
        )
        torch.testing.assert_close(
            part[:, own], found[:, end - size : end].double(), rtol=1e-5, atol=1e-6
        )
        (part.sum() * scale).backward()
    torch.testing.assert_close(gradients(model), together, rtol=1e-6, atol=1e-8)


class _Plain(torch.nn.Module):
    """A network that gives logits and nothing else."""

    own_times = True

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.block_size = model.block_size

    def forward(self, z, t, **kwargs):
        return self.model(z, t, **kwargs)


def test_the_network_of_a_pace_has_its_blocks_unless_it_sets_others(tmp_path):
    given = recipe(tmp_path, tmp_path)
    assert "block_size" not in given.network or given.network["block_size"] == 0
    assert replace(given, pace="blocks:size=4").network["block_size"] == 4
    assert replace(given, pace="left_to_right").network["block_size"] == 1
    own = replace(given, pace="blocks:size=4", model=given.model | {"block_size": 16})
    assert own.network["block_size"] == 16
    process = dd.presets.mdlm(VOCAB)
    assert at_once(Blocks(2), network(process, 2))
    assert not at_once(Blocks(4), network(process, 2))
    assert not at_once(Together(), network(process, 0))
    assert not at_once(LeftToRight(), torch.nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(pace="block"),
            r"pace.kind: nothing in paces is called 'block', did you mean 'blocks'",
        ),
        (dict(pace="blocks:size=0"), r"pace: size is 0, must be"),
        (dict(pace="blocks:width=2"), r"pace.width: no such key; blocks has size"),
        (
            dict(pace="blocks:size=5"),
            r"pace Blocks\(size=5\), data.length=16: size is 5, must divide .* 16",
        ),
        (
            dict(pace="blocks:4", loss=dict(levels="balanced")),
            r"not with loss.levels='balanced'.* 'independent'$",
        ),
    ],
)
def test_conflicting_options_are_refused(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):  # before the text is looked for
        Run.prepare(recipe(tmp_path / "none", tmp_path, **changes), ALONE)


def test_packed_rows_have_one_time_each(tmp_path):
    given = recipe(tmp_path / "none", tmp_path, pace="random_order")
    with pytest.raises(ValueError, match=r"pace=RandomOrder\(size=1\): not with data.packed"):
        Run.prepare(replace(given, data=replace(given.data, packed=True)), ALONE)


class OneTime(torch.nn.Module):
    """Takes one time per sequence, without an attribute that it takes more."""

    def __init__(self, num_states: int, vocab_size: int):
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(num_states, vocab_size))

    def forward(self, z, t):
        return self.table[z]


def test_networks_without_times_per_position_are_refused(tmp_path):
    data = text(tmp_path / "data")
    network = dict(model=dict(kind=f"{__name__}:OneTime"))
    with pytest.raises(ValueError, match=r"pace=Blocks.*not with OneTime, which"):
        Run.prepare(recipe(data, tmp_path / "run", pace="blocks:4", **network), ALONE)


@pytest.mark.filterwarnings("ignore:pace is")  # of the evaluation at another one
@pytest.mark.parametrize(
    "pace",
    [
        "blocks:size=4",
        *(one for one in ("left_to_right", "random_order", "ramp:lag=2.0")),
    ],
)
def test_a_run_at_a_pace_is_validated_evaluated_and_drawn_at_it(pace, tmp_path):
    given = recipe_in(tmp_path, pace=pace)
    given = replace(given, hardware=replace(given.hardware, micro_batch=4))
    train(given)
    # the recipe has the pace as a part, and reads as it was written
    (tmp_path / "again.yaml").write_text(recipe_yaml(given))
    assert read_recipe(tmp_path / "again.yaml") == given
    assert all(map(math.isfinite, losses(given.output.folder)))
    saved = open_saved(given.output.folder)
    assert saved.model.block_size == (given.order().block or 0)
    bounds = [record for record in curve(given.output.folder) if record["kind"] == "bound"]
    options = Options(run=str(given.output.folder), scorer="none", replicates=2)
    result = evaluate(options, ALONE)
    assert result["validation"]["value"] == pytest.approx(bounds[-1]["nats_per_token"], rel=1e-6)
    assert result["protocol"]["pace"] == repr(given.order())
    assert math.isfinite(result["bound"]["nats_per_token"]["error"])
    assert (
        evaluate(replace(options, sampling=Sampling(pace="blocks:8")), ALONE)["validation"] is None
    )
    console = quiet()
    lines = generate(
        GenerateOptions(run=str(given.output.folder), samples=2, sampling=Sampling(steps=4)),
        console,
    )
    assert len(lines) == 2
    shown = dict(
        run=str(given.output.folder),
        samples=1,
        sampling=Sampling(steps=2),
        html=tmp_path / "x.html",
    )
    if saved.pace.block is None:
        with pytest.raises(ValueError, match="html: not with pace"):
            generate(GenerateOptions(**shown), console)
    else:
        generate(GenerateOptions(**shown), console)
        assert (tmp_path / "x.html").is_file()


def test_a_block_recipe_begins_at_the_weights_of_another(tiny, tmp_path):
    before = open_saved(tiny.run)
    whole = replace(
        before.recipe, pace="together", start=str(tiny.run), output=Output(folder=tmp_path / "run")
    )
    for pace, size in (("together", 0), ("blocks:size=8", 8)):
        run = Run.prepare(replace(whole, pace=pace), ALONE)
        assert run.network.model.block_size == size
        assert run.state.objective.at_once == (size > 0)
        for name, value in before.model.state_dict().items():
            assert torch.equal(value, run.network.model.state_dict()[name])
    with pytest.raises(
        ValueError, match="start='runs/none': must be 'random', 'text' or the folder of a run"
    ):
        Run.prepare(replace(whole, start="runs/none"), ALONE)


tiny = publishes("blocks")


@pytest.mark.filterwarnings("ignore:pace is")
def test_an_evaluation_is_the_bound_of_the_pace_text_by_text(tiny):
    saved = open_saved(tiny.run)
    wanted = 6
    for pace, once in ((Blocks(4), True), (Blocks(8), False), (Together(), False)):
        terms = validate(
            saved.process,
            saved.denoiser,
            tiny.data,
            saved.length,
            ALONE,
            sequences=wanted,
            batch=wanted,
            seed=5,
            replicate=1,
            density=None,
            parameterization=saved.parameterization,
            pace=pace,
        )
        part = tiny.held_out(wanted)
        noise = dd.KeyedGenerator(5, 1, part.index)
        levels = "independent" if pace.block else "balanced"
        with torch.no_grad():
            own = dd.bound(
                saved.process,
                saved.model,
                part.x,
                noise,
                parameterization=saved.parameterization,
                pace=pace,
                at_once=once,
                levels=levels,
            )
        expected = torch.where(part.mask, own.diffusion.double(), 0.0).sum(1)
        torch.testing.assert_close(terms.nats[:, 0], expected, rtol=1e-5, atol=1e-5)
        assert (terms.times is None) == once


def test_half_precision_keeps_blocks_and_times_per_position(tiny):
    whole, half = (open_saved(tiny.run, precision=name) for name in ("float32", "bfloat16"))
    assert half.denoiser.own_times
    assert half.denoiser.block_size == 4
    x = torch.zeros(2, 24, dtype=torch.int64)
    t = torch.full((2, 24), 0.5)
    with torch.no_grad():
        logits = [saved.denoiser(x, t, clean=x).float() for saved in (whole, half)]
    torch.testing.assert_close(*logits, rtol=0.1, atol=0.1)


@pytest.mark.filterwarnings("ignore:pace is .*, and the denoiser .* has blocks")
def test_samples_are_those_of_the_pace(tiny, monkeypatch):
    saved = open_saved(tiny.run)
    index = torch.arange(2)
    for sampling, pace in (
        (Sampling(steps=3), Blocks(4)),
        (Sampling(steps=3, pace="together"), None),
    ):
        drawn = draw(saved, sampling, 1, index, 24)
        expected = dd.sample(
            saved.process,
            saved.model,
            (2, 24),
            steps=3,
            parameterization=saved.parameterization,
            pace=pace,
            generator=dd.KeyedGenerator(1, NOISE, index),
        )
        assert torch.equal(drawn, expected)
    with monkeypatch.context() as fresh, pytest.warns(UsageWarning, match="has blocks of 4"):
        fresh.setattr("ddlib.utils.validation._warned", set())
        draw(saved, Sampling(steps=3, pace="blocks:8"), 1, index, 24)
    assert protocol(saved, Sampling(), 0, 24)["pace"] == "Blocks(size=4)"
    with pytest.raises(
        ValueError, match=r"pace Blocks\(size=5\), data.length=24: size is 5, must divide"
    ):
        draw(saved, Sampling(pace="blocks:5"), 1, index, 24)
    with pytest.raises(ValueError, match=r"sampler='first_hitting': pace is RandomOrder"):
        draw(saved, Sampling(pace="random_order", sampler="first_hitting"), 1, index, 24)


@pytest.mark.filterwarnings("ignore:pace is .*, and the denoiser .* has blocks")
def test_a_fault_of_a_network_at_a_pace_is_no_refusal_of_the_sampler(tiny):
    saved = open_saved(tiny.run)
    saved.model.blocks[0].register_forward_pre_hook(lambda *_: 1 + "1")
    with pytest.raises(TypeError, match="unsupported operand"):
        draw(saved, Sampling(steps=1, pace="random_order"), 1, torch.arange(1), 24)


def test_levels_of_one_time_are_refused_at_a_pace(tiny):
    with pytest.raises(
        ValueError, match=r"bound_levels='balanced': not with pace=Blocks\(size=4\)"
    ):
        evaluate(Options(run=str(tiny.run), scorer="none", bound_levels="balanced"), ALONE)
