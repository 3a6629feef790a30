"""Joint network calls: outputs of a sequence in any company and row are those alone, to the bit."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tiny import trained
from transformers import BertConfig, LlamaConfig

import ddlib as dd
from ddlib.contrib import Batcher, sample_together
from ddlib_models.hf.base import plain
from ddlib_models.hf.causal_lm import CausalLM
from ddlib_models.hf.masked_lm import MaskedLM

WORDS = 50
PROCESS = dd.presets.mdlm(WORDS)
SIZE = dict(
    vocab_size=64,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=96,
    max_position_embeddings=64,
)


def causal(**options):
    config = LlamaConfig(**SIZE, num_key_value_heads=1, tie_word_embeddings=True)
    return CausalLM(WORDS + 1, WORDS, plain(config) | {"model_type": "llama"}, 60, **options)


def masked():
    return MaskedLM(WORDS + 1, WORDS, plain(BertConfig(**SIZE)) | {"model_type": "bert"}, 60)


def dit(**options):
    return trained(num_states=WORDS + 1, vocab_size=WORDS, dim=48, **options)


NETWORKS = {
    "dit": dit,
    "dit without time": lambda: dit(time_conditioned=False),
    "llama": causal,
    "llama, shifted": lambda: causal(shift=1),
    "bert": masked,
}
PADDED = {"llama", "llama, shifted", "bert"}


def network(name, dtype):
    torch.manual_seed(3)
    model = NETWORKS[name]().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.to(dtype)


def logits_of(batcher, number, length):
    """What a drawing of its length reads in each call."""
    outputs = []
    with batcher.join() as denoiser:

        def note(z, t):
            outputs.append(denoiser(z, t))
            return outputs[-1].float()

        options = dict(steps=4, temperature=0.1 * number, generator=[number])
        tokens = dd.sample(PROCESS, note, (1, length), **options)
    return tokens, outputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_in_company_are_those_alone(name, dtype):
    model = network(name, dtype)
    lengths = {number: 3 + number * 5 % 17 for number in range(12)}
    rows = 8
    with Batcher(model, rows, (24,)) as batcher:
        alone = {number: logits_of(batcher, number, lengths[number]) for number in lengths}
    for trial in range(3):
        order = random.Random(trial).sample(range(12), 12 - 3 * trial)
        with ThreadPoolExecutor(len(order)) as pool, Batcher(model, rows, (24,)) as batcher:
            runs = {
                number: pool.submit(logits_of, batcher, number, lengths[number]) for number in order
            }
            for number, run in runs.items():
                tokens, outputs = run.result()
                assert torch.equal(tokens, alone[number][0])
                assert all(map(torch.equal, outputs, alone[number][1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_plans_of_a_split_network_have_the_tokens_that_each_has_alone(name, dtype):
    model = network(name, dtype)
    samplers = [dd.samplers.Ancestral(), dd.samplers.Confidence(threshold=0.3)]
    plans = [
        dd.plan(
            PROCESS,
            model,
            (1 + k % 2, 4 + 3 * k),
            samplers[k % 2],
            3 + k,
            generator=list(range(k, k + 1 + k % 2)),
            temperature=0.3 * k,
        )
        for k in range(5)
    ]
    alone = [sample_together([plan], 8, (24,))[0] for plan in plans]
    assert all(map(torch.equal, sample_together(plans, 8, (24,)), alone))
    assert all(map(torch.equal, sample_together(plans[::-1], 8, (24,)), alone[::-1]))


@pytest.mark.parametrize("name", sorted(PADDED))
def test_padding_is_not_attended_to(name):
    """In float64 a padded sequence has the outputs of its exact length, up to the last digits."""
    model = network(name, torch.float64)
    assert model.takes_padding
    for length in (1, 7, 16):
        found = []
        for lengths in ((), (16,), (40,)):
            with Batcher(model, 3, lengths) as batcher:
                found.append(logits_of(batcher, 5, length)[1])
        for exact, *padded in zip(*found, strict=True):
            for output in padded:
                assert output.shape == exact.shape
                torch.testing.assert_close(output, exact, rtol=1e-10, atol=1e-10)


CACHED = {
    "blocks": (dict(block_size=4), []),
    "blocks, shifted": (dict(block_size=4, shift=1), []),
    "dual": (dict(), [dd.contrib.Cache("dual")]),
    "dual, shifted": (dict(shift=1), [dd.contrib.Cache("dual:refresh=2")]),
    "prefix": (dict(), [dd.contrib.Cache("prefix")]),
}


def in_blocks(model, controls, number, **options):
    """A drawing by blocks of its own length, prompt, steps and temperature."""
    prompt = torch.randint(
        WORDS, (1 + 3 * number % 7,), generator=torch.Generator().manual_seed(number)
    )
    return dd.plan(
        PROCESS,
        model,
        (1 + number % 2, 8 + 4 * (number * 3 % 4)),
        dd.samplers.Confidence() if number % 3 else dd.samplers.Ancestral(),
        2 + number % 3,
        prompt,
        generator=list(range(number, number + 1 + number % 2)),
        temperature=0.2 * number,
        pace=dd.paces.Blocks(4),
        controls=controls,
        **options,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("kind", CACHED)
def test_caches_of_unlike_lengths_share_a_call(kind, dtype):
    """To the bit as alone at the same shapes; in float64 the tokens of a call without others."""
    options, controls = CACHED[kind]
    torch.manual_seed(3)
    model = causal(**options).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model = model.to(dtype)
    plans = [in_blocks(model, controls, number) for number in range(6)]
    shapes = 8, (8, 16, 24)
    alone = [sample_together([plan], *shapes)[0] for plan in plans]
    calls = []
    features = model.features
    model.features = lambda z, t, **others: calls.append(len(z)) or features(z, t, **others)
    together = sample_together(plans, *shapes)
    joint = len(calls)
    assert all(map(torch.equal, together, alone))
    assert all(map(torch.equal, sample_together(plans[::-1], *shapes), alone[::-1]))
    calls.clear()
    separate = [plan.run() for plan in plans]
    if kind != "prefix":  # whose calls differ in the positions behind the block
        assert joint < 0.75 * len(calls)
    if dtype == torch.float64:
        assert all(map(torch.equal, together, separate))
