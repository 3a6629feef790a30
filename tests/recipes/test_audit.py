"""The audit of a trained model: a table of estimators with verdicts, and the reasons of those that
it refuses.
"""

import json

import pytest
import torch
from training_runs import trained
from zoo.runs import publish_tiny, publishes, quiet, recipe_in

import ddlib as dd
from recipes.audit import Options, audit, judge, main
from recipes.estimators import ESTIMATORS, FIXED, Model, find
from recipes.metrics import measure
from recipes.model_io import open_saved

BOUND = "NELBO, times from 0, with ends"
WITHOUT = "NELBO, times from 0.1, without ends"


def options(published, tmp_path, **values):
    return Options(
        run=str(published.run), out=tmp_path / "audit.json", sequences=5, draws=3, **values
    )


masks = publishes("masks")
wrong_clusters = publishes("clusters, xi")


def by_name(result):
    return {found["name"]: found for found in result["estimators"]}


def test_a_run_that_was_trained_is_audited(tmp_path):
    run = trained(recipe_in(tmp_path, process=dict(kind="mdlm"), steps=4))
    result = audit(Options(run=str(run), sequences=3, draws=2, only=("chain, left",)), quiet())
    assert by_name(result)[FIXED]["verdict"] == "exact" and (run / "audit.json").exists()


def test_one_command_prints_and_writes_the_table(masks, capsys):
    run = masks.run
    main(
        [
            str(run),
            "--sequences",
            "3",
            "--draws",
            "2",
            "--only",
            "chain, left",
            "from 0.1",
            "released",
        ]
    )
    result = json.loads((run / "audit.json").read_text(encoding="utf-8"))
    found = by_name(result)
    verdicts = {name: one["verdict"] for name, one in found.items()}
    assert verdicts == {
        FIXED: "exact",
        "NELBO, times from 0.1, with ends": "bound",
        WITHOUT: "neither",
    }
    assert found[WITHOUT]["largest"] > 1.1 and found[WITHOUT]["calls"] == 2
    assert list(result["refused"]) == ["HDLM's released loss, xi < 1"]
    assert result["provenance"]["versions"]["torch"] and result["protocol"]["sequences"] == 3
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "exact" in shown
        and "refused: HDLM's released loss, xi < 1: needs one level of clusters" in shown
    )


def test_every_estimator_is_in_the_table_or_refused(masks, tmp_path):
    result = audit(options(masks, tmp_path), quiet())
    assert {*by_name(result), *result["refused"]} == {each.name for each in ESTIMATORS}
    for estimator in ESTIMATORS:
        if estimator.name in by_name(result) and "times from 0, without" not in estimator.name:
            assert by_name(result)[estimator.name]["verdict"] == estimator.claim, estimator.name
    fixed = by_name(result)[FIXED]["nats_per_token"]["value"]
    for found in result["estimators"][1:]:
        difference = found["nats_per_token"]["value"] - fixed
        assert found["less_chain"]["value"] == pytest.approx(difference, abs=1e-9)


def test_the_numbers_are_those_of_the_library(tmp_path):
    published = publish_tiny("packed", tmp_path / "packed")
    result = audit(options(published, tmp_path, only=("least variance",)), quiet())
    saved = open_saved(published.run)
    batches = [published.held_out(5)]
    x = batches[0].x
    mask = batches[0].mask
    rows = [x[i : i + 1, : int(mask[i].sum())] for i in range(5)]
    ways = dict(parameterization="posterior")
    likely = [
        -dd.likelihood(saved.process, saved.denoiser, row, dd.samplers.LeftToRight(), **ways)[0]
        for row in rows
    ]
    tokens = int(mask.sum())
    assert by_name(result)[FIXED]["nats_per_token"]["value"] == pytest.approx(
        float(sum(likely)) / tokens, rel=1e-5
    )
    many = [
        measure(saved.process, saved.denoiser, batches, 0, k, "posterior", ragged=True)
        for k in range(40)
    ]
    bound = torch.stack([one.nats.sum() for one in many]) / tokens
    found = by_name(result)["NELBO, times of least variance"]["nats_per_token"]
    assert abs(found["value"] - float(bound.mean())) < 5 * found["error"]


def test_estimators_without_support_are_named_and_the_rest_is_printed(wrong_clusters, tmp_path):
    result = audit(
        options(wrong_clusters, tmp_path, only=("released", "from 0, with ends")), quiet()
    )
    verdicts = {name: one["verdict"] for name, one in by_name(result).items()}
    assert verdicts == {"HDLM's released loss, xi < 1": "neither", BOUND: "bound"}
    assert "one path from the mask to each token" in result["refused"][FIXED]
    assert all(one["less_chain"] is None for one in result["estimators"])


def test_a_run_by_blocks_is_audited_by_blocks(tmp_path):
    published = publish_tiny("blocks", tmp_path / "blocks")
    result = audit(options(published, tmp_path, only=("from 0, with ends", "pseudo")), quiet())
    found = by_name(result)
    assert found[FIXED]["verdict"] == "exact" and found[BOUND]["verdict"] == "bound"
    assert found[BOUND]["calls"] == 3 and "Blocks(size=2)" in found[BOUND]["space"]["pace"]
    assert "noised together" in result["refused"]["pseudo-likelihood at half masks"]


def test_a_process_without_a_small_copy_is_not_judged():
    process = dd.processes.RateMatrix.examples()[0]
    found = judge(find(BOUND), Model(process, lambda z, t: torch.zeros(*z.shape, 4)))
    assert found == {
        "verdict": "not judged",
        "reason": "RateMatrix has no reduction to fewer tokens",
    }


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            dict(only=("chains",)),
            "only='chains': must be a part of the name of an estimator: 'NELBO",
        ),
        (dict(sequences=1), "sequences=1: must be at least 2"),
        (dict(draws=0), "draws=0: must be at least 1"),
        (dict(length=0), "length=0: must be at least 1"),
        (dict(seed=-1), "seed=-1: must be at least 0"),
    ],
)
def test_bad_options_are_refused_before_the_run_is_opened(changed, message):
    with pytest.raises(ValueError, match=message):
        Options(run="nowhere", **changed)


def test_a_length_that_the_model_lacks_is_refused(masks, tmp_path):
    with pytest.raises(ValueError, match="length=25: must be at most 24"):
        audit(options(masks, tmp_path, length=25), quiet())
    assert not (tmp_path / "audit.json").exists()


def test_the_result_of_another_model_is_not_overwritten(masks, tmp_path):
    place = tmp_path / "audit.json"
    place.write_text(json.dumps({"protocol": {"run": "another"}}), encoding="utf-8")
    with pytest.raises(ValueError, match="holds the result of another"):
        audit(options(masks, tmp_path), quiet())
