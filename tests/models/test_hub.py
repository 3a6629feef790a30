"""``ddlib_models.hub``: what is loaded says what the model's own code says, at words and nowhere else."""

import pytest
import torch
from cases import slow_but
from hub_folders import MASK, TOKENS, ids, states
from theirs import CONFIGS, write
from transformers import AutoModelForMaskedLM

import ddlib as dd
from ddlib.typing import OwnTimes, SplitDenoiser
from ddlib_models import hub

KINDS = pytest.mark.parametrize("kind", slow_but(CONFIGS, "bert", "modernbert"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    return {kind: write(root / kind, config()) for kind, config in CONFIGS.items()}


@KINDS
@torch.no_grad()
def test_logits_are_those_of_the_model_itself(folders, kind):
    process, denoiser, tokenizer, special = hub.load(folders[kind])
    assert (process.vocab_size, process.num_states) == (TOKENS, TOKENS + 1) and len(tokenizer) == TOKENS
    assert special.mask == MASK and special.undrawn == (MASK,) and special.ends == ()
    z, t = states(TOKENS), torch.rand(3)
    said = denoiser(z, t)
    own = AutoModelForMaskedLM.from_pretrained(folders[kind]).eval()(ids(z, TOKENS)).logits[..., :TOKENS]
    drawn = torch.arange(TOKENS) != MASK
    torch.testing.assert_close(said[..., drawn], own[..., drawn], rtol=1e-5, atol=1e-5)
    assert bool((said[..., MASK] == -torch.inf).all())
    assert isinstance(denoiser, SplitDenoiser) and isinstance(denoiser, OwnTimes)
    weight, bias = denoiser.words()
    torch.testing.assert_close(denoiser.features(z, t) @ weight.T + bias, said)
    torch.testing.assert_close(denoiser(z, torch.rand(3, 6)), said)


@KINDS
@torch.no_grad()
def test_a_row_behind_padding_is_told_what_it_is_told_alone(folders, kind):
    _, denoiser, _, _ = hub.load(folders[kind])
    z, left = states(TOKENS), torch.tensor([0, 2, 5])
    said = denoiser.padded(left)(z, torch.rand(3))
    for row, start in enumerate(left.tolist()):
        alone = denoiser(z[row : row + 1, start:], torch.rand(1))
        torch.testing.assert_close(said[row : row + 1, start:], alone, rtol=1e-5, atol=1e-5)
    other = torch.where(torch.arange(6) < left[:, None], 7, z)
    seen = torch.arange(6) >= left[:, None]
    assert torch.equal(denoiser.padded(left)(other, torch.rand(3))[seen], said[seen])


def test_a_bound_is_that_of_a_vocabulary_without_what_is_no_word(folders):
    """Ids that are no words could as well not be there."""
    process, denoiser, _, _ = hub.load(folders["bert"])
    drawn = torch.tensor([i for i in range(TOKENS) if i != MASK])
    small, number = dd.presets.mdlm(TOKENS - 1), torch.zeros(TOKENS + 1, dtype=torch.int64)
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


def test_the_bound_of_a_text_with_what_is_no_word_is_refused(folders):
    process, denoiser, _, _ = hub.load(folders["bert"])
    with pytest.raises(ValueError, match=r"z holds id 4, the token '\[MASK\]', which is no word"):
        dd.bound(process, denoiser, torch.full((4, 8), MASK))


SAMPLERS = [name for name in dd.registry.own("samplers") if name != "left_to_right"]
SERVING = {"corrected": 2}  # its other correctors need words that can be wrong
KNOBS = [{}, dict(temperature=0.3, top_p=0.9), dict(temperature=0.0), dict(top_k=3, repetition_penalty=1.5)]


@pytest.mark.usefixtures("checked_in_full")
@pytest.mark.parametrize("name", slow_but(SAMPLERS, "ancestral", "confidence"))
def test_no_sampler_draws_what_is_no_word(folders, name):
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
        words = dd.sample(process, network, (4, 8), sampler, steps=8, **knobs)
        assert not bool(torch.isin(words, torch.tensor(special.undrawn)).any())
