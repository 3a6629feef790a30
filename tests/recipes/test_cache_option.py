"""The option of approximate caches: samples with it are those of ``dd.sample``."""

import pytest
import torch
from zoo.runs import publishes

import ddlib as dd
from recipes.generation.sampling import Sampling, draw
from recipes.model_io import LoadOptions

# in a single layer keys and values depend on their own position alone, and every cache is exact
published = publishes("two layers")


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
