import json
import math
import multiprocessing
import os
import re
import shutil
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import pytest
import torch
from refusals import refused_with
from torch.distributed import TCPStore
from torch.multiprocessing import start_processes
from zoo.runs import ALONE, publish_tiny, publishes

import ddlib as dd
from ddlib.testing import oracle
from recipes import evaluate as evaluation
from recipes.config import IN_STRATA, time_density
from recipes.console import make_console
from recipes.data import Batch, examples, local, open_prepared, prepare
from recipes.engine import train
from recipes.engine.parallel import join
from recipes.evaluate import (
    Estimate,
    Options,
    bounds,
    density_of,
    estimates,
    evaluate,
    length_of,
    main,
)
from recipes.evaluation.report import result_path
from recipes.evaluation.samples import draw_samples
from recipes.generation.sampling import Sampling
from recipes.logging import METRICS, read_metrics
from recipes.metrics import Terms, measure
from recipes.model_io import open_saved

published = publishes("clusters, xi")


@pytest.fixture(scope="module")
def options(published):
    return Options(
        run=str(published.run),
        scorer="none",
        replicates=2,
        samples=5,
        sampling=Sampling(steps=3),
        batch=4,
    )


def measured(options, world=ALONE):
    saved = open_saved(options.run)
    data = open_prepared(saved.recipe.data.folder)
    limits = options.samples, length_of(saved, options), options.batch, options.seed
    drawn = draw_samples(saved, options.sampling, *limits, world)
    return bounds(saved, data, options, world, density_of(saved, options)), drawn


def streamed(options):
    """The model, and its text for validation in batches."""
    saved = open_saved(options.run)
    data = open_prepared(saved.recipe.data.folder)
    return saved, partial(
        examples, data.validation, length=24, pad_id=data.pad_id, seed=0, threads=0
    )


def close(one, other):
    """The same sequences and, but for the rounding of float32 products, the same nats."""
    assert torch.equal(one.index, other.index) and torch.equal(one.tokens, other.tokens)
    torch.testing.assert_close(one.nats, other.nats, atol=1e-5, rtol=1e-5)
    assert one.per_token.value == pytest.approx(other.per_token.value, rel=1e-6)


def test_every_document_counts_once_without_padding(options, published):
    replicates, _ = measured(options)
    assert [len(terms.index) for terms in replicates] == [11, 11]
    assert int(replicates[0].tokens.sum()) == sum(
        min(int(n), 24) for n in published.data.validation.lengths
    )
    one, other = (terms.nats[:, 0] for terms in replicates)
    assert bool(
        ((one != other) | (one == 0)).all()
    )  # of a text of one token there may be no noise in either


def test_the_same_bound_and_samples_whatever_the_batch(options):
    expected, words = measured(options)
    for batch in (1, 7):
        replicates, drawn = measured(replace(options, batch=batch))
        for one, other in zip(expected, replicates, strict=True):
            close(one, other)
        assert drawn == words


def test_times_and_noise_are_exactly_the_same_whatever_the_batch(options):
    """A network without products leaves nothing to rounding."""
    saved, stream = streamed(options)

    def denoiser(z, t):
        return torch.sin(
            z[..., None] + 10 * t[:, None, None] + torch.arange(saved.process.vocab_size)
        )

    def nats(batch, rank=0, world=1):
        batches = islice(
            stream(batch_size=batch, rank=rank, world=world), -(-12 // (batch * world))
        )
        return measure(saved.process, denoiser, batches, 5, 1).first(12)

    whole = nats(12)
    for batch in (1, 4, 7):
        assert torch.equal(nats(batch).nats, whole.nats)
    assert torch.equal(Terms.join([nats(4, rank, 3) for rank in range(3)]).nats, whole.nats)


def work(rank, port, options, folder):
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(1)
    with join() as world:
        torch.save(measured(options, world), folder / f"{rank}.pt")


def test_the_same_bound_and_samples_on_two_processes(options, tmp_path):
    port = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False).port
    multiprocessing.set_forkserver_preload(
        ["recipes.evaluate"]
    )  # imported once for both, and without our threads
    start_processes(work, (port, options, tmp_path), nprocs=2, start_method="forkserver")
    expected, words = measured(options)
    for rank in range(2):
        replicates, drawn = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
        for one, other in zip(expected, replicates, strict=True):
            close(one, other)
        assert drawn == words


