"""Pictures: the data of every line, cell and label are those of the process."""

import importlib
import subprocess
import sys
from itertools import combinations

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from refusals import refuses
from zoo.processes import F64, RING, Plain
from zoo.trees import XI_TREE

import ddlib as dd
from ddlib import plot
from ddlib.plot import colors, curves
from ddlib.plot.colors import _CLUSTERS
from ddlib.plot.tree_diagram import edge_text
from ddlib.processes import GIDD, Hierarchical, RateMatrix, Uniform
from ddlib.schedules import Cosine, Linear

UNEVEN = torch.tensor([[-1.0, 1.0, 0.0], [0.5, -2.0, 1.5], [0.0, 3.0, -3.0]])
WITHOUT_LEVELS = {
    "gidd": GIDD(5, 0.2),
    "masked gidd": GIDD(5, 0.0),
    "uniform": Uniform(4, Cosine()),
    "ring": RateMatrix(RING, Linear()),
    "ring with two states beyond the words": RateMatrix(RING, Linear(), vocab_size=2),
    "uneven": RateMatrix(UNEVEN, Linear()),
    "a user's own": Plain(Hierarchical(XI_TREE, Cosine())),
}
NAMES = ["own token", "another token", "mask"]


def lines(axes):
    return {line.get_label(): np.array(line.get_data()) for line in axes.get_lines()}


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_the_papers_two_figures(gamma):
    """Curves of the process, whose formulas are those of test_numerics.py, which are the paper's
    but for w_m.
    """
    process = dd.presets.hdlm([0, 0, 1], gamma=gamma)
    drawn = lines(plot.occupancies(process))
    weights = lines(plot.weights(process))
    assert list(drawn) == ["token", "cluster", "mask"] and list(weights) == [
        "cluster → token",
        "mask → cluster",
    ]
    for level, (t, values) in enumerate(drawn.values()):
        assert t[0] == 0 and t[-1] == 1 and len(t) == 401
        assert values.tolist() == process.occupancies(torch.from_numpy(t))[:, level].tolist()
    for level, (t, values) in enumerate(weights.values(), start=1):
        assert values.tolist() == process.weights(torch.from_numpy(t))[:, level].tolist()


def test_curves_of_levels_are_those_of_the_process():
    process = Hierarchical(XI_TREE, Cosine())
    drawn = lines(plot.occupancies(process, points=11))
    t = torch.linspace(0, 1, 11, dtype=F64)
    assert list(drawn) == ["token", "cluster 1", "cluster 2", "mask"]
    for i, (_, values) in enumerate(drawn.values()):
        assert values.tolist() == process.occupancies(t)[:, i].tolist()
    drawn = lines(plot.weights(process, points=11, names=["a", "b", "c", "d"]))
    assert list(drawn) == ["b → a", "c → b", "d → c"]
    for i, (_, values) in enumerate(drawn.values(), start=1):
        assert values.tolist() == process.weights(t[1:-1])[:, i].tolist()


def by_enumeration(process, t):
    """Probability of each band, and mean loss weight given it, for a uniformly drawn token.

    Pair by pair.
    """
    time = torch.tensor([t], dtype=F64)
    V = process.vocab_size
    chance, total = torch.zeros(2, 3, dtype=F64)
    for x in range(V):
        probs = process.marginal(torch.tensor([[x]]), time)[0, 0]
        for z in range(process.num_states):
            band = 2 if z >= V else int(z != x)
            chance[band] += probs[z] / V
            if probs[z] > 0:
                weight = process.loss_weight(torch.tensor([[x]]), torch.tensor([[z]]), time)
                total[band] += probs[z] / V * weight[0, 0]
    return chance, total / chance


