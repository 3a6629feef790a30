"""The exact likelihood of held-out text, as an evaluation reports it."""

import json
import math
from dataclasses import replace

import pytest
from zoo.runs import ALONE, publish_tiny, publishes

import ddlib as dd
from recipes.console import make_console
from recipes.data import open_prepared
from recipes.engine.parallel import World
from recipes.evaluate import Options, evaluate, main, show
from recipes.evaluation.exact import exact
from recipes.model_io import make_order, open_saved

ENTROPY = "confidence:score=entropy"


published = publishes("clusters")
packed = publishes("packed")


def options(published, **more):
    return Options(run=str(published.run), scorer="none", replicates=1, likelihood=ENTROPY, **more)


def found(published, name=ENTROPY, steps=None, sequences=None, batch=4, world=ALONE):
    saved = open_saved(published.run)
    return exact(
        saved,
        open_prepared(published.data.folder),
        make_order(saved, name),
        steps,
        sequences,
        batch,
        world,
    )


def test_it_is_that_of_ddlib_with_the_padding_given(published):
    likely = found(published, sequences=5)
    saved = open_saved(published.run)
    batch = published.held_out(5)
    order = dd.samplers.Confidence("entropy")
    own = dd.likelihood(
        saved.process,
        saved.denoiser,
        batch.x,
        order,
        given=~batch.mask,
        parameterization="posterior",
    )
    tokens = int(batch.mask.sum())
    nats = -float(own.log_likelihood.sum()) / tokens
    assert likely["nats_per_token"]["value"] == pytest.approx(nats, rel=1e-6)
    assert likely["perplexity"]["value"] == pytest.approx(math.exp(nats), rel=1e-5)
    assert likely["nats_per_token"]["error"] > 0 and likely["nats_per_token"]["noise"] is None
    how = likely["protocol"]
    assert (how["sequences"], how["tokens"], how["padding"], how["order"]) == (
        5,
        tokens,
        "given",
        repr(order),
    )
    assert how["calls"] == own.calls == 2 * int(batch.mask.sum(1).max())  # two levels


def test_the_same_whatever_the_batch_and_the_first_are_a_part_of_all(published):
    whole = found(published, "left_to_right")
    for batch in (3, 11):
        other = found(published, "left_to_right", batch=batch)
        assert other["nats_per_token"]["value"] == pytest.approx(
            whole["nats_per_token"]["value"], rel=1e-5
        )
        assert other["protocol"] == whole["protocol"]
    few = found(published, "left_to_right", sequences=3)
    assert (
        few["protocol"]["sequences"] == 3
        and few["protocol"]["tokens"] < whole["protocol"]["tokens"]
    )
    assert few["nats_per_token"]["error"] > 0


def test_costs_are_those_of_ddlib_with_errors_of_the_differences(published):
    saved = open_saved(published.run)
    data = published.data
    grouped = exact(saved, data, make_order(saved, ENTROPY, group=4), None, 5, 4, ALONE, group=4)
    batch = published.held_out(5)
    costs = dd.contrib.order_costs(
        saved.process,
        saved.denoiser,
        batch.x,
        dd.samplers.Confidence("entropy"),
        4,
        given=~batch.mask,
        parameterization="posterior",
    )
    pairs = {
        "nats_per_token": costs.sets,
        "drawing_in_parallel": costs.drawing_in_parallel,
        "order": costs.order,
    }
    for name, nats in pairs.items():
        mean = dd.Measure.ratio(nats, costs.tokens, "nats/token")
        assert grouped[name]["value"] == pytest.approx(mean.value, rel=1e-5, abs=1e-7), name
        assert (
            grouped[name]["error"] == pytest.approx(mean.standard_error, rel=1e-4)
            and grouped[name]["noise"] is None
        )
    how = grouped["protocol"]
    assert (
        how["steps"] == "one per 4 edges" and how["pace"] == "none" and how["calls"] == costs.calls
    )
    assert 0 < grouped["drawing_in_parallel"]["error"] < grouped["nats_per_token"]["error"]


blocked = publishes("blocks")


def test_a_network_of_blocks_is_evaluated_by_blocks_with_a_cache(blocked, monkeypatch):
    saved = open_saved(blocked.run)
    data = blocked.data
    pace = dd.paces.Blocks(4)
    order = make_order(saved, "left_to_right", 24, 2, pace)
    likely = exact(saved, data, order, None, 3, 3, ALONE, 24, 2, pace)
    batch = blocked.held_out(3)
    own = dd.likelihood(
        saved.process,
        saved.denoiser,
        batch.x,
        order,
        given=~batch.mask,
        parameterization="posterior",
        pace=pace,
        group=2,
        controls=[dd.contrib.Cache("none")],
    )
    nats = -float(own.log_likelihood.sum()) / int(batch.mask.sum())
    assert likely["nats_per_token"]["value"] == pytest.approx(nats, rel=1e-5)
    assert likely["protocol"]["pace"] == repr(pace) and likely["protocol"]["calls"] == own.calls
    assert likely["order"]["value"] == pytest.approx(0, abs=1e-6)
    whole = exact(saved, data, order, None, 3, 3, ALONE, 24, 2)
    assert whole["protocol"]["pace"] == "none"
    with pytest.raises(
        ValueError, match="likelihood_group=8: must be at most 4, the tokens that one call may draw"
    ):
        make_order(saved, "left_to_right", 24, 8, pace)


class Share(World):
    """One of several processes, without communication."""

    def gather(self, value):
        return [value]