def test_the_first_sequences_are_a_part_of_all(options):
    everything, _ = measured(options)
    few, _ = measured(replace(options, sequences=3))
    for one, other in zip(everything, few, strict=True):
        close(one.first(3), other)


def test_the_bound_is_that_of_ddlib(options):
    """One sequence at a time, straight from ``dd.bound``."""
    replicates, _ = measured(replace(options, replicates=1))
    saved, stream = streamed(options)
    own = time_density("optimal", saved.process, 24, IN_STRATA)
    batches = stream(batch_size=1)
    for number in range(3):
        batch = next(batches)
        noise = dd.KeyedGenerator(0, 0, torch.tensor([number]))
        with torch.no_grad():
            bound = dd.bound(
                saved.process,
                saved.denoiser,
                batch.x,
                noise,
                parameterization="posterior",
                density=own,
                levels="balanced",
            )
        nats = [
            float(part[batch.mask].double().sum())
            for part in (bound.diffusion, bound.prior, bound.reconstruction)
        ]
        assert replicates[0].nats[number].tolist() == pytest.approx(nats, rel=1e-5)


def test_the_bound_in_steps_and_of_independent_levels_is_that_of_ddlib(options, capsys, tmp_path):
    for given in (dict(bound_steps=7), dict(bound_levels="independent")):
        changed = replace(options, replicates=1, sequences=3, **given)
        replicates, _ = measured(changed)
        saved, stream = streamed(options)
        batch = next(stream(batch_size=3))
        noise = dd.KeyedGenerator(0, 0, torch.arange(3))
        names = {"bound_steps": "steps", "bound_levels": "levels"}
        extra = {names[name]: value for name, value in given.items()}
        drawn = {"levels": "balanced"} | extra
        own = time_density("optimal", saved.process, 24, IN_STRATA)
        with torch.no_grad():
            bound = dd.bound(
                saved.process,
                saved.denoiser,
                batch.x,
                noise,
                parameterization="posterior",
                density=own,
                **drawn,
            )
        nats = torch.where(batch.mask, bound.total.double(), 0.0).sum(1)
        assert replicates[0].nats.sum(1).tolist() == pytest.approx(nats.tolist(), rel=1e-5)
        result = evaluate(replace(changed, samples=1), ALONE)
        assert result["protocol"][next(iter(extra))] == next(iter(extra.values()))
        assert result["validation"] is None  # training measured another
        evaluation.show(result, make_console())
        assert ("bound: in 7 steps, over 3 texts" in capsys.readouterr().out) == (
            "bound_steps" in given
        )


def test_unknown_levels_are_refused_before_anything_is_measured(options):
    refused_with(options=options)(r"""
        evaluate(replace(options, bound_levels="even"), ALONE) | ValueError
            | bound_levels is 'even', must be one of
        replace(options, bound_steps=0) | ValueError | bound_steps=0
    """)


def terms(*nats):
    nats = torch.tensor(nats, dtype=torch.float64)
    return Terms(torch.arange(len(nats)), nats, torch.tensor([2, 3])[: len(nats)])


def test_errors_over_texts_and_over_noise_by_hand(published):
    one = terms([4.0, 0.0, 0.0], [9.0, 0.0, 1.0])
    other = terms([6.0, 0.0, 0.0], [9.0, 0.0, 1.0])
    found = estimates([one, other], published.data)
    bound = found["nats_per_token"]
    assert bound.value == pytest.approx(15 / 5)
    # replicates: 14/5 and 16/5
    assert bound.noise == pytest.approx(0.2)
    # sequences: 5 of 2 tokens and 10 of 3: residuals -1 and 1
    assert bound.error == pytest.approx(math.sqrt(2 * 2) / 5)
    assert found["diffusion"].value == pytest.approx(14 / 5) and found["prior"].value == 0
    assert found["reconstruction"].value == pytest.approx(1 / 5)
    assert found["perplexity"].value == pytest.approx(math.exp(3))
    assert found["perplexity"].noise == pytest.approx(0.2 * math.exp(3))
    documents = published.data.validation
    factor = int(documents.lengths.sum()) / int(documents.num_bytes.sum()) / math.log(2)
    assert found["bits_per_byte"].value == pytest.approx(3 * factor)
    assert found["bits_per_byte"].error == pytest.approx(bound.error * factor)
    assert Estimate.of(dd.Measure(1.0, 0.1, "nats"), []).noise is None


