"""A head over children in recipes: trained, evaluated and sampled from like any other, in every
layout.
"""

from dataclasses import replace

import pytest
from training_runs import check_layout, losses, trained
from zoo.runs import ALONE, exact, recipe, recipe_in

import ddlib as dd
from recipes.config import Hardware
from recipes.evaluate import Options, evaluate
from recipes.generate import main as generate
from recipes.model_io import open_saved

TINY = dict(kind="dit", dim=16, depth=2, heads=2, cond_dim=8, pad_to=1, head="children")
NOISE = {
    "mdlm": (dict(kind="mdlm"), dict(clusters=[9, 3])),
    "hdlm": (dict(kind="hdlm", clusters=6), {}),
    "hdlm-xi": (dict(kind="hdlm", clusters=6, xi=0.9), {}),
    "gidd": (dict(kind="gidd", p_uniform=0.1), {}),
}


def child_run(folder, name):
    process, model = NOISE[name]
    return replace(exact(recipe_in(folder, name)), process=process, model=TINY | model)


@pytest.mark.parametrize(
    "name",
    [
        "hdlm",
        *(name for name in ("mdlm", "hdlm-xi", "gidd")),
    ],
)
def test_a_run_with_a_head_over_children(name, tmp_path, capsys):
    run = child_run(tmp_path, name)
    folder = trained(run)
    assert losses(folder)[-1] < losses(folder)[0]
    saved = open_saved(folder)
    clusters = {
        "mdlm": [9, 3],
        "hdlm": [6],
        "hdlm-xi": [6],
        "gidd": [round(saved.process.vocab_size**0.5)],
    }[name]
    assert isinstance(saved.parameterization, dd.Children)
    assert list(saved.parameterization.tree.levels[1:-1]) == clusters
    result = evaluate(
        Options(run=str(folder), scorer="none", replicates=2, samples=2, batch=4), ALONE
    )
    assert 0 < result["bound"]["nats_per_token"]["value"] < 8
    generate([str(folder), "--samples", "1", "--steps", "4"])
    assert capsys.readouterr().out


@pytest.mark.parametrize("name", ["hdlm", "hdlm-xi"])
@pytest.mark.parametrize(
    "hardware",
    [
        pytest.param(Hardware(threads=1), id="copies"),
        pytest.param(Hardware(shard=True, threads=1), id="shards"),
    ],
)
def test_the_layout_changes_no_number(name, hardware, tmp_path):
    alone = child_run(tmp_path, name)
    trained(alone)
    check_layout(replace(child_run(tmp_path / "two", name), hardware=hardware), 2, alone)


def test_the_head_is_a_value_of_the_model(tmp_path):
    base = recipe(tmp_path, tmp_path / "run")
    assert base.model["head"] == "words" and base.model["clusters"] is None  # written out
    assert (
        replace(base, model=base.model | {"head": "children", "clusters": 12}).model["clusters"]
        == 12
    )
    with pytest.raises(ValueError, match=r"model\.head: .*'words' or 'children'"):
        replace(base, model=base.model | {"head": "kids"})