@pytest.mark.parametrize("name", WITHOUT_LEVELS)
def test_curves_without_levels_are_means_over_tokens_and_states(name):
    process = WITHOUT_LEVELS[name]
    t = torch.tensor([0.1, 0.5, 0.9], dtype=F64)
    shares = curves.occupancy_series(process, t)
    weights = curves.weight_series(process, t)
    beyond = process.num_states - process.vocab_size
    names = [*NAMES[:2], "mask" if beyond == 1 else "no token"][: 2 + (beyond > 0)]
    assert [curve.band.name for curve in shares] == names
    by_name = {curve.band.name: curve.values for curve in weights}
    for k, time in enumerate(t.tolist()):
        chance, mean = by_enumeration(process, time)
        for i, curve in enumerate(shares):
            assert curve.values[k].item() == pytest.approx(chance[i].item(), abs=1e-12)
        for i, band in enumerate(names):
            if band in by_name and chance[i] > 1e-12:
                assert by_name[band][k].item() == pytest.approx(mean[i].item(), rel=1e-9)
            elif band not in by_name:
                assert mean.nan_to_num()[i] == 0


def test_fields_without_common_levels_are_averaged_by_their_positions():
    fields = {"few": Uniform(2, Linear()), "many": GIDD(5, 0.2)}
    process = dd.processes.Product(fields, ["few", "many", "many"])
    t = torch.tensor([0.1, 0.9], dtype=F64)
    shares = [curve.values for curve in curves.occupancy_series(process, t)]
    weights = [curve.values for curve in curves.weight_series(process, t)]
    torch.testing.assert_close(sum(shares), torch.ones(2, dtype=F64))
    for band in range(3):
        own = [curves.occupancy_series(field, t)[band:] for field in fields.values()]
        masses = [
            share * curve[0].values
            for share, curve in zip((1 / 3, 2 / 3), own, strict=True)
            if curve
        ]
        torch.testing.assert_close(shares[band], sum(masses))
        each = [curves.weight_series(field, t)[band:] for field in fields.values()]
        total = sum(
            mass * curve[0].values
            for mass, curve in zip(masses, [one for one in each if one], strict=True)
        )
        torch.testing.assert_close(weights[band], total / sum(masses))
    states = process.tokens_as_states(torch.tensor([[1, 4, 0]]))
    assert colors.band_of(process, states, states[0]).tolist() == [[0, 0, 0]]


def test_a_weight_that_is_always_zero_is_not_drawn():
    assert list(lines(plot.weights(GIDD(5, 0.0)))) == ["mask"]
    assert list(lines(plot.weights(Uniform(4, Linear())))) == NAMES[:2]


def test_large_vocabularies_are_averaged_over_a_sample():
    t = torch.tensor([0.3], dtype=F64)
    process = GIDD(50257, 0.2)
    own, other, mask = (float(curve.values) for curve in curves.occupancy_series(process, t))
    probs = process.marginal(torch.tensor([[7]]), t)[0, 0]
    assert (own, mask) == pytest.approx((float(probs[7]), float(probs[-1])))
    assert own + other + mask == pytest.approx(1, abs=1e-12)


def test_the_curve_of_a_schedule_is_alpha():
    (label, (t, alpha)), *rest = lines(plot.schedule_curve(Cosine(), points=5)).items()
    assert label == "alpha" and not rest
    np.testing.assert_allclose(alpha, np.cos(np.pi * t / 2), atol=1e-12)


@pytest.mark.parametrize("backwards", [True, False])
def test_a_trajectory_shows_levels_at_their_times(backwards):
    process = Hierarchical(XI_TREE, Linear())
    times = torch.tensor([1.0, 0.6, 0.2, 0.0], dtype=F64)
    states = torch.tensor([[12, 12], [10, 12], [8, 7], [5, 2]])
    if not backwards:
        times = times.flip(0)
        states = states.flip(0)
    axes = plot.trajectory(process, times, states)
    mesh = axes.collections[0]
    assert np.asarray(mesh.get_array()).tolist() == process.level_of(states).tolist()
    edges = [1.0, 0.8, 0.4, 0.1, 0.0]
    assert mesh.get_coordinates()[:, 0, 1].tolist() == pytest.approx(
        edges if backwards else edges[::-1]
    )
    colours = [matplotlib.colors.to_hex(colour).upper() for colour in mesh.cmap.colors]
    assert colours == [band.colour.upper() for band in colors.bands(process)]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "token",
        "cluster 1",
        "cluster 2",
        "mask",
    ]


