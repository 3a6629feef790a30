"""DiffusionGemma: logits of the original forward, block by block, and self-conditioning on the last
logits.
"""

import pytest
import torch
from canvases import gemma
from hub_folders import save
from transformers import DiffusionGemmaForBlockDiffusion

import ddlib as dd
from ddlib.typing import BlockDenoiser, SplitDenoiser
from ddlib_models import hub

SIZE = 4
V = 24
BOS = 2


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    network = DiffusionGemmaForBlockDiffusion(gemma(V))
    folder = save(tmp_path_factory.mktemp("gemma"), network, None, V, bos_token=f"w{BOS}")
    return folder, DiffusionGemmaForBlockDiffusion.from_pretrained(folder).eval()


def draw(*shape) -> torch.Tensor:
    return torch.randint(V, shape, generator=torch.Generator().manual_seed(sum(shape)))


def front(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.full_like(x[:, :1], BOS), x], 1)


@torch.no_grad()
def test_logits_are_those_of_the_model_itself(theirs):
    folder, own = theirs
    process, denoiser, _, special = hub.load(folder)
    assert (
        isinstance(process, dd.processes.Uniform)
        and process.num_states == V
        and special.undrawn == ()
    )
    assert isinstance(denoiser, BlockDenoiser) and not isinstance(denoiser, SplitDenoiser)
    assert (denoiser.block_size, denoiser.parameterization) == (SIZE, "posterior")
    x = draw(3, 10)
    z = draw(3, 10)
    for tokens, kwargs in ((z, {}), (x, dict(clean=x))):
        found = denoiser(z, torch.rand(3), **kwargs)
        for start in (0, 4, 8):
            prefix = front(tokens)[:, : 1 + start]
            want = own(input_ids=prefix, decoder_input_ids=z[:, start : start + SIZE]).logits
            torch.testing.assert_close(found[:, start : start + SIZE], want, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_cache_gives_the_logits_of_the_whole_sequence(theirs):
    denoiser = hub.load(theirs[0]).denoiser
    x = draw(3, 8)
    z = draw(3, 6)
    t = torch.rand(3)
    whole = denoiser(torch.cat([x, z], 1), t)[:, 8:]
    torch.testing.assert_close(denoiser.extend(z, t, denoiser.prefill(x)), whole)
    early = denoiser.prefill(x[:, :4])
    torch.testing.assert_close(denoiser.extend(z, t, denoiser.prefill(x[:, 4:], early)), whole)
    assert torch.equal(early.tokens, x[:, :4])  # and it is as it was
    torch.testing.assert_close(denoiser.extend(z, t, denoiser.prefill(x[:, 4:], early)), whole)
    some = denoiser.prefill(x).rows(torch.tensor([2, 0]))
    torch.testing.assert_close(denoiser.extend(z[[2, 0]], t[:2], some), whole[[2, 0]])


@torch.no_grad()
def test_its_input_holds_its_last_logits_of_the_same_rows(theirs):
    folder, own = theirs
    denoiser = hub.load(folder).denoiser
    x = draw(3, 4)
    z = draw(3, 4)
    t = torch.rand(3)

    def want(z, last, known):
        return own(
            input_ids=front(x),
            decoder_input_ids=z,
            self_conditioning_logits=last,
            self_conditioning_mask=known,
        ).logits

    cache = denoiser.prefill(x)
    rows = torch.tensor([True, False, True])
    first = denoiser.extend(z[rows], t[rows], cache.rows(rows))
    torch.testing.assert_close(first, denoiser(torch.cat([x, z], 1), t)[rows, 4:])
    last = torch.zeros(3, 4, V)
    last[rows] = first
    other = draw(3, 4).flip(0)
    second = denoiser.extend(other, t, cache)
    torch.testing.assert_close(second, want(other, last, rows))
    assert float((second - denoiser(torch.cat([x, other], 1), t)[:, 4:])[rows].abs().max()) > 1e-3
    third = denoiser.extend(z, t, cache)
    torch.testing.assert_close(third, want(z, second, torch.ones(3, dtype=torch.bool)))
    torch.testing.assert_close(
        denoiser.extend(z[rows], t[rows], denoiser.prefill(x).rows(rows)), first
    )  # a new block


@torch.no_grad()
def test_texts_go_on_from_a_prompt(theirs):
    folder, own = theirs
    process, denoiser, _, _ = hub.load(folder)
    prompt = front(draw(3, 6))
    z = draw(3, 4)
    t = torch.rand(3)
    going = denoiser.after(prompt)
    torch.testing.assert_close(
        going(z, t), own(input_ids=prompt, decoder_input_ids=z).logits, rtol=1e-5, atol=1e-5
    )
    plain = denoiser(z, t)
    assert float((plain - going(z, t)).abs().max()) > 1e-3
    options = dict(
        steps=3, pace=dd.paces.Blocks(SIZE), parameterization="posterior", generator=[1, 2, 3]
    )
    tokens = dd.sample(process, going, (3, 8), **options)
    assert tokens.shape == (3, 8)
    alone = dd.sample(process, denoiser.after(prompt[:1]), (1, 8), **options | dict(generator=[1]))
    assert torch.equal(alone, tokens[:1])
    found = dd.bound(
        process,
        going,
        tokens,
        pace=dd.paces.Blocks(SIZE),
        at_once=True,
        parameterization="posterior",
    )
    assert bool(found.total.isfinite().all())


@torch.no_grad()
def test_prompts_of_several_lengths_stand_in_one_batch(theirs):
    process, denoiser, _, _ = hub.load(theirs[0])
    prompt = front(draw(3, 6))
    z = draw(3, 4)
    t = torch.rand(3)
    left = torch.tensor([0, 2, 5])
    options = dict(steps=3, pace=dd.paces.Blocks(SIZE), parameterization="posterior")
    padded = denoiser.after(prompt, left)
    logits = padded(z, t)
    tokens = dd.sample(process, padded, (3, 8), generator=[0, 1, 2], **options)
    for row, start in enumerate(left.tolist()):
        alone = denoiser.after(prompt[row : row + 1, start:])
        torch.testing.assert_close(
            logits[row : row + 1], alone(z[row : row + 1], t[:1]), rtol=1e-4, atol=1e-5
        )
        assert torch.equal(
            tokens[row : row + 1], dd.sample(process, alone, (1, 8), generator=[row], **options)
        )
    with pytest.raises(ValueError, match=r"left is .*: must be at least 0 and less than 7"):
        denoiser.after(prompt, left + 2)
