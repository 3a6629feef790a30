"""Utilisation of the devices: operations counted by torch, peaks by name or flag."""

from dataclasses import replace

import pytest
import torch
from training_runs import curve
from zoo.runs import ALONE, recipe_in

from recipes.config import Hardware
from recipes.engine import train, utilisation
from recipes.engine.run import Run
from recipes.logging import read_metrics


def prepared(tmp_path, **changes):
    return Run.prepare(recipe_in(tmp_path, **changes), ALONE)


def by_hand(run, rows=1, clean=False):
    """Six operations for each weight of a matrix and each token, twelve for width and token of
    attention.
    """
    model = run.network.model
    length = run.recipe.data.length
    inside = sum(
        p.numel()
        for name, p in model.blocks.named_parameters()
        if p.ndim == 2 and "modulation" not in name
    )
    width = run.recipe.model["dim"]
    tokens = length * (2 if clean else 1)
    attention = run.recipe.model["depth"] * 12 * width * tokens * tokens
    return 6 * inside * tokens + attention + 6 * model.head.weight.numel() * length


def test_operations_are_those_of_the_products(tmp_path):
    run = prepared(tmp_path)
    counted = utilisation.operations(run)
    wanted = by_hand(run)
    # counted besides: the products of the condition on time, once a row
    assert wanted < counted < 1.05 * wanted
    assert run.network.training


def test_blocks_at_once_are_two_sequences(tmp_path):
    run = prepared(tmp_path, pace="blocks:4")
    assert run.state.objective.at_once
    assert (
        by_hand(run, clean=True) * 0.9
        < utilisation.operations(run)
        < by_hand(run, clean=True) * 1.3
    )


def test_the_peak_is_that_of_the_flag_or_of_the_name(monkeypatch):
    cpu = torch.device("cpu")
    cuda = torch.device("cuda", 0)
    assert utilisation.device_peak(Hardware(peak=2.5), cpu) == 2.5e12
    assert utilisation.device_peak(Hardware(bf16=True), cpu) is None
    for name, half, single in (
        ("NVIDIA H100 80GB", 989.5, 67.0),
        ("NVIDIA H100 PCIe", 756.0, 51.0),
        ("NVIDIA A100-SXM4-80GB", 312.0, 19.5),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        assert utilisation.device_peak(Hardware(bf16=True), cuda) == half * 1e12
        assert utilisation.device_peak(Hardware(), cuda) == single * 1e12
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Imagined 9000")
    assert utilisation.device_peak(Hardware(bf16=True), cuda) is None


def test_seconds_at_the_peak(tmp_path):
    run = prepared(tmp_path)
    known = replace(run.recipe, hardware=Hardware(threads=1, peak=1e-3))
    assert utilisation.fastest(run) is None
    run.recipe = known
    assert utilisation.fastest(run) == pytest.approx(utilisation.operations(run) * 8 / 1e9)


def test_a_run_records_the_utilisation_and_has_the_same_losses(tmp_path):
    given = recipe_in(tmp_path, steps=4)
    train(given)
    changed = replace(
        given,
        hardware=Hardware(threads=1, peak=0.1),
        output=replace(given.output, folder=tmp_path / "peak"),
    )
    train(changed)
    assert curve(tmp_path / "peak") == curve(tmp_path / "run")
    records = [
        record
        for _, record in read_metrics(tmp_path / "peak" / "metrics.jsonl")
        if record["kind"] == "train"
    ]
    assert all(0 < record["mfu"] < 1 and record["step_seconds"] > 0 for record in records)


@pytest.mark.parametrize("peak", [0.0, -1.0, float("nan"), float("inf")])
def test_a_peak_that_is_none(peak):
    with pytest.raises(ValueError, match=f"peak={peak}: must be positive"):
        Hardware(peak=peak)
