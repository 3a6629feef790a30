"""``ddlib_models.hub``: a loaded model returns the logits of the model's own code at tokens, -inf
elsewhere.
"""

import pytest
import torch
from cases import examples
from hf_checkpoints import CONFIGS, write
from hub_folders import MASK, TOKENS, ids, states
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForMaskedLM

import ddlib as dd
from ddlib.typing import OwnTimes, SplitDenoiser
from ddlib_models import hub

KINDS = pytest.mark.parametrize("kind", CONFIGS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    return {kind: write(root / kind, config()) for kind, config in CONFIGS.items()}


@KINDS
@torch.no_grad()
def test_logits_are_those_of_the_model_itself(folders, kind):
    process, denoiser, tokenizer, special = hub.load(folders[kind])
    assert (process.vocab_size, process.num_states) == (TOKENS, TOKENS + 1) and len(
        tokenizer
    ) == TOKENS
    assert special.mask == MASK and special.undrawn == (MASK,) and special.ends == ()
    z = states(TOKENS)
    t = torch.rand(3)
    found = denoiser(z, t)
    own = (
        AutoModelForMaskedLM.from_pretrained(folders[kind])
        .eval()(ids(z, TOKENS))
        .logits[..., :TOKENS]
    )
    drawn = torch.arange(TOKENS) != MASK
    torch.testing.assert_close(found[..., drawn], own[..., drawn], rtol=1e-5, atol=1e-5)
    assert bool((found[..., MASK] == -torch.inf).all())
    assert isinstance(denoiser, SplitDenoiser) and isinstance(denoiser, OwnTimes)
    weight, bias = denoiser.output_weights()
    torch.testing.assert_close(denoiser.features(z, t) @ weight.T + bias, found)
    torch.testing.assert_close(denoiser(z, torch.rand(3, 6)), found)


@KINDS
@torch.no_grad()
def test_a_row_behind_padding_has_the_logits_of_the_row_alone(folders, kind):
    _, denoiser, _, _ = hub.load(folders[kind])
    z = states(TOKENS)
    left = torch.tensor([0, 2, 5])
    logits = denoiser.with_padding(left)(z, torch.rand(3))
    for row, start in enumerate(left.tolist()):
        alone = denoiser(z[row : row + 1, start:], torch.rand(1))
        torch.testing.assert_close(logits[row : row + 1, start:], alone, rtol=1e-5, atol=1e-5)
    other = torch.where(torch.arange(6) < left[:, None], 7, z)
    seen = torch.arange(6) >= left[:, None]
    assert torch.equal(denoiser.with_padding(left)(other, torch.rand(3))[seen], logits[seen])


def test_seeds_of_rows_behind_padding_are_refused(folders):
    """The row of seed 1 would not be that of seed 1 alone."""
    process, denoiser, _, _ = hub.load(folders["bert"])
    padded = denoiser.with_padding(torch.tensor([0, 2]))
    options = dict(steps=2, controls=[dd.controls.WholeBatch()])
    for one in (padded, dd.guidance.ClassifierFree(process, padded, padded, 2.0)):
        with pytest.raises(
            TypeError, match=r"generator is \[0, 1\], and the rows of .* begin at different columns"
        ):
            dd.sample(process, one, (2, 6), generator=[0, 1], **options)
        assert dd.sample(
            process, one, (2, 6), generator=torch.Generator().manual_seed(0), **options
        ).shape == (2, 6)


def test_a_bound_is_that_of_the_vocabulary_without_undrawn_tokens(folders):
    """Ids that are not words could as well not be there."""
    process, denoiser, _, _ = hub.load(folders["bert"])
    drawn = torch.tensor([i for i in range(TOKENS) if i != MASK])
    small = dd.presets.mdlm(TOKENS - 1)
    number = torch.zeros(TOKENS + 1, dtype=torch.int64)
    back = torch.cat([drawn, torch.tensor([TOKENS])])
    number[back] = torch.arange(TOKENS)

    def fewer(z, t):
        return denoiser(back[z], t)[..., drawn]

    x = drawn[torch.randint(TOKENS - 1, (8, 6), generator=torch.Generator().manual_seed(0))]
    with torch.no_grad():
        found = dd.bound(process, denoiser, x, torch.Generator().manual_seed(1)).total
        want = dd.bound(small, fewer, number[x], torch.Generator().manual_seed(1)).total
    torch.testing.assert_close(found, want)
    assert bool(found.isfinite().all())


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([1e-9, 1e-3, 0.4, 1 - 1e-3, 1 - 1e-9]), st.data())
def test_undrawn_tokens_have_no_effect(seed, time, data):
    """The bound's integrand, and the probability of a text in the order of confidence, at
    float64.
    """
    size = data.draw(st.integers(3, 8))
    undrawn = data.draw(st.sets(st.integers(0, size - 1), max_size=size - 2))
    drawn = torch.tensor([i for i in range(size) if i not in undrawn])
    back = torch.cat([drawn, torch.tensor([size])])
    number = torch.zeros(size + 1, dtype=torch.int64)
    number[back] = torch.arange(len(back))
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(size + 1, size, generator=generator, dtype=torch.float64)

    class Table(torch.nn.Module):
        def forward(self, z, t):
            return table[z] + table[z].sum(1, keepdim=True)

    special = hub.Special(size, None, None, None, None, None, (), tuple(undrawn))
    network = hub.Adapted(Table(), special).double()
    x = drawn[torch.randint(len(drawn), (4, 3), generator=generator)]
    t = torch.full((4,), time, dtype=torch.float64)
    large = dd.presets.mdlm(size)
    small = dd.presets.mdlm(len(drawn))
    z = large.sample(x, t, generator)
    fewer = lambda z, t: network(back[z], t)[..., drawn]  # noqa: E731
    found = dd.nelbo(large, network(z, t), x, z, t)
    torch.testing.assert_close(found, dd.nelbo(small, fewer(number[z], t), number[x], number[z], t))
    order = dd.samplers.Confidence("entropy")
    logp = [
        dd.likelihood(p, f, tokens, order)
        for p, f, tokens in ((large, network, x), (small, fewer, number[x]))
    ]
    torch.testing.assert_close(logp[0].log_likelihood, logp[1].log_likelihood)