def test_with_the_terms_at_padding_the_bound_of_padded_rows_is_one():
    """Two texts of equal probability, of which one is shorter: "a end" and "end padding".

    Under the exact network the bounds of both have the mean log 2, the entropy, and their
    probabilities have a sum of at most one.
    """
    a, end, padding = range(3)
    process = dd.presets.mdlm(3)
    probabilities = torch.zeros(3, 3, dtype=torch.float64)
    probabilities[a, end] = probabilities[end, padding] = 0.5
    network = oracle.exact_cavity(process, probabilities)
    nats = []
    for row, length in (([a, end], 2), ([end, padding], 1)):
        x = torch.tensor([row] * 2048)
        mask = torch.arange(2).expand_as(x) < length
        batch = Batch(x, mask, torch.ones_like(mask), torch.arange(len(x)))
        terms = measure(process, network, [batch], 0, 0, levels="balanced")
        whole = terms.per_token if terms.with_padding is None else terms.with_padding
        nats.append([length * terms.per_token.value, length * whole.value])
    without, with_padding = torch.tensor(nats).T
    assert float(with_padding.mean()) == pytest.approx(math.log(2), abs=0.02)
    assert float((-with_padding).exp().sum()) < 1.01
    assert float((-without).exp().sum()) > 1.2


def test_terms_from_several_processes_may_overlap():
    joined = Terms.join([terms([1.0, 0.0, 0.0], [2.0, 0.0, 0.0]), terms([1.0, 0.0, 0.0])])
    assert joined.first(2).nats[:, 0].tolist() == [1, 2]
    assert joined.first(1).index.tolist() == [0]


def test_the_result_file_is_complete(options, published, scorer, capsys):
    main(
        [
            str(published.run),
            "--replicates",
            "2",
            "--samples",
            "3",
            "--steps",
            "4",
            "--scorer",
            str(scorer),
        ]
    )
    result = json.loads((published.run / "evaluation.json").read_text(encoding="utf-8"))
    saved = open_saved(published.run)
    bound = result["bound"]
    parts = sum(bound[name]["value"] for name in ("diffusion", "prior", "reconstruction"))
    assert bound["nats_per_token"]["value"] == pytest.approx(parts)
    assert bound["perplexity"]["value"] == pytest.approx(math.exp(parts))
    protocol = result["protocol"]
    generative = result["generative"]
    assert protocol["checkpoint_sha256"] == saved.sha256 and protocol["ema"] == 0.9999
    assert (protocol["sequences"], protocol["replicates"], protocol["weights"]) == (
        11,
        2,
        "not clipped",
    )
    assert generative["entropy"]["value"] > 0 and generative["perplexity"]["value"] > 1
    stated = generative["protocol"]
    for name in (
        "steps",
        "sampler",
        "temperature",
        "top_p",
        "network_precision",
        "ema",
        "scorer",
        "scorer_revision",
    ):
        assert name in stated
    assert (
        stated["steps"],
        stated["length"],
        generative["samples"],
        len(stated["scorer_revision"]),
    ) == (4, 24, 3, 64)
    assert result["provenance"]["versions"]["torch"] == version("torch")
    shown = capsys.readouterr().out
    assert "generative entropy" in shown and f"{bound['nats_per_token']['value']:.4f}" in shown
    assert [path.name for path in published.run.iterdir() if path.name.startswith(".")] == []


