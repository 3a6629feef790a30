"""Bounds of networks that were trained on packed rows: each text in a row of its length, as in
training.
"""

from dataclasses import replace

import pytest
import torch
from training_runs import curve, trained
from zoo.runs import ALONE, exact, publishes, recipe_in

import ddlib as dd
import recipes
from recipes.config import IN_STRATA, Hardware, time_density
from recipes.data import Batch
from recipes.engine.run import Run
from recipes.evaluate import Options, evaluate
from recipes.generation.sampling import Sampling
from recipes.metrics import measure
from recipes.metrics.bound import by_length
from recipes.model_io import open_saved

packed = publishes("packed")


def options(packed, **values):
    return Options(run=str(packed.run), scorer="none", replicates=1, batch=4, **values)


def run_of(folder, name, **changes):
    run = exact(recipe_in(folder, name, steps=2, **changes))
    return replace(run, data=replace(run.data, packed=True, length=48))


def test_validation_gives_the_network_no_padding(folder):
    run = Run.prepare(run_of(folder, "validated"), ALONE, writes=False)
    seen = []
    run.network.model.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    terms = run.validate()
    lengths = {z.shape[1] for z in seen}
    assert lengths == set(terms.tokens.tolist()) and len(lengths) > 1


def test_an_evaluation_measures_each_text_at_its_length(packed):
    result = evaluate(options(packed), ALONE)
    saved = open_saved(packed.run)
    batch = packed.held_out(len(packed.data.validation))
    density = time_density("optimal", saved.process, saved.length, IN_STRATA)
    ways = dict(density=density, levels="balanced", ragged=True)
    terms = measure(saved.process, saved.denoiser, [batch], 0, 0, "posterior", **ways)
    found = result["bound"]["nats_per_token"]
    assert found["value"] == pytest.approx(terms.per_token.value, rel=1e-6)
    assert result["protocol"]["padding"] == "none"


def test_another_pace_for_packed_rows_is_refused_before_anything_is_measured(packed):
    with pytest.raises(ValueError, match=r"pace=Blocks\(size=4\): not with the packed rows of"):
        evaluate(options(packed, sampling=Sampling(pace="blocks:size=4")), ALONE)


def test_the_score_of_a_text_gives_the_network_no_padding(packed):
    pipe = recipes.pipeline(packed.run, device="cpu")
    seen = []
    pipe.model.model.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    (score,) = pipe.score("No.", draws=8)
    assert {z.shape[1] for z in seen} == {score.tokens}


def test_shards_of_other_lengths_measure_the_same(folder):
    hardware = Hardware(threads=1, shard=True)
    runs = {size: run_of(folder, f"run-{size}", hardware=hardware) for size in (1, 2)}
    found = [curve(trained(run, size)) for size, run in runs.items()]
    bounds = [[one["nats_per_token"] for one in each if one["kind"] == "bound"] for each in found]
    torch.testing.assert_close(*map(torch.tensor, bounds), atol=1e-4, rtol=0)


def test_tokens_that_fill_the_last_block_are_given():
    x = torch.tensor([[1, 2, 3, 4, 5, 9, 9]])
    mask = torch.arange(7)[None] < 5
    batch = Batch(x, mask, torch.ones_like(mask), torch.tensor([0]))
    (filled,) = by_length(batch, block=4, given=False)
    assert filled.x.tolist() == [[1, 2, 3, 4, 5, 5, 5, 5]]
    counted = [True] * 5 + [False] * 3
    assert filled.mask.tolist() == filled.free.tolist() == [counted]
    process = dd.presets.mdlm(10)
    seen = []

    def denoiser(z, t):
        seen.append(z)
        return torch.zeros(*z.shape, 10)

    denoiser.own_times = True
    measure(process, denoiser, [batch], 0, 0, pace=dd.paces.Blocks(4), ragged=True)
    assert bool((seen[0][:, 5:] == 5).all())
