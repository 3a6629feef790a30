"""Samplers of other code bases: what they draw with the options that the page names."""

import pytest
import torch
from other_code import COSINE, F64, S, V, masks, network, shown

import ddlib as dd
from ddlib.integrations.diffusers import SamplerScheduler
from ddlib_models import hub

UNIFORM = dd.processes.Uniform(V, COSINE)
HOLES = torch.tensor([[1, *[V] * 10, 2]])


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def page():
    return shown()


def recorded(*arguments, **options):
    """Return samples, and the number of masks of the first row before and after every step."""
    masks_left = []

    def count(k, t, z):
        masks_left.append(int((z[0] == V).sum()))

    return dd.sample(*arguments, on_step=count, **options), masks_left


@pytest.mark.parametrize(
    "sampler", [S.Ancestral(), dd.contrib.Psi(0.9), dd.contrib.Psi(0.0)], ids=repr
)
def test_samplers_of_duo_with_a_greedy_last_step(sampler):
    greedy = {"temperature": lambda t: 0.0 if t <= 1 / 4 else 1.0}
    assert dd.sample(UNIFORM, network, (2, 6), sampler, 4, **greedy).max() < V
    assert dd.bound(UNIFORM, network, torch.randint(V, (64, 6))).total.isfinite().all()


@pytest.mark.parametrize(
    "sampler",
    [
        S.Remask(0.1, "cap"),
        S.Remask(0.1, "rescale"),
        S.Remask(1.0, "confidence"),
        S.Remask(0.1, "loop", t_on=0.55, t_off=0.05, plateau=0.1),
        S.Corrected(S.Ancestral(), S.ForwardBackward(2.0)),
        S.Corrected(S.Ancestral(), S.EdgeBalance(2.0)),
        S.EntropyBounded(0.1),
    ],
    ids=repr,
)
def test_samplers_that_remask(sampler):
    assert dd.sample(masks(), network, (2, 6), sampler, steps=8, top_p=0.9).max() < V


def test_blocks_of_llada():
    prompt = torch.tensor([1, 2, 0])
    options = {
        "pace": dd.paces.Blocks(3),
        "steps": 3,
        "temperature": 0.0,
        "controls": [dd.controls.Forbidden([4])],
    }
    order = S.Confidence("probability")
    tokens = dd.sample(masks(), network, (2, 9), order, prompt=prompt, **options)
    assert (tokens[:, :3] == prompt).all() and 4 not in tokens[:, 3:]


@pytest.mark.parametrize(
    "rule",
    [
        dd.contrib.Daedal(4, start=2, step=2, positions=4, block=4),
        dd.contrib.RhoEOS(4, start=2, step=1, positions=4),
    ],
    ids=repr,
)
def test_rules_for_lengths(rule):
    def ending(z, t):
        late = torch.arange(z.shape[1])[:, None] > 6
        return network(z, t) + 3.0 * (torch.arange(V) == 4) * late

    prompt = torch.tensor([1, 2])
    sure = S.Confidence("probability", threshold=0.6)
    options = {"steps": 64, "controls": [rule], "prompt": prompt, "temperature": 0.0}
    tokens = dd.sample(masks(), ending, (2, 16), sure, **options)
    assert (tokens[:, :2] == prompt).all() and (tokens[:, -1] == 4).all()


@pytest.mark.parametrize(
    "sampler",
    [
        S.Ancestral(),
        *(
            S.Confidence(score, per_step="expected")
            for score in ("probability", "margin", "entropy")
        ),
    ],
    ids=repr,
)
def test_times_and_holes_of_dream(sampler):
    grid = torch.linspace(1, 1e-3, 9, dtype=F64)
    grid[-1] = 0
    holes = torch.tensor([[1, V, V, 2, V, V]])
    options = {"steps": grid, "prompt": holes}
    drawn, masks_left = recorded(masks(), network, (1, 6), sampler, **options)
    assert drawn[0, 0] == 1 and drawn[0, 3] == 2 and drawn.max() < V
    assert len(masks_left) == 9


def test_small_blocks_of_fast_dllm(page):
    order = page["SmallBlocks"](size=2)
    options = {"steps": 4, "pace": dd.paces.Blocks(4), "temperature": 0.0}
    assert dd.sample(masks(), network, (2, 8), order, **options).max() < V


def test_the_shift_of_dllm():
    z = torch.randint(V + 1, (2, 6))
    logits = network(z, None)
    special = hub.Special(V, mask=V, bos=None, eos=None, eot=None, pad=None, ends=(), undrawn=())
    shifted = torch.cat([logits[:, :1], logits[:, :-1]], 1)
    assert hub.Adapted(network, special, shift=1)(z, torch.ones(2)).equal(shifted)


def test_rounded_numbers_of_dllm():
    rounded = S.Confidence("probability", per_step="rounded")
    options = {"prompt": HOLES, "temperature": 0.0, "controls": [dd.controls.Forbidden([4])]}
    drawn, masks_left = recorded(masks(), network, (1, 12), rounded, 4, **options)
    assert masks_left == [10, 8, 5, 3, 0] and 4 not in drawn
    for sampler, pace in ((S.Ancestral(), dd.paces.Together()), (rounded, dd.paces.Blocks(3))):
        assert dd.sample(masks(), network, (1, 12), sampler, 4, pace=pace, **options).max() < V