def test_an_error_without_a_finite_variance_is_named(options):
    """Under uniform times; not under the own density, or in steps."""
    changed = replace(options, replicates=1, samples=1, times="uniform", bound_levels="independent")
    stated = evaluate(changed, ALONE)["protocol"]["caveat"]
    assert stated.startswith("the error may be too small, since near t = 0")
    assert "time_density(24, chance=0.2)" in stated
    for other in (dict(times="optimal"), dict(bound_steps=7)):
        assert evaluate(replace(changed, **other), ALONE)["protocol"]["caveat"] == ""


def test_the_report_counts_sequences_and_draws_of_every_bound(options, capsys):
    console = make_console()
    evaluation.show(evaluate(options, ALONE), console)
    shown = " ".join(capsys.readouterr().out.split())
    assert "bound: over 11 texts x 2 draws" in shown and "over 11 texts x 1 draw" in shown


def test_the_first_draw_is_the_validation_of_training(tmp_path, published):
    given = open_saved(published.run).recipe
    output = replace(
        given.output,
        folder=tmp_path,
        validate_sequences=7,
        samples=1,
        sample_steps=1,
        tensorboard=False,
    )
    train(replace(given, output=output, seed=5, steps=2))
    *_, (_, last) = [
        found for found in read_metrics(tmp_path / METRICS) if found[1]["kind"] == "bound"
    ]
    changed = Options(run=str(tmp_path), scorer="none", replicates=2, batch=3)
    result = evaluate(changed, ALONE)
    same = result["validation"]
    assert (same["sequences"], same["draws"]) == (last["sequences"], last["draws"]) == (7, 1)
    assert same["value"] == pytest.approx(last["nats_per_token"], rel=1e-5)
    assert same["error"] == pytest.approx(last["standard_error"], rel=1e-4)
    assert (
        result["protocol"]["sequences"] == 11
        and result["bound"]["nats_per_token"]["value"] != same["value"]
    )
    saved = open_saved(tmp_path)
    data = published.data
    few, many = ([terms(*[[1.0, 0.0, 0.0]] * number)] for number in (6, 11))
    assert evaluation.validation(saved, data, few, changed) is None
    for other in (replace(changed, seed=1), replace(changed, data=data.folder)):
        assert evaluation.validation(saved, data, many, other) is None


def test_without_a_scorer_the_bound_is_still_reported(options):
    result = evaluate(options, ALONE)
    assert result["generative"] is None
    assert (
        evaluate(replace(options, replicates=1), ALONE)["bound"]["nats_per_token"]["noise"] is None
    )


