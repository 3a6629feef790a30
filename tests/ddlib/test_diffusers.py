"""``SamplerScheduler``: a sampler behind the interface of diffusers' schedulers draws what
``dd.sample`` draws.
"""

import json

import pytest
import torch
from refusals import refuses
from zoo.calls import seeded

import ddlib as dd
from ddlib.contrib import Psi
from ddlib.integrations.diffusers import SamplerScheduler
from ddlib.samplers import Ancestral, Confidence, Corrected, FirstHitting, Particles, Remask

V = 5
TREE = {"kind": "tree", "parents": [[0, 0, 1, 1, 2], [0, 0, 1]], "xi": [0.9, 1.0]}
GEOMETRIC = {"kind": "geometric", "sigma_min": 1e-3, "sigma_max": 8.0}
PROCESSES = {
    "masked": {"kind": "masked", "vocab_size": V, "schedule": "cosine"},
    "end that is not exact": {"kind": "masked", "vocab_size": V, "schedule": GEOMETRIC},
    "uniform": {"kind": "uniform", "vocab_size": V, "schedule": "linear"},
    "gidd": {"kind": "gidd", "vocab_size": V, "p_uniform": 0.2},
    "hierarchical": {"kind": "hierarchical", "hierarchy": TREE, "schedule": "linear"},
}
TABLE = torch.randn(V + 6, V, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def made(process, sampler="ancestral", steps=32, **knobs):
    return SamplerScheduler(process=process, sampler=sampler, num_inference_steps=steps, **knobs)


def network(z, t):
    """Looks at every position, at its neighbours and at the time."""
    own = TABLE[z]
    return own + own.mean(1, keepdim=True) + t.to(torch.float64).view(-1, 1, 1) * own.roll(1, 1)


def drawn(scheduler, shape, generator, **options):
    """The loop that one writes around any scheduler of diffusers."""
    sample = scheduler.init_sample(shape, generator)
    for timestep in scheduler.timesteps:
        time = scheduler.time_of(timestep).expand(len(sample)).to(torch.float32)
        logits = network(scheduler.scale_model_input(sample, timestep), time)
        sample = scheduler.step(
            logits, timestep, sample, generator=generator, **options
        ).prev_sample
    return sample


def leaves():
    """Every registered sampler, as its own examples make it."""
    for name in dd.registry.built_in("samplers"):
        yield from dd.registry.get("samplers", name).examples()


@pytest.mark.parametrize("name", PROCESSES)
def test_words_are_those_of_sample_or_the_sampler_is_refused(name):
    values = PROCESSES[name]
    served = []
    for sampler in leaves():
        try:
            scheduler = made(values, sampler, 4)
        except (TypeError, ValueError) as error:
            assert type(sampler).__name__ in str(error)
            continue
        served.append(type(sampler))
        steps = 4 if scheduler.process.exact_ends else 3
        want = dd.sample(
            scheduler.process, network, (2, 5), sampler, steps, generator=seeded(), temperature=0.8
        )
        assert drawn(scheduler, (2, 5), seeded(), temperature=0.8).equal(want), sampler
    assert {Ancestral, Psi} <= set(served)
    levels = scheduler.process.hierarchy is not None
    assert levels == ({Confidence, Remask} <= set(served)) and not {
        FirstHitting,
        Particles,
        Corrected,
    } & set(served)


def test_keyed_noise_and_knobs_are_those_of_sample():
    knobs = {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 4,
        "min_p": 0.01,
        "parameterization": "posterior",
    }
    scheduler = made(PROCESSES["uniform"], "psi:0.8", 5, **knobs)
    keys = torch.arange(3)
    want = dd.sample(
        scheduler.process,
        network,
        (3, 6),
        Psi(0.8),
        5,
        generator=dd.KeyedGenerator(1, 0, keys),
        parameterization=knobs.pop("parameterization"),
        controls=[dd.controls.Truncation(**knobs)],
    )
    for _ in range(2):  # and a second time
        assert drawn(scheduler, (3, 6), dd.KeyedGenerator(1, 0, keys)).equal(want)


def test_a_prompt_stands_and_the_rest_is_that_of_sample():
    scheduler = made(PROCESSES["masked"], "confidence", 4)
    tokens = torch.tensor([[1, 3, V, 0, V, V]])
    want = dd.sample(
        scheduler.process, network, (1, 6), Confidence(), 4, tokens, generator=seeded()
    )
    generator = seeded()
    stands = tokens < V
    sample = torch.where(stands, tokens, scheduler.init_sample((1, 6), generator))
    for k in scheduler.timesteps:
        logits = network(sample, scheduler.time_of(k).expand(1))
        sample = scheduler.step(
            logits, k, sample, prompt_mask=stands[0], generator=generator
        ).prev_sample
    assert sample.equal(want) and sample[stands].equal(tokens[stands])


def test_values_are_saved_and_read(tmp_path):
    first = made(PROCESSES["hierarchical"], {"kind": "remask", "eta": 0.3}, 7, top_p=0.9)
    first.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "scheduler_config.json").read_text())
    assert saved["process"] == PROCESSES["hierarchical"] and saved["sampler"] == {
        "kind": "remask",
        "eta": 0.3,
    }
    for again in (
        SamplerScheduler.from_pretrained(tmp_path),
        SamplerScheduler.from_config(first.config),
    ):
        assert repr(again.process) == repr(first.process) and repr(again.sampler) == repr(
            first.sampler
        )
        assert drawn(again, (2, 5), seeded()).equal(drawn(first, (2, 5), seeded()))
    assert (
        SamplerScheduler.from_config(first.config, sampler="ancestral").sampler.__class__
        is Ancestral
    )