def test_the_scheduler_of_diffusers_draws_the_samples_of_ddlib(tmp_path):
    process = {"kind": "uniform", "vocab_size": V, "schedule": "linear"}
    scheduler = SamplerScheduler(process=process, sampler="psi:0.9", num_inference_steps=8)
    generator = torch.Generator().manual_seed(0)
    sample = scheduler.init_sample((2, 6), generator)
    for timestep in scheduler.timesteps:
        logits = network(sample, scheduler.time_of(timestep).expand(2))
        sample = scheduler.step(logits, timestep, sample, generator=generator).prev_sample
    again = torch.Generator().manual_seed(0)
    ours = dd.sample(
        scheduler.process, network, (2, 6), dd.contrib.Psi(0.9), steps=8, generator=again
    )
    assert sample.equal(ours)
    scheduler.save_pretrained(tmp_path)
    assert repr(SamplerScheduler.from_pretrained(tmp_path).sampler) == repr(dd.contrib.Psi(0.9))
    corrected = S.Corrected(S.Ancestral(), S.Gibbs(positions=1))
    assert dd.sample(scheduler.process, network, (2, 6), corrected, steps=4).max() < V


def test_numbers_of_masks_of_maskgit(page):
    picture = dd.processes.Masked(V, COSINE)
    guided = dd.guidance.ClassifierFree(
        picture, network, lambda z, t: 0 * network(z, t), lambda t: 1 + 3.0 * (1 - t)
    )
    label = {
        "prompt": torch.tensor([4]),
        "controls": [dd.controls.Forbidden([3, 4])],
    }  # 3 codes and 2 labels
    for choice, numbers in (
        (page["maskgit"], [16, 15, 14, 13, 11, 8, 6, 3, 0]),
        (S.Confidence("probability", per_step="expected"), [16, 16, 16, 15, 13, 11, 8, 5, 0]),
    ):
        drawn, masks_left = recorded(picture, guided, (2, 17), choice, 8, **label)
        assert (drawn[:, 0] == 4).all() and drawn[:, 1:].max() < 3
        assert masks_left == numbers


def test_positions_in_a_fixed_order(page):
    picture = dd.processes.Masked(V, COSINE)
    hidden = []
    options = {"temperature": 1 / 0.9, "on_step": lambda k, t, z: hidden.append(z == V)}
    dd.sample(picture, network, (1, 16), page["Fixed"](), steps=4, **options)
    # a column in each step
    after = hidden[1].view(4, 4)
    assert not after[:, 0].any() and after[:, 1:].all()


@pytest.mark.parametrize("sampler", [S.FirstHitting(), S.Confidence("probability")], ids=repr)
def test_evodiff_draws_one_position_after_another(sampler):
    drawn, masks_left = recorded(
        masks(), network, (3, 6), sampler, 6, controls=[dd.controls.Forbidden([4])]
    )
    assert drawn.max() < 4 and masks_left == [6, 5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize(
    "sampler", [S.Confidence("probability"), S.Remask(1.0, "confidence")], ids=repr
)
def test_partial_masks_of_dplm(sampler, temperature):
    options = {"temperature": temperature, "controls": [dd.controls.Forbidden([4])]}
    drawn = dd.sample(masks(), network, (1, 12), sampler, 5, HOLES, **options)
    assert drawn.max() < 4 and drawn[0, 0] == 1 and drawn[0, -1] == 2


BIAS, SLOPE = torch.randn(2, V, dtype=F64, generator=torch.Generator().manual_seed(1))


def conditional(z, t):
    return network(z, t) + BIAS


def classifier(states, t):
    return torch.nn.functional.logsigmoid((states.double() @ SLOPE).sum(1))


@pytest.mark.parametrize("kind", ["free", "based"])
def test_guidance_of_udlm(kind):
    """Compare the next state of one position at t = 1 with the formula, at s = 1/2.

    It depends on the network alone.
    """
    process = dd.processes.Uniform(V, dd.schedules.Linear())
    states = torch.arange(V)[:, None]
    unconditional, given = (
        (each(states, None)[:, 0].softmax(-1) / 2 + 1 / (2 * V)).log()
        for each in (network, conditional)
    )
    if kind == "free":
        guided = dd.guidance.ClassifierFree(process, conditional, network, 2.0, on="states")
        scores = 2 * given - unconditional
    else:
        guided = dd.guidance.ClassifierBased(process, network, classifier, 2.0, on="states")
        scores = unconditional + 2 * torch.nn.functional.logsigmoid(SLOPE)
    kept = []
    dd.sample(process, guided, (20_000, 1), steps=2, on_step=lambda k, t, z: kept.append(z[:, 0]))
    counts = torch.bincount(V * kept[0] + kept[1], minlength=V * V).view(V, V)
    total = counts.sum(1, keepdim=True)
    chance = scores.softmax(-1)
    error = (chance * (1 - chance) / total).sqrt()
    assert ((counts / total - chance).abs() < 5 * error + 1e-3).all()
