"""The option of approximate caches: samples with it are those of ``dd.sample``."""

from dataclasses import replace

import pytest
import torch
from zoo.runs import publishes, quiet

import ddlib as dd
import recipes
from recipes.generate import Options, generate
from recipes.generation.request import TextOptions
from recipes.generation.samples import batched
from recipes.generation.sampling import Sampling, draw
from recipes.model_io import LoadOptions

# in a single layer keys and values depend on their own position alone, and every cache is exact
published = publishes("two layers")


@pytest.mark.parametrize("keep", ["dual", "prefix", "dual:refresh=2"])
@pytest.mark.parametrize("sampler", ["confidence", "confidence:threshold=0.1", "ancestral"])
def test_prompts_of_several_lengths_share_the_calls_of_a_cache(published, keep, sampler):
    """Rows of one length: their prompts end in different blocks, at different positions."""
    pipe = recipes.pipeline(published.run, device="cpu")
    prompts = ["The", "The state of our union", "We will [MASK:2] roads", None, "No."]
    ways = dict(pace="blocks:6", keep=keep, sampler=sampler, steps=4, num_return_sequences=2)
    alone = [one for prompt in prompts for one in pipe.generate(prompt, **ways)]
    several = [replace(one, prompt=0) for one in pipe.generate(prompts, **ways)]
    assert several == alone
    rows = pipe.samples(prompts, TextOptions.of(ways).request)
    groups = list(batched(pipe.model, rows, TextOptions.of(ways).sampling, 16))
    assert max(map(len, groups)) >= 8


def test_the_option_of_samples_is_that_of_dd_sample(published):
    saved = LoadOptions().open(str(published.run), "cpu", "float32")
    index = torch.arange(2)
    for keep in ("dual", "prefix:refresh=2", None):
        sampling = Sampling(sampler="confidence", steps=3, pace="blocks:size=6", keep=keep)
        words = draw(saved, sampling, 0, index, 24)
        options = {
            "pace": dd.paces.Blocks(6),
            "controls": [] if keep is None else [dd.contrib.Cache(keep)],
            "parameterization": saved.parameterization,
            "generator": dd.KeyedGenerator(0, 2**62, index),
        }
        order = dd.samplers.Confidence()
        assert torch.equal(
            words, dd.sample(saved.process, saved.denoiser, (2, 24), order, 3, **options)
        )
    with pytest.raises(ValueError, match="keep='dual': controls holds Cache"):
        draw(saved, Sampling(keep="dual"), 0, index, 24)
    with pytest.raises(ValueError, match="cache is 'dual:4'"):
        Sampling(keep="dual:4")


@pytest.mark.parametrize("keep", ["dual", "prefix:refresh=2"])
def test_prompts_of_unlike_lengths_and_options_have_a_cache(published, keep):
    """Rows of several lengths, on the command line, which shows whole blocks, and in Python."""
    pipe = recipes.pipeline(published.run, device="cpu")
    prompts = ["The", "The state of our union", "We will", "No."]
    ways = dict(pace="blocks:6", keep=keep, sampler="confidence", steps=3, max_new_tokens=7)
    alone = [one for prompt in prompts for one in pipe.generate(prompt, **ways)]
    assert len({len(one.tokens) for one in alone}) > 1
    assert [replace(one, prompt=0) for one in pipe.generate(prompts, **ways)] == alone
    sampling = Sampling(pace="blocks:6", keep=keep, sampler="confidence", steps=3)
    options = Options(run=str(published.run), prompt=prompts, new=7, samples=1, sampling=sampling)
    for text, one in zip(generate(options, quiet()), alone, strict=True):
        assert text.startswith(one.text)
    own = [{"steps": 2}, {"seed": 4}, {"temperature": 0.5}, {"keep": None}]
    several = pipe.generate(prompts, each=own, **ways)
    assert [replace(one, prompt=0) for one in several] == [
        pipe.generate(prompt, **{**ways, **one})[0]
        for prompt, one in zip(prompts, own, strict=True)
    ]
