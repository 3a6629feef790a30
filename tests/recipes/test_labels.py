"""Labels of sequences: from the data through the network to bounds and guided samples."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import refused_with
from zoo.runs import ALONE, quiet

import ddlib as dd
from ddlib.parameterization.capabilities import Capabilities
from recipes import audit as audits
from recipes.audit import audit
from recipes.config import Data, Optimizer, Output, Recipe
from recipes.console import make_console
from recipes.data import open_prepared, prepare_ids
from recipes.engine import train
from recipes.engine.run import Run
from recipes.evaluate import Options, evaluate
from recipes.evaluation.report import show
from recipes.evaluation.samples import metrics_of
from recipes.generation.sampling import Sampling, draw
from recipes.metrics.conditioned import with_label, with_tokens
from recipes.model_io import open_held_out, open_saved
from recipes.model_io.calling import with_padding

CLASSES = ("even", "odd")


def pictures(count: int, seed: int = 0) -> tuple[np.ndarray, list[str]]:
    """Rows of 2 x 3 in 4 symbols: 0 and 2 in class even, 1 and 3 in class odd."""
    random = np.random.default_rng(seed)
    kinds = random.integers(0, 2, count)
    return 2 * random.integers(0, 2, (count, 2, 3)) + kinds[:, None, None], [
        CLASSES[kind] for kind in kinds
    ]


def recipe(folder, **model) -> Recipe:
    """A recipe that learns the two classes in a few seconds."""
    return Recipe(
        data=Data(folder=folder / "data", length=6),
        process="mdlm",
        model={"kind": "dit", "dim": 16, "depth": 1, "heads": 2, "num_classes": "run", **model},
        loss=dict(times="optimal"),
        optimizer=Optimizer(lr=1e-2, warmup=5, weight_decay=0.0, muon=True, ema=0.9),
        output=Output(
            folder=folder / "run",
            validate_every=60,
            validate_sequences=32,
            sample_every=60,
            samples=2,
            sample_steps=4,
            save_every=60,
            tensorboard=False,
        ),
        batch=32,
        steps=60,
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels")
    ids, labels = pictures(400)
    prepare_ids(ids[:336], ids[336:], 4, folder / "data", labels=(labels[:336], labels[336:]))
    return folder


@pytest.fixture(scope="module")
def trained(prepared):
    assert train(recipe(prepared))
    return prepared


def test_the_bound_is_that_of_a_sequence_given_its_label(trained):
    result = evaluate(Options(run=str(trained / "run"), scorer="none", replicates=2), ALONE)
    given = result["bound"]["nats_per_token"]["value"]
    by_label = result["by_label"]
    assert by_label.keys() == set(CLASSES) and result["protocol"]["labels"] == "given"
    tokens = np.bincount(open_prepared(trained / "data").validation.labels)
    mean = sum(tokens * [by_label[name]["value"] for name in CLASSES]) / tokens.sum()
    assert mean == pytest.approx(given, rel=1e-6)
    # given the class a symbol is one of two; without it the class costs log 2 in all
    assert given < math.log(2) + 0.05
    saved = open_saved(trained / "run")
    x = torch.as_tensor(pictures(64, seed=1)[0].reshape(64, 6))
    with torch.no_grad():
        without = dd.bound(
            saved.process, saved.denoiser, x, torch.Generator().manual_seed(0)
        ).per_token.value
    assert without > given + 0.03


def test_a_class_has_the_bound_of_its_sequences_and_the_likelihood_is_given_the_label(tmp_path):
    """The sequences of one class are constant, those of the other uniform: only the second has
    entropy.
    """
    random = np.random.default_rng(0)
    kinds = random.integers(0, 2, 300)
    ids = kinds[:, None, None] * random.integers(0, 4, (300, 2, 3))
    prepare_ids(
        ids, 60, 4, tmp_path / "data", labels=[("constant", "uniform")[kind] for kind in kinds]
    )
    assert train(recipe(tmp_path))
    options = Options(
        run=str(tmp_path / "run"), scorer="none", replicates=4, likelihood="confidence"
    )
    result = evaluate(replace(options, batch=7), ALONE)
    constant, uniform = (result["by_label"][name]["value"] for name in ("constant", "uniform"))
    assert constant < 0.5 < 1 < uniform
    data = open_prepared(tmp_path / "data").validation
    saved = open_saved(tmp_path / "run")
    x = torch.as_tensor(np.stack(list(data)).astype(np.int64))
    exactly = []
    for label in (0, 1):
        rows = x[torch.as_tensor(data.labels == label)]
        likely = dd.likelihood(
            saved.process, with_label(saved.denoiser, label), rows, dd.samplers.Confidence()
        )
        exactly.append(-likely.log_likelihood)
    mean = float(torch.cat(exactly).sum()) / x.numel()
    found = result["likelihood"]["nats_per_token"]
    assert found["value"] == pytest.approx(mean, rel=1e-6)
    assert found["value"] < result["bound"]["nats_per_token"]["value"] + 2 * found["error"]


@pytest.fixture(scope="module")
def renumbered(prepared):
    """The same sequences for validation; training has one more class, which is first by name."""
    ids, labels = pictures(400)
    more = [*labels[:330], *["blank"] * 6]
    prepare_ids(ids[:336], ids[336:], 4, prepared / "more", labels=(more, labels[336:]))
    return prepared / "more"


def test_labels_of_other_data_go_by_their_names(trained, renumbered):
    whole = open_prepared(renumbered)
    assert whole.classes == ("blank", *CLASSES)
    options = Options(
        run=str(trained / "run"),
        scorer="none",
        replicates=2,
        sequences=8,
        likelihood="left_to_right",
    )
    own, other = (
        evaluate(replace(options, data=data), ALONE) for data in (trained / "data", renumbered)
    )
    for name in ("bound", "by_label", "likelihood"):
        assert other[name] == own[name]
    data = open_held_out(open_saved(trained / "run"), renumbered)
    assert data.classes == (*CLASSES, "blank")
    for split, before in ((data.train, whole.train), (data.validation, whole.validation)):
        assert [data.classes[n] for n in split.labels] == [whole.classes[n] for n in before.labels]


def test_the_audit_reads_labels_of_other_data_by_their_names(trained, renumbered, tmp_path):
    values = dict(
        run=str(trained / "run"), sequences=4, draws=2, out=tmp_path / "audit.json", only=("NELBO",)
    )
    own, other = (
        audit(audits.Options(data=data, **values), quiet())["estimators"]
        for data in (trained / "data", renumbered)
    )
    assert [one["nats_per_token"] for one in other] == [one["nats_per_token"] for one in own]


def test_a_held_out_sequence_of_a_class_that_the_model_lacks_is_refused(trained, tmp_path):
    ids, labels = pictures(80)
    labels[7] = labels[70] = "blank"
    split = (labels[:70], labels[70:])
    prepare_ids(ids[:70], ids[70:], 4, tmp_path / "blank", labels=split)
    message = "sequence 0 is of class 'blank', must be of one of the classes of .*: even, odd$"
    values = dict(run=str(trained / "run"), data=tmp_path / "blank", out=tmp_path / "out.json")
    with pytest.raises(ValueError, match=message):
        evaluate(Options(scorer="none", **values), ALONE)
    with pytest.raises(ValueError, match=message):
        audit(audits.Options(**values), quiet())


class ShareOfOdd:
    """Metrics of samples: the share of symbols of class odd."""

    def check(self, data):
        if data.shape != (2, 3):
            raise ValueError(f"metrics: the data have shape {data.shape}, must be 2 x 3")

    def measure(self, samples, data, labels=None):
        return {
            "odd": float(np.mean(np.stack(samples) % 2)),
            "asked": float("nan") if labels is None else labels[0],
        }


def test_samples_are_measured_by_metrics_from_outside(trained, capsys):
    own = f"{__name__}:ShareOfOdd"
    sampling = Sampling(steps=6, label="odd")
    options = Options(
        run=str(trained / "run"), replicates=2, metrics=own, samples=50, sampling=sampling
    )
    result = evaluate(options, ALONE)
    assert result["samples"]["metrics"]["odd"] > 0.95 and result["samples"]["metrics"]["asked"] == 1
    assert result["samples"]["samples"] == 50 and result["samples"]["protocol"]["label"] == "odd"
    show(result, make_console())
    assert "samples odd" in capsys.readouterr().out
    # no metrics have the name of this data's source
    assert evaluate(Options(run=str(trained / "run"), replicates=1), ALONE)["samples"] is None


def test_metrics_refuse_data_before_anything_is_drawn(prepared, tmp_path):
    data = open_prepared(prepared / "data")
    refused_with(data=data)(r"""
        metrics_of("pictures", data) | ValueError | metrics: the data must be pictures
        metrics_of("music", data) | ValueError | symbol '0': must be hold, rest or a pitch
        metrics_of("pictuers", data) | ValueError
            | nothing in metrics is called 'pictuers', did you mean 'pictures'
    """)
    assert metrics_of(None, data) is None and metrics_of("none", data) is None


def test_pictures_are_measured_in_the_features_of_a_classifier(tmp_path):
    down, right = np.mgrid[:12, :12]
    random = np.random.default_rng(0)
    labels = np.arange(60) % 2
    ramps = np.where(labels[:, None, None], down, right) + random.integers(0, 4, (60, 12, 12))
    prepared = prepare_ids(ramps, 20, 16, tmp_path, values=range(0, 256, 17), labels=labels)
    metrics = metrics_of("pictures", prepared)
    own = list(ramps.reshape(60, -1)[:20])
    found = metrics.measure(own, prepared)
    noise = metrics.measure(list(random.integers(0, 16, (20, 144))), prepared)
    assert (
        found["classifier_frechet"] < noise["classifier_frechet"] and "class_accuracy" not in found
    )
    assert metrics.measure(own, prepared, labels[:20])["class_accuracy"] > 0.5
    swapped = prepared.in_classes(("1", "0", "2"))
    assert metrics.measure(own, swapped, 1 - labels[:20])["class_accuracy"] > 0.5
    with pytest.raises(ValueError, match=r"^label='2': .* has no training picture of this class"):
        metrics.measure(own, swapped, np.full(20, 2))


def test_a_run_starts_at_no_weights_of_other_classes(trained):
    """With as many classes under other numbers the weights would fit."""
    own = recipe(trained)
    again = replace(
        own,
        start=str(trained / "run"),
        output=replace(own.output, folder=trained / "next"),
    )
    data = open_prepared(trained / "data")
    Run.prepare(again, ALONE, data)
    swapped = data.in_classes(("odd", "even"))
    with pytest.raises(ValueError, match=r"its classes are even, odd, those of .* are odd, even"):
        Run.prepare(again, ALONE, swapped)
    unlabelled = replace(again, model=again.model | {"num_classes": 0})
    with pytest.raises(ValueError, match="do not fit"):
        Run.prepare(unlabelled, ALONE, swapped)


@pytest.mark.parametrize("strength", [1.0, 2.0])
def test_samples_have_the_label(trained, strength):
    saved = open_saved(trained / "run")
    index = torch.arange(200)
    sampling = Sampling(steps=6, label="odd", guidance=strength)
    odd = draw(saved, sampling, 0, index, 6) % 2
    assert odd.float().mean() > (0.97 if strength == 1 else 0.99)
    plain = draw(saved, Sampling(steps=6), 0, index, 6) % 2
    assert 0.2 < plain.float().mean() < 0.8


def test_the_network_sees_the_labels_of_its_batch(prepared):
    run = Run.prepare(recipe(prepared, label_dropout=0.0), ALONE, open_prepared(prepared / "data"))
    batch = next(run.batches())[0]
    assert torch.equal(batch.labels, batch.x[:, 0] % 2)  # "even" is class 0, "odd" is class 1
    seen = []
    run.network.model.labels.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    run.step([batch], stop=False)
    assert torch.equal(seen[0], batch.labels)


def test_packed_sequences_keep_their_labels(prepared):
    own = recipe(prepared)
    run = Run.prepare(
        replace(own, data=replace(own.data, length=18, packed=True)), ALONE, _ragged(prepared)
    )
    batch = next(run.batches())[0]
    assert len(batch.labels) == len(batch.cu_seqlens) - 1
    firsts = batch.x.flatten()[batch.cu_seqlens[:-1]]
    real = batch.labels >= 0
    assert torch.equal(firsts[real] % 2, batch.labels[real])
    assert run.step([batch], stop=False).loss > 0


def test_the_rest_of_a_packed_row_has_no_label_and_counts_in_no_loss(prepared):
    own = recipe(prepared)
    run = Run.prepare(
        replace(own, data=replace(own.data, length=18, packed=True)), ALONE, _ragged(prepared, True)
    )
    batch = next(run.batches())[0]
    assert bool((batch.labels == -1).any())
    [noisy] = run.state.objective.ahead([batch], 0)
    assert torch.equal(noisy.mask, batch.mask.view(-1, 1)) and not noisy.mask.all()


def _ragged(folder, ends=False):
    random = np.random.default_rng(0)
    rows = [
        2 * random.integers(0, 2, random.integers(2, 9)) + kind
        for kind in random.integers(0, 2, 80)
    ]
    labels = [int(row[0] % 2) for row in rows]
    return prepare_ids(rows, 8, 4, folder / f"ragged{ends}", labels=labels, ends=ends)


def test_a_wrapped_denoiser_takes_labels_as_the_network_does(trained):
    saved = open_saved(trained / "run")
    z = torch.full((3, 6), 4)
    t = torch.full((3,), 0.5)
    label = torch.tensor([0, 1, 1])
    half = open_saved(trained / "run", precision="bfloat16")
    assert torch.equal(with_label(saved.model, label)(z, t), saved.model(z, t, label=label))
    assert torch.allclose(
        with_label(half.denoiser, label)(z, t).float(), saved.model(z, t, label=label), atol=0.1
    )


def test_a_network_from_a_loop_has_a_label_per_sequence_as_in_training():
    seen = []
    with_label(lambda z, t, label: seen.append(label), 2)(
        torch.zeros(3, 6, dtype=torch.int64), torch.rand(3)
    )
    assert torch.equal(seen[0], torch.tensor([2, 2, 2]))


def test_a_class_goes_by_its_name(trained):
    saved = open_saved(trained / "run")
    assert saved.class_of("odd") == 1
    with pytest.raises(
        ValueError, match=r"label='red': must be one of the classes of .*: even, odd"
    ):
        saved.class_of("red")
    assert json.loads((trained / "run" / "weights" / "symbols.json").read_text())[
        "classes"
    ] == list(CLASSES)


def test_refusals(prepared):
    with pytest.raises(ValueError, match=r"guidance=2.0: must be 1 without"):
        Sampling(guidance=2.0)
    with pytest.raises(ValueError, match=r"guidance=-1.0: must be at least 0"):
        Sampling(label="odd", guidance=-1.0)
    ids, _ = pictures(40)
    prepare_ids(ids, 8, 4, prepared / "plain")
    own = recipe(prepared)
    with pytest.raises(ValueError, match=r"num_classes: the data has no labels"):
        Run.prepare(replace(own, data=replace(own.data, folder=prepared / "plain")), ALONE)


def test_a_function_around_a_network_has_its_capabilities():
    class Network:
        own_times = True
        block_size = 4
        shifts_rows = True
        parameterization = "posterior"

        def __call__(self, z, t, label=None):
            return torch.zeros(*z.shape, 3)

    x = torch.zeros(1, 2, dtype=torch.int64)
    capabilities = Capabilities.of(Network())
    for around in (
        with_label(Network(), 1),
        with_tokens(Network(), x, x == 0),
        with_padding(Network(), torch.tensor([2])),
    ):
        read = Capabilities.of(around)
        for name in ("own_times", "block_size", "shifts_rows", "parameterization"):
            assert getattr(read, name) == getattr(capabilities, name)
