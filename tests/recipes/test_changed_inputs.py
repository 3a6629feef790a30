"""A run whose data or tree file changed since its checkpoint: refused by name, continued on
request, and not evaluated in silence.
"""

import csv
import shutil
from dataclasses import replace

import numpy as np
import pytest
from zoo.runs import recipe

from ddlib_models.io.manifest import read_facts, write_manifest
from recipes.config import Data
from recipes.data import open_prepared, prepare_ids
from recipes.engine import train
from recipes.engine.checkpoint import list_checkpoints
from recipes.model_io import open_held_out, open_saved

WORDS = 12
NOISE = r"the noise, as built from the recipe, .*, is [0-9a-f]{12}, was [0-9a-f]{12}"
DATA = r"the data of .*data, by .*, are [0-9a-f]{12}, were [0-9a-f]{12}"


def write_ids(folder, seed):
    """Prepare random sequences, all in the same vocabulary."""
    ids = np.random.default_rng(seed).integers(0, WORDS, (40, 16))
    shutil.rmtree(folder / "data", ignore_errors=True)
    prepare_ids(ids, 12, WORDS, folder / "data")


def write_tree(folder, shift):
    """Write a tree of three groups, whose members the shift decides."""
    with (folder / "tree.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(
            [str(token), f"group{(token + shift) // 4 % 3}"] for token in range(WORDS)
        )


def trained(folder, **changes):
    """Train a run of one step."""
    write_ids(folder, 0)
    write_tree(folder, 0)
    run = recipe(folder / "data", folder / "run", steps=1, **changes)
    run = replace(
        run,
        data=Data(folder=folder / "data", length=16),
        output=replace(run.output, samples=1, sample_steps=2),
    )
    train(run)
    return run


@pytest.fixture
def run(tmp_path):
    return trained(tmp_path, process={"kind": "hdlm", "clusters": str(tmp_path / "tree.csv")})


def refused(run, message):
    """Check that the run is refused, by this change alone, until the change is accepted."""
    with pytest.raises(ValueError, match=rf"step_00000001 is of another run: {message}\. Choose"):
        train(run)
    train(replace(run, steps=2), accept_changes=True)
    assert train(replace(run, steps=2))


def test_the_same_inputs_are_accepted(run, tmp_path):
    write_ids(tmp_path, 0)
    write_tree(tmp_path, 0)
    assert train(run)


def test_another_tree_in_the_same_file_is_refused(run, tmp_path):
    write_tree(tmp_path, 2)
    refused(run, NOISE)


def test_another_tree_of_the_network_is_refused(tmp_path):
    head = {"head": "children", "clusters": str(tmp_path / "tree.csv")}
    model = recipe(tmp_path, tmp_path).model | head
    run = trained(tmp_path, process={"kind": "mdlm"}, model=model)
    write_tree(tmp_path, 2)
    refused(run, NOISE)


def test_other_data_in_the_same_folder_are_refused(run, tmp_path):
    write_ids(tmp_path, 1)
    refused(run, DATA)


def test_other_data_are_measured_on_request_alone(run, tmp_path):
    saved = open_saved(tmp_path / "run")
    assert open_held_out(saved).content == saved.content
    write_ids(tmp_path, 1)
    with pytest.raises(ValueError, match=r"data.folder=.*: holds other data .* than .* trained on"):
        open_held_out(saved)
    assert open_held_out(saved, tmp_path / "data").content == open_prepared(run.data.folder).content


def test_a_checkpoint_of_another_version_is_refused_by_name(run):
    (path,) = list_checkpoints(run.output.folder / "checkpoints")
    facts = read_facts(path)
    del facts["content"]
    write_manifest(path, facts)
    with pytest.raises(ValueError, match=r"step_00000001 records .* must record bound, content, "):
        train(run)
