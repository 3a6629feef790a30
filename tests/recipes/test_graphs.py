"""Graphs in recipes: sources, a run, samples in files, metrics."""

import json
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from refusals import refused_with
from training_runs import trains
from zoo.runs import ALONE, quiet, recipe

from recipes import graphs as graphs_command
from recipes import prepare as prepare_command
from recipes.config import Data
from recipes.data import Layout, SymbolCorpus, open_prepared, prepare
from recipes.domains.graphs.communities import Communities
from recipes.domains.graphs.drawing import draw
from recipes.domains.graphs.files import Graphs
from recipes.domains.graphs.molecules import BONDS, MoleculeGraphs, graph_of, smiles_of
from recipes.domains.graphs.saving import check_graph_file, write_graphs
from recipes.domains.graphs.sequences import sequences_of, slots_of
from recipes.domains.graphs.slots import TYPE, Slots
from recipes.domains.molecules.metrics import canonical
from recipes.domains.scores import Graphs as Metrics
from recipes.engine import train
from recipes.evaluate import Options as Evaluation
from recipes.evaluate import evaluate
from recipes.generate import Options, generate
from recipes.generation.sampling import Sampling
from recipes.graphs import recipes
from recipes.model_io import open_saved
from recipes.papers.symbols import SMOKE

DRUGS = ("c1ccccc1", "c1cc[nH]c1", "CC(=O)Nc1ccc(O)cc1", "CN1C=NC2=C1C(=O)N(C(=O)N2C)C", "C#N")
CORPUS = SymbolCorpus(source={"kind": "communities", "count": 60, "slots": 12}, held_out=20)
LENGTH = 79
FOUR = Sampling(steps=4)


def run_in(folder, name, corpus=CORPUS, length=LENGTH):
    prepare(corpus, folder / "data")
    network = {"kind": "graph_transformer", "dim": 8, "pair_dim": 4, "depth": 1, "heads": 2}
    return replace(
        recipe(folder / "data", folder / name),
        data=Data(corpus=corpus, folder=folder / "data", length=length),
        process="product",
        model=network | {"cond_dim": 8},
    )


whole = trains(run_in)


# sources


def test_communities_are_two_connected_groups():
    graphs = Communities(count=30).graphs()
    sizes = {len(graph) for graph in graphs}
    assert sizes <= set(range(12, 21, 2)) and len(sizes) > 3
    inside = []
    between = []
    for graph in graphs:
        half = len(graph) // 2
        crossing = sum((u < half) != (v < half) for u, v in graph.edges)
        assert nx.is_connected(graph) and crossing >= 1
        inside.append((graph.number_of_edges() - crossing) / (half * (half - 1)))
        between.append(crossing / len(graph))
    assert np.mean(inside) == pytest.approx(0.7, abs=0.05)
    assert np.mean(between) == pytest.approx(0.08, abs=0.03)
    again = Communities(count=2).graphs()
    assert all(map(nx.utils.graphs_equal, again, graphs[:2]))


def test_sequences_have_the_number_of_nodes_and_what_is_absent_given():
    data = Communities(count=5).load()
    assert data.ids.shape == (5, 211) == (5, len(data.positions))
    slots = slots_of(data.make_layout("communities", False, {211: 5}))
    for ids, given, graph in zip(data.ids, data.given, Communities(count=5).graphs(), strict=True):
        assert nx.utils.graphs_equal(nx.Graph(slots.decode(ids).edges), nx.Graph(graph.edges))
        assert (~given).sum() == len(graph) * (len(graph) - 1) // 2


def typed(graph):
    nx.set_node_attributes(graph, {node: "ab"[node % 2] for node in graph}, TYPE)
    nx.set_edge_attributes(graph, "solid", TYPE)
    return graph