def test_without_levels_a_trajectory_is_drawn_by_its_last_tokens():
    process = GIDD(4, 0.3)
    times = torch.tensor([0.0, 0.5, 1.0])
    states = torch.tensor([[1, 2, 0], [1, 3, 4], [0, 4, 4]])
    mesh = plot.trajectory(process, times, states).collections[0]
    assert np.asarray(mesh.get_array()).tolist() == [[0, 0, 0], [0, 1, 2], [1, 2, 2]]


def test_a_trajectory_as_text():
    process = dd.presets.hdlm([0, 0, 1])
    times = torch.tensor([1.0, 0.25])
    states = torch.tensor([[5, 3, 5], [2, 1, 4]])
    assert plot.trajectory_text(
        process, times, states, members=[["cat", "dog", "ivy"]]
    ).splitlines() == [
        "t = 1.000  mask  c0   mask",
        "t = 0.250  ivy   dog  c1",
    ]


def placed(axes):
    """Texts of the tree by their place (column, line)."""
    return {
        text.get_position(): text.get_text()
        for text in axes.texts
        if text.get_transform() == axes.transData
    }


def test_a_small_tree_shows_every_member_under_its_parent():
    tree = dd.hierarchies.Tree([[0, 1, 0, 1, 2], [0, 0, 1]], xi=[0.9, 1.0], speed=[2.0, 1.0, 0.5])
    axes = plot.hierarchy(
        tree, names=["token", "kind", "realm", "mask"], members=[list("vwxyz"), ["k", "l", "m"]]
    )
    assert placed(axes) == {
        (3, 0): "v",
        (3, 1): "x",
        (3, 2): "w",
        (3, 3): "y",
        (3, 4): "z",
        (2, 0.5): "k",
        (2, 2.5): "l",
        (2, 4): "m",
        (1, 1.5): "cc0",
        (1, 4): "cc1",
        (0, 2.75): "mask",
    }
    ends = {
        (tuple(x[[0, -1]]), tuple(y[[0, -1]]))
        for x, y in (line.get_data() for line in axes.get_lines())
    }
    assert len(ends) == 10 and ((2, 3), (2.5, 3)) in ends and ((0, 1), (2.75, 4)) in ends
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [
        "token\n5",
        "kind\n3",
        "realm\n2",
        "mask\n1",
    ]
    assert [edge_text(tree, level) for level in range(3)] == ["speed 2, xi 0.9", "", "speed 0.5"]
    assert {"speed 2\nxi 0.9", "speed 0.5"} <= {text.get_text() for text in axes.texts}


def test_the_picture_of_a_large_tree_counts_omitted_states():
    tree = dd.hierarchies.Tree([torch.arange(1000) % 20])
    texts = list(placed(plot.hierarchy(tree, most=15)).values())
    assert texts.count("+47") == 3 and "+17" in texts and "mask (1,000)" in texts
    assert [text for text in texts if text.startswith("c")] == ["c0 (50)", "c1 (50)", "c2 (50)"]
    assert [text for text in texts if text.startswith("w")] == [
        f"w{i}" for i in (0, 20, 40, 1, 21, 41, 2, 22, 42)
    ]


def test_axes_are_used_when_given_and_made_when_not():
    figure, given = plot.panels(2, 3)
    assert len(given) == 6 and isinstance(figure, Figure)
    process = dd.presets.hdlm([0, 0, 1])
    tree = dd.hierarchies.Flat(3)
    times = torch.tensor([0.0, 1.0])
    states = torch.tensor([[0], [5]])
    settings = dict(matplotlib.rcParams)
    for axes in (given[0], None):
        for made in (
            plot.occupancies(process, axes),
            plot.weights(process, axes),
            plot.schedule_curve(Linear(), axes),
            plot.hierarchy(tree, axes),
            plot.trajectory(process, times, states, axes),
        ):
            assert (made is given[0]) == (axes is not None)
            assert isinstance(made.figure, Figure)
    assert dict(matplotlib.rcParams) == settings


def test_matplotlib_is_imported_late_and_pyplot_never():
    script = (
        "import sys, ddlib as dd; from ddlib import plot\n"
        "print('matplotlib' in sys.modules)\n"
        "plot.occupancies(dd.presets.mdlm(3)); print('matplotlib' in sys.modules, "
        "'matplotlib.pyplot' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True", "False"]