def test_a_third_party_file_imports_nothing_untrusted(tmp_path):
    values = {"kind": "ddlib.presets:mdlm", "vocab_size": V}
    made(values).save_pretrained(tmp_path)
    with pytest.raises((PermissionError, ValueError), match=r"ddlib\.presets"):
        SamplerScheduler.from_pretrained(tmp_path)
    assert (
        SamplerScheduler.from_pretrained(tmp_path, trust=("ddlib.presets",)).process.vocab_size == V
    )


def test_objects_serve_and_are_not_saved(tmp_path):
    scheduler = made(dd.presets.mdlm(V), Psi(0.5), 3)
    assert bool((drawn(scheduler, (2, 4), seeded()) < V).all())
    with pytest.raises(
        TypeError, match=r"process was given as the object Masked.*must be plain values"
    ):
        scheduler.save_pretrained(tmp_path)


def test_noise_is_the_process_s_at_the_times_of_the_steps():
    scheduler = made(PROCESSES["hierarchical"], steps=4)
    tokens = torch.randint(V, (3, 6), generator=seeded())
    t = torch.tensor([1.0, 0.75, 0.25], dtype=torch.float64)
    want = scheduler.process.sample(tokens, t, seeded(1))
    assert scheduler.add_noise(tokens, seeded(1), torch.tensor([0, 1, 3])).equal(want)
    assert scheduler.add_noise(
        tokens, timesteps=torch.tensor([0, 1, 3]), generator=seeded(1)
    ).equal(want)
    begun = scheduler.add_noise(tokens, seeded(1), 2)  # and drawn anew from the middle
    generator = seeded(2)
    for k in scheduler.timesteps[2:]:
        begun = scheduler.step(
            network(begun, scheduler.time_of(k).expand(3)), k, begun, generator=generator
        )[0]
    assert bool((begun < V).all())


LOGITS = torch.zeros(2, 4, V)
MASKS = torch.full((2, 4), V)


def stepped(**change):
    scheduler = made(PROCESSES["masked"], steps=4)
    return scheduler.step(**({"model_output": LOGITS, "timestep": 0, "sample": MASKS} | change))


test_a_bad_step_is_named = refuses(r"""
    stepped(timestep=4) | ValueError | timestep is 4, must be one of the timesteps 0\.\.3
    stepped(timestep=0.5) | ValueError | timestep is 0\.5, must be one of
    stepped(timestep=torch.tensor([0, 1])) | ValueError | timestep is tensor
    stepped(sample=MASKS + 1) | ValueError | sample holds 6, must be states in \[0, 6\)
    stepped(sample=MASKS.float()) | TypeError | sample has dtype
    stepped(model_output=torch.zeros(2, 4, V + 1)) | ValueError
        | logits has 6 columns, the process has vocab_size 5
    stepped(model_output=torch.zeros(2, 3, V)) | ValueError | logits has shape
    stepped(model_output=LOGITS / 0) | ValueError | NaN
    stepped(prompt_mask=torch.ones(3, dtype=torch.bool)) | ValueError | prompt_mask has shape
    stepped(prompt_mask=torch.zeros(2, 4)) | TypeError | prompt_mask has dtype
    stepped(temperature=-1.0) | ValueError | temperature
""")


def scheduler(**given):
    return SamplerScheduler(**({"process": PROCESSES["masked"]} | given))


test_a_bad_scheduler_is_named_when_it_is_made = refuses(r"""
    scheduler(process={"kind": "maskd"}) | ValueError | processes
    scheduler(process={"kind": "masked", "schedule": "linear"}) | ValueError
        | vocab_size: is missing
    scheduler(sampler="psi:2") | ValueError | kappa
    scheduler(num_inference_steps=0) | ValueError | num_inference_steps is 0, must be at least 1
    scheduler(process=PROCESSES["end that is not exact"], num_inference_steps=1) | ValueError
        | at least 2
    scheduler(top_p=0.0) | ValueError | top_p
    scheduler(sampler=FirstHitting()) | TypeError | FirstHitting\(.*one output per step
    scheduler(sampler="theta_trapezoidal") | TypeError
        | ThetaTrapezoidal\(.*calls the network 2 times
    scheduler(sampler=Corrected(Ancestral(), Gibbs(positions=1))) | TypeError | Corrected
""")


def noised(word, *given, **options):
    return made(PROCESSES["masked"], steps=4).add_noise(torch.full((2, 4), word), *given, **options)


test_bad_noise_is_refused = refuses(r"""
    noised(0, torch.zeros(2, 4), 0) | TypeError | noise is a tensor
    noised(0, None, torch.tensor([0, 1, 2])) | ValueError | timesteps has 3
    noised(V, None, 0) | ValueError | original_samples holds 5
    noised(0, seeded(1), 0, generator=seeded(2))
        | ValueError | noise and generator are both given, only one may be given
""")