def test_graphs_of_files_come_back(tmp_path):
    graphs = [nx.path_graph(3), nx.cycle_graph(5), nx.complete_graph(4)]
    for suffix, write in ((".g6", nx.to_graph6_bytes), (".s6", nx.to_sparse6_bytes)):
        file = tmp_path / f"graphs{suffix}"
        file.write_bytes(b"".join(write(one, header=False) for one in graphs))
        data = Graphs(str(file)).load()
        slots = slots_of(data.make_layout("graphs", False, {}))
        assert slots == Slots(5)
        for ids, graph in zip(data.ids, graphs, strict=True):
            assert nx.utils.edges_equal(slots.decode(ids).edges, graph.edges)
    lines = [json.dumps(nx.node_link_data(typed(one), edges="edges")) for one in graphs]
    (tmp_path / "typed.jsonl").write_text("\n".join(lines) + "\n")
    data = Graphs(str(tmp_path / "typed.jsonl"), slots=6).load()
    slots = slots_of(data.make_layout("graphs", False, {}))
    assert slots == Slots(6, ("a", "b"), ("solid",))
    assert all(
        nx.utils.graphs_equal(slots.decode(ids), one)
        for ids, one in zip(data.ids, graphs, strict=True)
    )


@pytest.mark.parametrize("named", [TYPE, "label"])
def test_attributes_that_are_not_read_are_remarked(tmp_path, named):
    graph = nx.path_graph(3)
    nx.set_node_attributes(graph, {0: "a", 1: "a", 2: "b"}, named)
    line = json.dumps(nx.node_link_data(graph, edges="edges"))
    (tmp_path / "x.jsonl").write_text(f"{line}\n{line}\n")
    wanted = (
        () if named == TYPE else ("nodes: attributes that are not read: label; types are 'type'",)
    )
    assert Graphs(str(tmp_path / "x.jsonl")).load().notes == wanted


def link(graph):
    return json.dumps(nx.node_link_data(graph, edges="edges"))


def nodes_and_edges(nodes, edges):
    links = [{"source": one, "target": other} for one, other in edges]
    return json.dumps({"nodes": [{"id": node} for node in nodes], "edges": links})


HALF = typed(nx.path_graph(3))
del HALF.nodes[1][TYPE]
LINES = {
    "directed": (link(nx.DiGraph([(0, 1)])), "line 2: is directed, must be undirected"),
    "multi": (link(nx.MultiGraph([(0, 1)])), "line 2: may have several edges between two nodes"),
    "loop": (link(nx.Graph([(0, 0), (0, 1)])), "line 2: has an edge from node 0 to itself"),
    "large": (link(nx.path_graph(7)), "line 2: has 7 nodes, must have 2 to 6, the number of slots"),
    "alone": (link(nx.path_graph(1)), "line 2: has 1 nodes, must have 2 to 6"),
    "half": (link(HALF), "line 2: one of its nodes has no attribute 'type', others have it"),
    "repeated": (nodes_and_edges([0, 1], [(0, 1), (1, 0)]), "line 2: .* two edges are between the"),
    "unknown node": (nodes_and_edges([0, 1], [(0, 7)]), "line 2: .* 2 nodes are listed, and 3"),
    "node twice": (nodes_and_edges([0, 0, 1], [(0, 1)]), "line 2: .* 3 nodes are listed, and 2"),
    "list": ("[1, 2]", "line 2: .* is list, must be an object with nodes and edges"),
    "no graph": ("{}", "line 2: is not a graph in .jsonl"),
    "older key": ('{"nodes": [], "links": []}', "line 2: .* has no 'edges' among nodes, links"),
    "plain nodes": ('{"nodes": [0, 1], "edges": []}', "line 2: .* 'nodes' holds 0, must hold obj"),
    "pairs": ('{"nodes": [], "edges": [[0, 1]]}', r"line 2: .* 'edges' holds \[0, 1\], must hold"),
    "mapping": ('{"nodes": {}, "edges": []}', "line 2: .* 'nodes' is dict, must be a list"),
    "no JSON": ("nonsense", "line 2: is not a graph in .jsonl"),
}


@pytest.mark.parametrize(("line", "message"), LINES.values(), ids=LINES)
def test_other_graphs_of_files_are_refused_with_their_line(tmp_path, line, message):
    file = tmp_path / "graphs.jsonl"
    pair = nx.path_graph(2)
    file.write_text(f"{link(typed(pair) if 'solid' in line else pair)}\n{line}\n")
    with pytest.raises(ValueError, match=message):
        Graphs(str(file), slots=6).load()


def test_a_graph_above_the_limit_is_refused_before_the_others_are_encoded(tmp_path):
    file = tmp_path / "graphs.g6"
    lines = [nx.to_graph6_bytes(one, header=False) for one in (PAIR, nx.path_graph(1001))]
    file.write_bytes(b"".join(lines))
    with pytest.raises(ValueError, match=r"line 2: 1,001 nodes are 501,502 positions, .* 31 GB"):
        Graphs(str(file)).load()