def test_without_matplotlib_the_error_names_the_package_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'ddlib\[plot\]'"):
        plot.schedule_curve(Linear())
    process = dd.presets.mdlm(3)
    assert (
        plot.trajectory_text(process, torch.tensor([1.0]), torch.tensor([[3]])) == "t = 1.000  mask"
    )


TWO = torch.tensor([0.0, 1.0])


def test_seven_levels_of_clusters_have_names_and_the_first_six_colours_of_their_own():
    kinds = colors.bands(
        dd.hierarchies.Tree([torch.arange(n) // 2 for n in (256, 128, 64, 32, 16, 8, 4)])
    )
    assert [kind.name for kind in kinds] == [
        "token",
        *(f"cluster {i}" for i in range(1, 8)),
        "mask",
    ]
    assert (
        len({kind.colour for kind in (*kinds[:7], kinds[-1])}) == 8
        and kinds[7].colour == kinds[1].colour
    )


test_bad_input_is_named = refuses(r"""
    plot.occupancies(Masked(3, Linear()), names=["a"]) | ValueError
        | names has 1 entries, must have 2
    plot.weights(Masked(3, Linear()), points=2) | ValueError | points is 2, must be at least 3
    colors.bands(Linear()) | TypeError | neither a process nor a hierarchy
    plot.hierarchy(XI_TREE, members=[["a"]]) | ValueError
        | members\[0\] has 1 names, level 0 has 6 members
    colors.state_names(XI_TREE, [[]] * 5)
        | ValueError | members has 5 entries, must have at most 4: the tokens, then each level above
    plot.hierarchy(XI_TREE, most=0) | ValueError | most is 0, must be at least 1
    plot.trajectory(Masked(3, Linear()), TWO, torch.tensor([[0], [4]])) | ValueError
        | states holds 4
    plot.trajectory(Masked(3, Linear()), torch.zeros(2), torch.tensor([[0], [3]]))
        | ValueError | times must be strictly increasing or decreasing
    plot.trajectory(Masked(3, Linear()), TWO, torch.tensor([[0]]))
        | ValueError | states has 1 rows for 2 times
    plot.trajectory_text(Masked(3, Linear()), TWO, torch.tensor([[0]])) | ValueError
        | states has 1 rows
    dd.plot.trajectories.image(TWO, torch.tensor([[0]]), colors.bands(XI_TREE)) | ValueError
        | values has 1 rows for 2 times
""")


# Machado, Oliveira & Fernandes, "A physiologically-based model for simulation of color vision
# deficiency" (2009).
SIGHT = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def cielab(colour, sight):
    value = np.array(matplotlib.colors.to_rgb(colour))
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    to_xyz = [
        [0.4339, 0.3763, 0.1898],
        [0.2126, 0.7152, 0.0722],
        [0.0177, 0.1095, 0.8728],
    ]  # over the white point
    x, y, z = np.cbrt(np.array(to_xyz) @ np.clip(np.array(sight) @ linear, 1e-4, 1))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHT)
def test_colours_are_distinct_for_colour_blind_readers(sight):
    """A CIELAB distance of 2.3 is just noticeable (Mahy et al., 1994)."""
    seen = [cielab(colour, SIGHT[sight]) for colour in (plot.BLUE, *_CLUSTERS, plot.DARK)]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 12


@pytest.mark.parametrize("script", ["figures", "figures_concepts"])
def test_the_figures_of_the_documentation(script, tmp_path):
    module = importlib.import_module(script)
    for name, draw in module.FIGURES.items():
        draw(tmp_path / name)
        for path in (tmp_path / name, module.IMAGES / name):
            assert (
                path.read_bytes().startswith(b"\x89PNG") and 10_000 < path.stat().st_size < 150_000
            )


def test_a_cluster_that_is_no_most_likely_parent_has_a_line():
    soft = dd.hierarchies.Soft(torch.tensor([[0.6, 0.4], [0.7, 0.3], [0.8, 0.2]], dtype=F64))
    assert {"c0", "c1"} <= {text.split(" ")[0] for text in placed(plot.hierarchy(soft)).values()}


def test_only_the_top_level_is_called_mask():
    assert colors.state_names(dd.presets.hdlm([0, 0, 0])) == ["w0", "w1", "w2", "c0", "mask"]