def test_two_processes_share_the_texts(published):
    whole, parts = (
        [found(published, "left_to_right", steps=3, world=world) for world in worlds]
        for worlds in ([ALONE], [Share(rank, 2, ALONE.device) for rank in range(2)])
    )
    for name in ("sequences", "tokens"):
        assert sum(part["protocol"][name] for part in parts) == whole[0]["protocol"][name]
    nats = sum(part["nats_per_token"]["value"] * part["protocol"]["tokens"] for part in parts)
    expected = whole[0]["nats_per_token"]["value"] * whole[0]["protocol"]["tokens"]
    assert nats == pytest.approx(expected, rel=1e-5)


def test_fewer_steps_are_another_model(published):
    whole, fast = (found(published, steps=steps, sequences=3) for steps in (None, 4))
    assert (
        fast["protocol"]["calls"] == fast["protocol"]["steps"] == 4
        and whole["protocol"]["steps"] == "one per edge"
    )
    assert fast["nats_per_token"]["value"] != pytest.approx(
        whole["nats_per_token"]["value"], rel=1e-6
    )
    assert found(published, "entropy_bounded:gamma=inf", sequences=3)["protocol"]["calls"] == 2


def test_a_network_of_packed_rows_sees_no_padding(packed):
    # called as a whole
    saved = open_saved(packed.run, precision="bfloat16")
    seen = []
    saved.model.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    likely = exact(saved, packed.data, make_order(saved, "confidence"), 3, 4, 4, ALONE)
    assert likely["protocol"]["padding"] == "none" and len({z.shape[1] for z in seen}) > 1
    assert not any(bool((z == packed.data.pad_id).any()) for z in seen)


def test_the_command_prints_the_likelihood(published, tmp_path, capsys):
    place = tmp_path / "result.json"
    flags = ["--scorer", "none", "--replicates", "1", "--sequences", "5", "--likelihood", ENTROPY]
    main([str(published.run), *flags, "--likelihood-steps", "6", "--out", str(place)])
    result = json.loads(place.read_text(encoding="utf-8"))
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "likelihood perplexity" in shown
        and f"{result['likelihood']['nats_per_token']['value']:.4f}" in shown
    )
    assert (
        "likelihood: exact, over 5 sequences" in shown
        and "6 network calls per batch, padding: given" in shown
    )


def test_the_command_prints_the_cost_of_groups_and_orders(published, tmp_path, capsys):
    place = tmp_path / "result.json"
    flags = [
        "--scorer",
        "none",
        "--replicates",
        "1",
        "--sequences",
        "4",
        "--likelihood",
        "in_order:lanes:4",
    ]
    main([str(published.run), *flags, "--likelihood-group", "4", "--out", str(place)])
    likely = json.loads(place.read_text(encoding="utf-8"))["likelihood"]
    shown = " ".join(capsys.readouterr().out.split())
    for name in ("drawing_in_parallel", "order"):
        assert likely[name]["unit"] == "nats/token" and likely[name]["error"] > 0
        assert f"likelihood {name.replace('_', ' ')} │ {likely[name]['value']:.4f}" in shown
    assert "costs: drawing_in_parallel: extra nats per token over the same order" in shown


def test_without_the_option_there_is_none(published, capsys):
    result = evaluate(replace(options(published, sequences=2), likelihood=None), ALONE)
    show(result, make_console())
    assert result["likelihood"] is None and "likelihood" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"likelihood": "confidense"}, "did you mean 'confidence'"),
        ({"likelihood": "confidence:temperature=-1"}, "likelihood: temperature is -1"),
        (
            {"likelihood": None, "likelihood_steps": 3},
            "likelihood_steps=3: requires an order, given",
        ),
        ({"likelihood_steps": 0}, "likelihood_steps=0: must be at least 1"),
        ({"likelihood_group": 0}, "likelihood_group=0: must be at least 1"),
        (
            {"likelihood": None, "likelihood_group": 3},
            "likelihood_group=3: requires an order, given",
        ),
        (
            {"likelihood_group": 2, "likelihood_steps": 3},
            "likelihood_group=2: not with likelihood_steps",
        ),
    ],
)
def test_bad_options_are_refused_before_the_run_is_opened(published, changed, message):
    with pytest.raises(ValueError, match=message):
        options(published, **changed) if "likelihood" not in changed else replace(
            options(published), **changed
        )


def test_models_without_a_likelihood_are_refused_before_anything_is_measured(
    published, tmp_path, monkeypatch
):
    monkeypatch.setattr("recipes.evaluate.validate", lambda *a, **k: 1 / 0)
    for name, message in (
        ("ancestral", r"likelihood='ancestral': order is Ancestral\(.*ddlib.bound"),
        ("confidence:temperature=0.5", "must choose positions deterministically"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate(replace(options(published), likelihood=name), ALONE)
    with pytest.raises(ValueError, match="likelihood_group=25: must be at most 24"):
        evaluate(options(published, likelihood_group=25), ALONE)
    with pytest.raises(ValueError, match="likelihood='in_order:blocks:7': size is 7, must divide"):
        evaluate(replace(options(published), likelihood="in_order:blocks:7"), ALONE)
    blurred = publish_tiny("clusters, xi", tmp_path)
    with pytest.raises(SystemExit, match=r"error: likelihood='confidence': .*xi < 1"):
        main([str(blurred.run), "--scorer", "none", "--likelihood", "confidence"])