def test_the_memory_of_large_graphs_is_stated():
    assert sequences_of([PAIR], Slots(180)).notes == ()
    (note,) = sequences_of([PAIR], Slots(200)).notes
    assert note.startswith("200 slots: about 1.2 GB for each graph of a batch in training")


def test_the_command_that_trains_on_own_graphs_works(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = [link(nx.cycle_graph(nodes)) for nodes in (3, 4, 5, 4, 3, 5)]
    Path("own.jsonl").write_text("\n".join(lines))
    prepare_command.main(["graphs", "--files", "own.jsonl", "--held-out", "2", "--out", "own"])
    printed = capsys.readouterr().out.partition("train on it: ")[2].partition("\n(")[0]
    words = printed.replace("\\\n", "").split()
    assert words[:3] == ["python", "-m", "recipes.graphs"]
    graphs_command.main([*words[3:], "--steps", "1"])
    assert list(Path("runs/own/samples").iterdir())


def test_molecules_come_back_as_their_canonical_smiles():
    assert smiles_of(map(graph_of, DRUGS)) == canonical(DRUGS)
    ring = graph_of("c1ccccc1")
    assert sorted(kind for *_, kind in ring.edges.data(TYPE)) == ["double"] * 3 + ["single"] * 3
    charged = "C[N+](C)(C)C"
    assert smiles_of([graph_of(charged)]) == [charged]
    crowded = nx.star_graph(5)
    nx.set_node_attributes(crowded, "C", TYPE)
    nx.set_edge_attributes(crowded, "single", TYPE)
    assert smiles_of([crowded]) == [""]


def test_molecules_of_files_are_read(tmp_path):
    file = tmp_path / "drugs.smi"
    file.write_text("\n".join(DRUGS) + "\n\n")
    data = MoleculeGraphs(files=str(file), slots=14).load()
    slots = slots_of(data.make_layout("molecule_graphs", False, {}))
    assert slots.edge_types == BONDS
    assert smiles_of(map(slots.decode, data.ids)) == canonical(DRUGS)
    file.write_text("CCO\nC[N+](C)(C)C\n")
    with pytest.raises(ValueError, match=r"molecule 1, C.*: node 1: has type 'N\+', must be one"):
        MoleculeGraphs(files=str(file)).load()
    file.write_text("CCO\nCCCC\n")
    with pytest.raises(ValueError, match="molecule 1, CCCC: has 4 nodes, must have 2 to 3"):
        MoleculeGraphs(files=str(file), slots=3).load()


# a run, samples, metrics


def test_samples_are_graphs_of_sizes_of_the_data(whole, tmp_path):
    saved = open_saved(whole.output.folder)
    data = open_prepared(whole.data.folder)
    slots = slots_of(saved.layout)
    trained = [int(data.train[row][0]) for row in range(len(data.train))]
    assert dict(saved.layout.contexts) == {
        (size, *[0] * 12): trained.count(size) for size in set(trained)
    }
    file = tmp_path / "samples.g6"
    options = Options(run=str(whole.output.folder), samples=6, out=file)
    texts = generate(options, quiet())
    drawn = [slots.decode(np.array(text.split(), dtype=np.int64)) for text in texts]
    assert {len(one) - 1 for one in drawn} <= set(trained)
    again = nx.read_graph6(file)
    assert all(nx.utils.edges_equal(a.edges, b.edges) for a, b in zip(again, drawn, strict=True))
    part = generate(replace(options, samples=2, out=tmp_path / "samples.png"), quiet())
    assert part == texts[:2], "a sample does not depend on the others"


def pairs_of(documents, row):
    """The types of the pairs of present nodes."""
    return documents[row][~documents.given(row)]


def test_evaluation_measures_the_pairs_and_the_statistics(whole):
    options = Evaluation(run=str(whole.output.folder), samples=5, sampling=FOUR, replicates=1)
    result = evaluate(options, ALONE)
    data = open_prepared(whole.data.folder)
    sizes = [int(data.validation[row][0]) + 1 for row in range(len(data.validation))]
    assert result["protocol"]["tokens"] == sum(n * (n - 1) // 2 for n in sizes)
    assert result["references"]["uniform"] == pytest.approx(np.log(2))
    counts = sum(np.bincount(pairs_of(data.train, row), minlength=2) for row in range(40)) + 0.5
    pairs = np.concatenate([pairs_of(data.validation, row) for row in range(20)])
    unigram = -np.log(counts / counts.sum())[pairs].mean()
    assert result["references"]["unigram"] == pytest.approx(unigram, rel=1e-5)
    assert result["by_field"].keys() == {"edge"}, "sizes, and nodes of one type, are given"
    metrics = result["samples"]["metrics"]
    assert metrics["degree_mmd"] > metrics["degree_mmd_of_train"] > 0
    assert metrics["connected_of_data"] == 1 and "validity" not in metrics


def test_molecules_are_trained_and_measured(tmp_path):
    file = tmp_path / "drugs.smi"
    chains = ["C" * n + "O" * (n % 2) for n in range(2, 8)]
    file.write_text("\n".join(chains * 5) + "\n")
    source = {"kind": "molecule_graphs", "files": str(file), "slots": 9}
    corpus = SymbolCorpus(source=source, held_out=6)
    run = run_in(tmp_path, "run", corpus, 46)
    train(run)
    path = str(run.output.folder)
    result = evaluate(Evaluation(run=path, samples=4, sampling=FOUR, replicates=1), ALONE)
    assert {"validity", "qed_distance", "orbit_mmd"} < result["samples"]["metrics"].keys()
    generate(Options(run=path, samples=3, sampling=FOUR, out=tmp_path / "s.smi"), quiet())
    assert len((tmp_path / "s.smi").read_text().split("\n")) == 4
    generate(Options(run=path, samples=3, sampling=FOUR, out=tmp_path / "s.png"), quiet())


def test_recipes_have_the_length_of_their_graphs():
    for name, (_, one) in recipes(SMOKE).items():
        slots = 20 if "communities" in name else 27
        assert one.data.length == len(Slots(slots).positions)
        assert one.output.folder.name == name


LAYOUT = Layout(kind="lines")
PAIR = nx.path_graph(2)
GRAPHS = sequences_of([PAIR], Slots(3)).make_layout("graphs", False, {7: 1})


def test_bad_values_are_refused():
    refused_with(check_graph_file=check_graph_file, Metrics=Metrics, Path=Path)("""
        Communities(count=0) | ValueError | count=0: must be at least 1
        Communities(slots=11) | ValueError | slots=11: must be at least 12
        Communities(slots=3000) | ValueError | slots=3000: 3,000 nodes are 4,501,501 positions,
            4,498,500 of them pairs; one graph would take about 276 GB in training .* must be at
            most 1,000 nodes
        Graphs('none.g6', slots=3000) | ValueError | slots=3000: 3,000 nodes are 4,501,501
        Graphs('none.g6', slots=1) | ValueError | slots=1: must be at least 2
        MoleculeGraphs(slots=3000) | ValueError | slots=3000: 3,000 nodes are 4,501,501
        MoleculeGraphs(split='all') | ValueError | split='all': must be train, test
            or test_scaffolds
        graph_of('C1') | ValueError | 'C1' is not the SMILES of a molecule
        sequences_of([], Slots(3)) | ValueError | graphs is empty: must have at least one
        draw([]) | ValueError | graphs is empty: must have at least one
        draw([PAIR], columns=0) | ValueError | columns=0: must be at least 1
        draw([PAIR], captions=['a', 'b']) | ValueError | captions has 2 entries, must have 1
        check_graph_file(Path('x.smi'), GRAPHS) | ValueError | path=x.smi: samples are graphs, must
            end in .png, .g6
        Metrics().check(type('Text', (), {'layout': LAYOUT})()) | ValueError | the data must be
            graphs
""")


def test_drawings_have_the_size_of_their_grid(tmp_path):
    figure = draw([PAIR] * 3, columns=2, captions=["a", "b", "c"])
    assert figure.get_size_inches().tolist() == [3.2, 3.4]
    write_graphs(tmp_path / "pair.png", np.array([[1, 0, 0, 0, 1, 0, 0]]), GRAPHS)
    assert (tmp_path / "pair.png").stat().st_size > 1000
