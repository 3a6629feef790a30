"""Sampling with approximate caches: what is exact, what a sequence depends on, and what is
refused.
"""

import re
from dataclasses import replace

import pytest
import torch
from cases import caches
from hf_checkpoints import CAUSAL, write_all
from hf_checkpoints import WORDS as HF_WORDS
from hub_folders import save
from tiny import trained
from transformers import LlamaForCausalLM

import ddlib as dd
from ddlib.paces import Blocks
from ddlib.samplers import Ancestral, Confidence, Remask
from ddlib.samplers.controls import EndOfText
from ddlib.typing import WindowDenoiser
from ddlib_models import hub
from ddlib_models.hf.masked_lm import masked_lm
from ddlib_models.hub.known_families import a2d

WORDS = 5
PROCESS = dd.presets.mdlm(WORDS)


def network(**more):
    model = trained(num_states=PROCESS.num_states, vocab_size=WORDS, **more).double().eval()
    for parameter in model.parameters():  # so that tokens depend on each other strongly
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def drawn(model, keep, sampler=None, shape=(3, 12), **more):
    how = dict(pace=Blocks(4), steps=4, generator=list(range(shape[0]))) | more
    how["controls"] = [*caches(keep), *how.get("controls", ())]
    return dd.sample(PROCESS, model, shape, sampler or Confidence(), **how)


def rules():
    return pytest.mark.parametrize("keep", ["prefix", "dual", "prefix:refresh=2", "dual:refresh=3"])


SAMPLERS = [Ancestral(), Remask(0.5), Confidence(threshold=0.6)]


@rules()
@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_a_sequence_does_not_depend_on_the_others_of_the_batch(keep, sampler):
    """Sequences make their own calls, as those without a jump in a step make none, and count them
    alone.
    """
    model = network()
    seeds = [3, 1, 4, 1]
    together = drawn(model, keep, sampler, (4, 12), generator=seeds)
    for row, seed in enumerate(seeds):
        assert torch.equal(drawn(model, keep, sampler, (1, 12), generator=[seed])[0], together[row])


@rules()
def test_a_network_with_blocks_has_its_exact_cache(keep):
    model = network(block_size=4)
    assert torch.equal(drawn(model, keep, Ancestral()), drawn(model, False, Ancestral()))


@rules()
def test_prompts_gaps_and_endings_work(keep):
    model = network()
    gap = PROCESS.num_states - 1
    prompt = torch.tensor([[1, 2, gap, gap, gap, gap, 3, gap, gap, gap, 0, 4]]).expand(3, -1)
    tokens = drawn(model, keep, controls=[EndOfText(0)], prompt=prompt, temperature=0.7)
    assert torch.equal(tokens[:, :2], prompt[:, :2]) and (tokens < WORDS).all()


def test_the_cache_is_approximate():
    """Without a refresh some token is another one, or the tests above would show nothing."""
    model = network()
    assert not torch.equal(*(drawn(model, keep, Ancestral(), (16, 12)) for keep in ("dual", False)))


@pytest.mark.parametrize("keep", ["prefix", "dual", "dual:refresh=2"])
def test_probabilities_under_a_cache_sum_to_one_and_are_those_of_its_samples(keep):
    model = trained(num_states=3, vocab_size=2).double().eval()
    process = dd.presets.mdlm(2)
    every = torch.cartesian_prod(*[torch.arange(2)] * 6)
    for order in (Confidence(), dd.samplers.LeftToRight()):
        likely = [
            dd.likelihood(process, model, every, order, pace=Blocks(3), controls=[*caches(rule)])
            for rule in (keep, True)
        ]
        cached, plain = (one.log_likelihood for one in likely)
        torch.testing.assert_close(cached.exp().sum(), torch.tensor(1.0, dtype=torch.float64))
        assert (cached - plain).abs().max() > 1e-6
    noise = torch.Generator().manual_seed(0)
    tokens = dd.sample(
        process,
        model,
        (4000, 6),
        order,
        3,
        pace=Blocks(3),
        controls=[*caches(keep)],
        generator=noise,
    )
    counts = torch.bincount((tokens * 2 ** torch.arange(5, -1, -1)).sum(-1), minlength=64) / len(
        tokens
    )
    assert (counts - cached.exp()).abs().max() < 4 * 0.5 / len(
        tokens
    ) ** 0.5 and counts.max() > 0.05


def test_networks_that_take_no_window_are_refused_by_name(tmp_path):
    encoder = masked_lm(HF_WORDS + 1, HF_WORDS, str(write_all(tmp_path)["modernbert"]))
    encoder.own_times = True

    def alike(z, t):
        return torch.zeros(*z.shape, WORDS)

    alike.own_times = True
    for model, process in ((encoder, dd.presets.mdlm(HF_WORDS)), (alike, PROCESS)):
        name = "MaskedLM" if model is encoder else alike.__qualname__
        named = (
            f"controls holds Cache('dual'), which the denoiser {name} does not support: it must "
            "evaluate a window"
        )
        with pytest.raises(TypeError, match=re.escape(named)):
            dd.sample(
                process,
                model,
                (2, 8),
                controls=[dd.contrib.Cache("dual")],
                pace=Blocks(4),
                steps=2,
            )
        with pytest.raises(TypeError, match=re.escape(named)):
            dd.likelihood(
                process,
                model,
                torch.zeros(2, 8, dtype=torch.int64),
                controls=[dd.contrib.Cache("dual")],
                pace=Blocks(4),
            )


def test_costs_of_an_order_take_the_exact_cache_alone(as_users_call):
    x = torch.zeros(2, 8, dtype=torch.int64)
    with pytest.raises(TypeError, match="must have no approximate cache"):
        dd.contrib.order_costs(
            PROCESS, network(), x, controls=[dd.contrib.Cache("dual")], pace=Blocks(4)
        )


@pytest.mark.parametrize("shift", [0, 1])
def test_a_causal_class_of_the_hub_draws_through_its_cache(tmp_path, shift):
    family = replace(a2d(), shift=shift)
    process, denoiser, _, _ = hub.load(
        save(tmp_path, LlamaForCausalLM(CAUSAL["llama"]())), family=family
    )
    assert isinstance(denoiser, WindowDenoiser)
    how = dict(sampler=Confidence(), steps=3, pace=Blocks(3), generator=[0, 1])
    drawn = [
        dd.sample(process, denoiser, (2, 9), controls=[*caches(keep)], **how)
        for keep in (False, "dual:refresh=1", "dual")
    ]
    assert torch.equal(drawn[0], drawn[1])