def test_a_scorer_that_is_not_there_costs_one_warning_before_anything_is_measured(
    options, monkeypatch, capsys
):
    output = []
    monkeypatch.setattr(
        "recipes.evaluate.validate", lambda *a, **k: output.append(capsys.readouterr().err) or 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        evaluate(replace(options, scorer="./no-such-folder"), ALONE)
    (line,) = output[0].splitlines()
    assert line.startswith(
        "warning: no generative perplexity, only the bound: scorer='./no-such-folder' cannot be"
    )
    assert "no folder ./no-such-folder" in line and "--scorer none" in line


def test_without_a_judge_there_is_the_bound(options, monkeypatch, capsys):
    tries = []
    monkeypatch.setattr(
        "recipes.data.hub.HfApi.model_info", lambda *a, **k: tries.append(a) or 1 / 0
    )
    result = evaluate(replace(options, scorer="someone/judge"), ALONE)
    assert (
        result["bound"] == evaluate(options, ALONE)["bound"]
        and result["generative"] is None
        and len(tries) == 1
    )
    output = capsys.readouterr().err
    assert (
        output.count("warning") == 1
        and "no folder someone/judge, and the hub does not answer" in output
    )
    assert "someone/judge" in result["protocol"]["no_generative"]
    assert evaluate(options, ALONE)["protocol"]["no_generative"] == "not requested"


def test_a_judge_that_fails_at_the_samples_loses_no_bound(options, monkeypatch, scorer, capsys):
    changed = replace(options, scorer=str(scorer))
    assert evaluate(replace(changed, scorer_bos=True), ALONE)["bound"]
    assert "has no beginning of text" in capsys.readouterr().err
    monkeypatch.setattr(
        "recipes.evaluate.generate_and_judge", lambda *a: open_prepared(options.run)
    )
    result = evaluate(changed, ALONE)
    assert (
        result["generative"] is None and "no prepared text" in result["protocol"]["no_generative"]
    )


def test_text_of_another_tokenizer_is_refused(options, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("Quite another text, of other words.\n" * 40, encoding="utf-8")
    prepare(local(str(other), "train:270", held_out=5), tmp_path / "data")
    with pytest.raises(ValueError, match="another tokenizer"):
        evaluate(replace(options, data=tmp_path / "data"), ALONE)


def test_more_sequences_than_the_data_hold_are_named(options, capsys):
    result = evaluate(replace(options, sequences=1000, replicates=1), ALONE)
    count = result["protocol"]["sequences"]
    said = f"sequences=1000: .* holds {count} for validation; all are measured"
    assert re.search(said, capsys.readouterr().err)


def test_one_sequence_or_one_sample_is_refused_before_anything_is_measured(options, monkeypatch):
    """Their errors would be no numbers, "± nan"."""
    monkeypatch.setattr(evaluation, "bounds", None)
    with pytest.raises(
        ValueError, match="sequences=1: must be at least 2, the mean over one sequence has"
    ):
        evaluate(replace(options, sequences=1), ALONE)
    with pytest.raises(ValueError, match="samples=1: must be at least 2"):
        replace(options, scorer="gpt2", samples=1)


def test_the_result_lies_beside_the_weights_and_not_among_them(options, published):
    assert result_path("evaluation.json", options.run) == published.run / "evaluation.json"
    assert result_path("evaluation.json", str(published.run / "weights")).parent.name == ""


def test_no_result_is_written_over_that_of_another_model(options, published, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = [
        result_path("evaluation.json", run).name
        for run in ("me/bert", "you/bert", "../me/gpt", "bert")
    ]
    assert names[0] == "evaluation-me--bert.json" and len(set(names)) == 4
    monkeypatch.setattr(
        evaluation, "evaluate", lambda options, world: {"protocol": {"run": options.run}}
    )
    monkeypatch.setattr(evaluation, "show", lambda result, console: None)
    evaluation.main(["me/bert", "--out", "mine.json"])
    evaluation.main(["me/bert", "--out", "mine.json"])
    message = r"out=mine.json: holds the result of me/bert, not of you/bert: choose another by"
    with pytest.raises(SystemExit, match=message):
        evaluation.main(["you/bert", "--out", "mine.json"])
    assert json.loads(Path("mine.json").read_text())["protocol"]["run"] == "me/bert"
    renamed = tmp_path / "renamed"
    shutil.copytree(published.run, renamed)
    (renamed / "evaluation.json").write_text('{"protocol": {"run": "before"}}')
    evaluation.main([str(renamed)])


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (dict(label="even"), "label='even'"),
        (dict(forbidden=("of the law",)), r"forbidden='of the law': is \d tokens"),
    ],
)
def test_options_of_samples_are_checked_before_the_bound(
    options, scorer, sampling, message, monkeypatch
):
    monkeypatch.setattr("recipes.evaluate.bounds", None)
    with pytest.raises(ValueError, match=message):
        evaluate(replace(options, scorer=str(scorer), sampling=Sampling(**sampling)), ALONE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(likelihood="ancestral"), "likelihood='ancestral': "),
        (dict(sampling=Sampling(sampler="first_hitting")), "sampler='first_hitting': "),
    ],
)
def test_what_the_files_show_is_refused_before_the_network_is_loaded(
    options, message, tmp_path, monkeypatch
):
    published = publish_tiny("uniform", tmp_path)
    monkeypatch.setattr(
        "recipes.model_io.opening.load_network", lambda *_: pytest.fail("the network was loaded")
    )
    with pytest.raises(ValueError, match=message):
        evaluate(Options(run=str(published.run), scorer="gpt2", **options), ALONE)
    with pytest.raises(pytest.fail.Exception, match="the network was loaded"):
        evaluate(Options(run=str(published.run), scorer="none"), ALONE)
