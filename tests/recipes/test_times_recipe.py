"""Times from a density in recipes: training, validation and evaluation draw from it, and no bound
is moved by it.
"""

import math
from dataclasses import replace

import pytest
import torch
from training_runs import curve, loss, loss_of, losses, objective
from zoo.runs import ALONE, batch_of, publish_tiny, recipe_in

import ddlib as dd
from recipes import evaluate as evaluation
from recipes.config import Output, read_recipe, recipe_yaml, time_density
from recipes.engine import train
from recipes.engine.objectives.noising import add_noise
from recipes.evaluate import Options, evaluate
from recipes.metrics import Terms


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("bel", r"times.kind: nothing in times is called 'bel', did you mean 'bell'"),
        ("bell:width=2", r"times.width: no such key; bell has mean, spread"),
        ("beta:a=0,b=1", r"times: a is 0.0, must be in \[0.1, 40\]"),
        ("beta", r"times.a: is missing"),
    ],
)
def test_a_density_that_does_not_exist_is_refused_before_anything_runs(kind, message, tmp_path):
    for make in (
        lambda: objective(times=kind),
        lambda: Output(folder=tmp_path, validate_times=kind),
        lambda: Options(run="runs/none", times=kind),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_kinds_of_time_densities():
    process = dd.presets.mdlm(8)
    assert time_density("uniform", process, 16) is None
    assert repr(time_density("bell:mean=-1,spread=2", process, 16)) == "Bell(mean=-1.0, spread=2.0)"
    own = time_density("optimal", process, 16)
    expected = process.time_density(16)
    assert torch.equal(own.masses, expected.masses)

    class Large(dd.processes.RateMatrix):
        """Too many states to enumerate, a closed form, and no small copy."""

        def weighted_divergence(self, logits, x, z, t):
            return self.loss_weight(x, z, t), torch.ones_like(z)

    rates = torch.full((200, 200), 1 / 199, dtype=torch.float64).fill_diagonal_(-1.0)
    with pytest.warns(
        UserWarning, match="times are uniform, and errors may be too small: Large has no reduction"
    ):
        assert time_density("optimal", Large(rates, dd.schedules.Linear()), 16) is None
    assert "times bell, not divided out" in objective(times="bell", weigh_times=False).about()
    assert objective(times="bell").about() == objective().about()


def batch(rows=8, length=5):
    return batch_of(torch.arange(rows * length).view(rows, length) % 8)


class Still(torch.nn.Module):
    """A network with constant probabilities of tokens."""

    def __init__(self):
        super().__init__()
        self.log_probs = torch.nn.Parameter(torch.linspace(-1, 1, 8))

    def forward(self, z, t):
        return self.log_probs.expand(*z.shape, 8)


@pytest.mark.parametrize(
    "process", [dd.presets.mdlm(8), dd.presets.hdlm(torch.arange(8) // 3)], ids=repr
)
def test_a_training_loss_is_divided_by_the_density_or_names_that_it_is_not(process):
    density = process.time_density(5)
    noisy = add_noise(process, batch(), 3, 7, objective(times="optimal"), density)
    undivided = add_noise(process, batch(), 3, 7, objective(weigh_times=False), density)
    noise = dd.KeyedGenerator(3, 7, torch.arange(8))
    assert torch.equal(noisy.t, dd.sample_times(8, generator=noise, density=density))
    scale = torch.tensor(1 / 40)
    assert all(
        torch.equal(getattr(noisy, name), getattr(undivided, name)) for name in ("x", "z", "t")
    )
    plain = loss_of(objective(), Still(), process, undivided, scale)[1]
    total, divided = loss_of(objective(), Still(), process, noisy, scale)
    torch.testing.assert_close(divided, plain * density.weight(noisy.t).float()[:, None])
    torch.testing.assert_close(total, divided.mean())


def test_training_draws_from_it_and_keeps_it_in_its_file(tmp_path):
    given = recipe_in(tmp_path, "uniform", steps=2, process={"kind": "mdlm"})
    runs = {}
    for name, values in (
        ("uniform", loss(weighting="clip:2", times="uniform")),
        ("optimal", loss(weighting="clip:2", times="optimal")),
        ("bell", loss(weighting="clip:2", times="bell:mean=-1,spread=2", weigh_times=False)),
    ):
        output = replace(given.output, folder=tmp_path / name, validate_times=values["times"])
        run = replace(given, loss=values, output=output)
        train(run)
        runs[name] = losses(tmp_path / name)
        saved = read_recipe(tmp_path / name / "recipe.yaml")
        assert saved.loss == values and recipe_yaml(saved) == recipe_yaml(
            replace(run, data=saved.data)
        )
    assert len({tuple(found) for found in runs.values()}) == 3
    assert all(math.isfinite(value) for found in runs.values() for value in found)
    *_, bound = [record for record in curve(tmp_path / "optimal") if record["kind"] == "bound"]
    assert bound["error_method"] == "stratified"


def terms(draws, texts=6, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def one():
        nats = torch.rand(texts, 3, generator=generator, dtype=torch.float64)
        times = (torch.randperm(texts, generator=generator) + 0.5)[:, None].double() / texts
        return Terms(torch.arange(texts), nats, torch.full((texts,), 4), times=times)

    return [one() for _ in range(draws)]


def test_terms_keep_every_draw_and_its_time():
    replicates = terms(3)
    whole = Terms.average(replicates)
    assert whole.drawn.shape == (6, 3, 3) and whole.times.shape == (6, 3)
    nats = torch.stack([one.nats.sum(1) for one in replicates], 1)
    expected = dd.Measure.ratio(nats, whole.tokens.double(), "nats/token", whole.times)
    assert whole.per_token == expected and expected.method == "stratified"
    assert whole.per_token.value == pytest.approx(float(whole.nats.sum() / 24))
    shuffled = Terms.join([whole.at(torch.tensor([4, 0, 5])), whole.at(torch.tensor([3, 1, 2]))])
    assert torch.equal(shuffled.drawn, whole.drawn) and torch.equal(shuffled.times, whole.times)
    assert shuffled.first(4).per_token == whole.first(4).per_token
    without = Terms.average([replace(one, times=None) for one in replicates])
    assert without.per_token.method == "independent"
    assert without.per_token.standard_error == pytest.approx(
        dd.Measure.ratio(without.nats.sum(1), without.tokens.double(), "").standard_error
    )


def test_an_evaluation_names_the_density_of_its_times(tmp_path, capsys):
    published = publish_tiny("clusters", tmp_path)
    options = Options(run=str(published.run), scorer="none", replicates=3, batch=4)
    uniform = evaluate(replace(options, times="uniform"), ALONE)
    own = evaluate(options, ALONE)
    assert (uniform["protocol"]["density_of_times"], own["protocol"]["density_of_times"]) == (
        "uniform",
        "optimal",
    )
    assert own["protocol"]["method"] == "of stratified times, from differences between neighbours"
    ours, theirs = (result["bound"]["nats_per_token"] for result in (own, uniform))
    assert ours["value"] != theirs["value"]
    assert abs(ours["value"] - theirs["value"]) < 5 * math.hypot(ours["error"], theirs["error"])
    assert uniform["validation"] is None and own["validation"] is not None
    evaluation.show(own, evaluation.make_console())
    assert "times optimal, errors of stratified times" in " ".join(capsys.readouterr().out.split())