def test_the_bound_of_a_text_with_undrawn_tokens_is_refused(folders):
    process, denoiser, _, _ = hub.load(folders["bert"])
    with pytest.raises(ValueError, match=r"z contains id 4, the token '\[MASK\]', which is not a"):
        dd.bound(process, denoiser, torch.full((4, 8), MASK))


SAMPLERS = [name for name in dd.registry.built_in("samplers") if name != "left_to_right"]
SERVING = {"corrected": 2}  # its other correctors need words that can be wrong
KNOBS = [
    {},
    dict(temperature=0.3, top_p=0.9),
    dict(temperature=0.0),
    dict(controls=[dd.controls.Truncation(top_k=3), dd.controls.RepetitionPenalty(1.5)]),
]


@pytest.mark.parametrize("name", SAMPLERS)
def test_no_sampler_draws_an_undrawn_token(folders, name):
    special = hub.load(folders["bert"]).special
    process = dd.presets.mdlm(TOKENS)
    table = torch.randn(TOKENS + 1, TOKENS, generator=torch.Generator().manual_seed(0))
    table[:, MASK] = 9.0  # what a network would like best

    class Table(torch.nn.Module):
        def forward(self, z, t):
            return table[z]

    network = hub.Adapted(Table(), special)
    serving = dd.registry.get("samplers", name).examples()[: SERVING.get(name)]
    for sampler, knobs in zip(serving * 4, KNOBS, strict=False):
        tokens = dd.sample(process, network, (4, 8), sampler, steps=8, **knobs)
        assert not bool(torch.isin(tokens, torch.tensor(special.undrawn)).any())
