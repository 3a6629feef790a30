"""Graphs with a given number of nodes, and given types of nodes and pairs."""

import json
from collections import Counter
from dataclasses import replace
from itertools import product

import networkx as nx
import numpy as np
import pytest
import torch
from refusals import refused_with
from zoo.calls import seeded
from zoo.joints import F64, follows
from zoo.runs import ALONE, quiet

from ddlib.testing.oracle import exact_cavity
from recipes.config import Data, ModelContext, Optimizer, Output, Recipe
from recipes.data import SymbolCorpus, prepare
from recipes.domains.graphs.sequences import slots_of
from recipes.domains.graphs.slots import TYPE
from recipes.engine.setup import FromText, make_model, make_process
from recipes.generate import Options, generate
from recipes.generation.pipeline import Pipeline
from recipes.generation.request import Request
from recipes.generation.samples import batched, draw_batch
from recipes.generation.sampling import Sampling
from recipes.model_io import WEIGHTS, open_saved
from recipes.model_io.writing import Record, write_model

SLOTS = 3
SHARES = {2: 0.25, 3: 0.75}
"""Shares of the numbers of nodes in the training graphs."""
BATCH = 100
"""Samples at a time: the exact network holds a distribution of 2,187 graphs for each."""
IN_ORDER = Sampling(sampler="left_to_right", steps=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of prepared graphs, and of a network with random weights."""
    folder = tmp_path_factory.mktemp("graphs")
    lines = []
    for size in [3, 3, 3, 2] * 4:
        graph = nx.path_graph(size)
        nx.set_node_attributes(graph, {node: "CN"[node % 2] for node in graph}, TYPE)
        lines.append(json.dumps(nx.node_link_data(graph, edges="edges")))
    (folder / "graphs.jsonl").write_text("\n".join(lines))
    source = {"kind": "graphs", "files": str(folder / "graphs.jsonl"), "slots": SLOTS}
    corpus = SymbolCorpus(source=source, held_out=4)
    data = prepare(corpus, folder / "data")
    network = {"kind": "graph_transformer", "dim": 8, "pair_dim": 4, "depth": 1, "heads": 2}
    run = Recipe(
        data=Data(corpus=corpus, folder=folder / "data", length=7),
        process="product",
        model=network | {"cond_dim": 8},
        optimizer=Optimizer(lr=1e-3),
        output=Output(folder=folder / "run"),
        batch=4,
        steps=1,
    )
    known = FromText(run, data, ALONE)
    model = make_model(run, ModelContext(known, make_process(run, known, data, ALONE)))
    record = Record(recipe=run, tokenizer=data.tokenizer, layout=data.layout)
    write_model(model, folder / "run" / WEIGHTS, record, "tiny", "Of random weights.")
    return folder / "run"


def joint_of(slots):
    """Random distribution of all graphs, (3,) * 7: absent nodes and pairs are 0."""
    joint = torch.zeros([SLOTS] * len(slots.positions), dtype=F64)
    chance = torch.rand(joint.shape, dtype=F64, generator=seeded()) + 0.05
    alphabets = [range(len(slots.alphabets[name])) for name in slots.positions]
    for ids in product(*alphabets):
        absent = slots.present_from > ids[0]
        if not np.array(ids)[absent].any():
            joint[ids] = chance[ids]
    return joint / joint.sum()


@pytest.fixture(scope="module")
def saved(folder):
    """The run with the exact network of the joint distribution."""
    opened = open_saved(folder)
    joint = joint_of(slots_of(opened.layout))
    return replace(opened, denoiser=exact_cavity(opened.process, joint))


def drawn(saved, given, count):
    request = Request(sampling=IN_ORDER, numbers=range(count), given=given)
    samples = Pipeline(saved).samples([None], request)
    for places in batched(saved, samples, IN_ORDER, BATCH):
        draw_batch(saved, [samples[place] for place in places], IN_ORDER, seed=1)
    return torch.tensor([one.tokens for one in samples])


CONDITIONS = {
    "size=3": {0: 2},
    "size=2": {0: 1},
    "size=3,node[1]=N": {0: 2, 2: 1},
    "size=3,edge[0-2]=edge,node[0]=C": {0: 2, 1: 0, 5: 1},
    "node[2]=N": {0: 2, 3: 1},  # three nodes at least: the number is determined
}


@pytest.mark.statistical
@pytest.mark.parametrize("given", CONDITIONS)
def test_given_values_condition_the_others(saved, given):
    conditional = joint_of(slots_of(saved.layout))
    for place, token in CONDITIONS[given].items():
        keep = torch.zeros(SLOTS, dtype=F64)
        keep[token] = 1
        conditional = conditional * keep.view([-1 if k == place else 1 for k in range(7)])
    tokens = drawn(saved, given, 1500)
    for place, token in CONDITIONS[given].items():
        assert (tokens[:, place] == token).all()
    assert follows(tokens, conditional / conditional.sum())


@pytest.mark.statistical
def test_without_given_values_the_sizes_are_those_of_the_data(saved):
    joint = joint_of(slots_of(saved.layout))
    shares = torch.tensor([0.0, SHARES[2], SHARES[3]], dtype=F64)
    per_size = joint / joint.flatten(1).sum(1).view(-1, *[1] * 6)
    assert follows(drawn(saved, None, 1500), per_size * shares.view(-1, *[1] * 6))


def test_all_samples_of_the_command_have_the_size(folder, tmp_path):
    few = Sampling(steps=4)
    options = Options(run=str(folder), given=("size=2",), samples=6, sampling=few)
    texts = generate(options, quiet())
    assert {text.split()[0] for text in texts} == {"1"}
    file = tmp_path / "graphs.g6"
    generate(replace(options, out=file), quiet())
    assert [len(one) for one in nx.read_graph6(file)] == [2] * 6
    lines = tmp_path / "graphs.jsonl"
    generate(replace(options, out=lines), quiet())
    first = json.loads(lines.read_text().splitlines()[0])
    assert first["protocol"]["given"] == "size=2"
    free = generate(replace(options, given=()), quiet())
    same = [text for text in free if text.split()[0] == "1"]
    assert same and not Counter(same) - Counter(texts), "the noise is that of the number"


def test_a_size_without_training_graphs_is_drawn_with_a_warning(folder):
    options = Options(run=str(folder), given=("size=1",), samples=3, sampling=Sampling(steps=4))
    with pytest.warns(UserWarning, match="given='size=1': no training sequence has these values"):
        texts = generate(options, quiet())
    assert {text.split()[0] for text in texts} == {"0"}


def test_bad_values_are_refused(folder):
    def given(text, **others):
        return generate(Options(run=str(folder), given=(text,), **others), quiet())

    refused_with(given=given)(r"""
        given('size=0') | ValueError | given: size=0: no such value of the field, whose values are
            from 1 to 3
        given('size=4') | ValueError | size=4: no such value of the field, whose values are from 1
        given('size=2.5') | ValueError | size=2.5: no such value .* next 2 and 3
        given('size=many') | ValueError | given: size=many: must be a number
        given('sise=2') | ValueError | given: no value is named 'sise'; did you mean 'size'
        given('size') | ValueError | given: 'size' must be NAME=VALUE
        given('size=2,size=3') | ValueError | given: 'size' is given twice
        given('edge[1-0]=edge') | ValueError | no value is named 'edge.1-0.'; did you mean
        given('size=2,node[2]=N') | ValueError | given: 'node.2.' is absent, must be given
            size=3 or more
        given('node[0]=N') | ValueError | given: 'node.0.' without 'size', which the model does not
            draw: both must be given
        given('node[0]=O,size=2') | ValueError | node=O: no such value of the field
        given('size=2', prompt='0 1') | ValueError | given='size=2': not with a prompt
    """)
