"""Pictures of samples and of noisy states, films, the page with a picture, and metrics of
pictures.
"""

import json

import numpy as np
import pytest
import torch
from browser import CHROMIUM, Browser
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from refusals import refuses

import ddlib as dd
from ddlib.contrib import Event, Film, Filmed, Frame, Mark
from recipes.domains.pictures import metrics as metrics
from recipes.domains.pictures.drawing import MASK, Picture, film, grid, palette, pixels
from recipes.visualization.page import Spelt, pack, page
from recipes.visualization.saving import trajectory

V = 8
VALUES = tuple(range(0, 256, 36))[:V]
TREE = dd.presets.hdlm_levels([[0, 0, 0, 0, 1, 1, 1, 1], [0, 0]])
BLUR = dd.processes.Hierarchical(dd.hierarchies.Blur(V, [1.0]), dd.schedules.Linear())


def test_tokens_are_grey_clusters_tinted_and_the_mask_violet():
    plain = palette(VALUES)
    assert plain.shape == (V + 1, 3) and tuple(plain[-1]) == MASK
    assert (plain[:-1] == np.array(VALUES)[:, None]).all()
    for process in (TREE, BLUR, dd.processes.Masked(V, dd.schedules.Linear())):
        colours = palette(VALUES, process)
        assert colours.shape == (process.num_states, 3) and (colours[:V] == plain[:V]).all()
        assert tuple(colours[-1]) == MASK
        clusters = colours[V:-1].astype(int)
        assert (np.ptp(clusters, axis=1) > 20).all()  # none is grey
        assert (
            len(clusters) < 2 or clusters[0].sum() < clusters[-1 if process is BLUR else 1].sum()
        )  # the lighter
    assert palette(VALUES, dd.processes.Uniform(V, dd.schedules.Linear())).shape == (V, 3)


test_wrong_values_are_named = refuses(r"""
    palette((), None) | ValueError | values=\[\]: must be one or more numbers from 0 to 255
    palette((0, 256), None) | ValueError | from 0 to 255
    palette((-1, 0), None) | ValueError | from 0 to 255
    palette((0, 255), TREE) | ValueError | values has 2 entries, must have 8: one for each token
""")


def test_positions_are_in_row_major_order_and_channels_last():
    grey = pixels(np.array([[0, 1, 2, 3, 4, V]]), (2, 3), palette(VALUES))
    assert (
        grey.shape == (1, 2, 3, 3)
        and tuple(grey[0, 1, 2]) == MASK
        and (grey[0, 1, 1] == VALUES[4]).all()
    )
    assert (pixels(torch.tensor([[0, 1, 2, 3, 4, V]]), (2, 3, 1), palette(VALUES)) == grey).all()
    colour = pixels(np.array([[7, 0, 0, 0, 7, V]]), (1, 2, 3), palette(VALUES))
    assert colour.tolist() == [[[[VALUES[7], 0, 0], [0, VALUES[7], MASK[2]]]]]


@pytest.mark.parametrize(
    "ids, shape, fault",
    [
        (np.zeros((1, 5), int), (2, 3), r"ids have the shape \(1, 5\), must be \(N, 6\)"),
        (np.zeros(6, int), (2, 3), r"ids have the shape \(6,\)"),
        (np.zeros((1, 6)), (2, 3), "ids are float64, must be integers"),
        (np.full((1, 6), V + 1), (2, 3), f"ids contain the state {V + 1}, must be in 0..{V}"),
        (np.full((1, 6), -1), (2, 3), "ids contain the state -1"),
        (
            np.zeros((1, 6), int),
            (6,),
            r"shape=\(6,\): must be \(H, W\), \(H, W, 1\) or \(H, W, 3\)",
        ),
        (np.zeros((1, 6), int), (3, 1, 2), r"shape=\(3, 1, 2\)"),
        (np.zeros((1, 0), int), (0, 3), r"shape=\(0, 3\)"),
    ],
)
def test_the_error_names_a_file_that_is_no_picture(ids, shape, fault):
    with pytest.raises(ValueError, match=fault):
        pixels(ids, shape, palette(VALUES))


def test_a_grid_holds_every_sample_enlarged():
    ids = np.random.default_rng(0).integers(0, V, (5, 6))
    sheet = np.asarray(grid(ids, (2, 3), VALUES, columns=3, scale=4))
    assert sheet.shape == (2 * (8 + 4) + 4, 3 * (12 + 4) + 4, 3)
    for number in range(5):
        top = 4 + number // 3 * 12
        left = 4 + number % 3 * 16
        part = sheet[top : top + 8, left : left + 12, 0]
        assert (part == np.array(VALUES)[ids[number].reshape(2, 3)].repeat(4, 0).repeat(4, 1)).all()
    assert (sheet[16:24, 36:48] == 255).all()  # the sixth place is empty
    assert grid(ids[:1], (2, 3), VALUES).height >= 160 and grid(ids, (2, 3), VALUES).height >= 80
    assert grid(ids, (2, 3), VALUES, columns=99, scale=1).width == 5 * (3 + 2) + 2


test_a_grid_without_samples_or_places_is_refused = refuses(r"""
    grid(np.zeros((0, 6), int), (2, 3), VALUES) | ValueError | there are no samples
    grid(np.zeros((1, 6), int), (2, 3), VALUES, columns=0) | ValueError
        | columns=0, scale=80: must be at least 1
    grid(np.zeros((1, 6), int), (2, 3), VALUES, scale=0) | ValueError
        | columns=1, scale=0: must be at least 1
""")


@pytest.mark.parametrize("name", ["film.png", "film.apng", "film.gif"])
@pytest.mark.parametrize("process", [None, TREE])
def test_a_film_shows_every_state_exactly(tmp_path, name, process):
    top = V + 1 if process is None else process.num_states
    states = np.random.default_rng(0).integers(0, top, (6, 2, 6))
    states[3] = states[2]  # a step without a change is a frame too
    path = tmp_path / name
    film(
        list(map(torch.tensor, states)), (2, 3), VALUES, path, process=process, seconds=1.2, pause=3
    )
    with Image.open(path) as opened:
        assert opened.info["loop"] == 0
        times = []
        shown = []
        for number in range(opened.n_frames):
            opened.seek(number)
            times.append(opened.info["duration"])
            shown.append(np.asarray(opened.convert("RGB")))
    assert sum(times) == 5 * 200 + 3000 and times[-1] == 3000
    wanted = [np.asarray(grid(frame, (2, 3), VALUES, process=process)) for frame in states]
    del wanted[3]  # Pillow joins equal frames, and adds their times
    assert len(shown) == len(wanted) and all(
        (left == right).all() for left, right in zip(shown, wanted, strict=True)
    )


def test_a_film_of_many_colours_as_a_gif(tmp_path):
    values = tuple(range(256))
    process = dd.processes.Hierarchical(dd.hierarchies.Blur(256, [20.0]), dd.schedules.Linear())
    states = np.arange(513)[None, None]
    film(states, (27, 19), values, tmp_path / "film.gif", process=process)
    with Image.open(tmp_path / "film.gif") as opened:
        shown = np.asarray(opened.convert("RGB")).astype(int)
    assert np.abs(shown - np.asarray(grid(states[0], (27, 19), values, process=process))).mean() < 4


@pytest.mark.parametrize(
    "states, options, fault",
    [
        ([], {}, "states: must be one or more arrays"),
        (
            [np.zeros((1, 6), int), np.zeros((2, 6), int)],
            {},
            r"arrays \(N, L\) of one shape, got 2",
        ),
        (
            [np.zeros((1, 6), int)],
            {"path": "film.mp4"},
            "path=.*film.mp4: must end in .png or .gif",
        ),
        ([np.zeros((1, 6), int)], {"seconds": -1}, "seconds=-1, pause=2.0: must be 0 or more"),
    ],
)
def test_the_error_names_a_file_that_is_no_film(tmp_path, states, options, fault):
    with pytest.raises(ValueError, match=fault):
        film(states, (2, 3), VALUES, **{"path": tmp_path / "film.png", **options})


def filmed(process, steps=6, samples=2, length=6):
    recorder = Filmed(dd.samplers.Ancestral(), samples)
    network = lambda z, t: torch.zeros(*z.shape, V)  # noqa: E731
    generator = torch.Generator().manual_seed(0)
    how = dict(on_step=recorder.on_step, generator=generator)
    drawn = dd.sample(process, network, (samples, length), recorder, steps, **how)
    return recorder.end(drawn), drawn


def test_a_trajectory_is_that_of_the_recorded_samples():
    texts, drawn = filmed(TREE)
    states = trajectory(texts)
    assert states.shape == (7, 2, 6) and (states[-1] == drawn.numpy()).all()
    for number, text in enumerate(texts):
        for k in range(len(text.frames) + 1):
            assert states[k, number].tolist() == text.states(k)
    early = trajectory(
        [*texts, Film([3] * 6, [], [Frame(0.5, 1, [Event(0, 1, Mark.DOWN, None, ())])])]
    )
    assert (early[1:, 2] == [1, 3, 3, 3, 3, 3]).all()
    for bad in ([], [texts[0], texts[0].first(3)]):
        with pytest.raises(ValueError, match="must be one or more samples of one length"):
            trajectory(bad)


def test_the_page_gets_the_colours_of_its_states():
    texts, _ = filmed(TREE)
    packed = pack(texts, [6, 6], TREE, lambda state: Spelt(f"s{state}"), Picture((2, 3), VALUES))
    colours = palette(VALUES, TREE)
    states = [int(name[1:]) for name, _, _ in packed["states"]]
    assert packed["picture"]["shape"] == [2, 3, 1]
    assert packed["picture"]["colours"] == colours[states].tolist()
    legend = packed["picture"]["legend"]
    assert legend[-1] == list(MASK) and len(legend) == len(packed["levels"]) == 4
    assert packed["levels"][0] == ["token", V]
    assert "picture" not in pack(texts, [6, 6], TREE, lambda state: Spelt("s"))
    json.dumps(packed)
    with pytest.raises(
        ValueError, match=r"shape=\(2, 2\): a sample has 6 positions, must have \(2, 2, 1\)"
    ):
        pack(texts, [6, 6], TREE, lambda state: Spelt("s"), Picture((2, 2), VALUES))


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path: apt-get install chromium")
@pytest.mark.parametrize("shape", [(2, 3), (1, 2, 3)])
def test_the_page_draws_the_picture(tmp_path, shape):
    texts, _ = filmed(TREE)
    packed = pack(texts, [6, 6], TREE, lambda state: Spelt(f"s{state}"), Picture(shape, VALUES))
    where = tmp_path / "page.html"
    where.write_text(page("picture", {}, packed), encoding="utf-8")
    cells = "[...document.querySelectorAll('#text span')]"
    with Browser(tmp_path / "profile") as browser:
        browser.open(where.as_uri())
        columns = browser.run("getComputedStyle(text).gridTemplateColumns.split(' ').length")
        assert columns == (3 if len(shape) == 2 else 6)
        for step in (0, 3, 6):
            browser.run(f"(step.value = {step}, step.dispatchEvent(new Event('input')), 0)")
            shown = browser.run(f"{cells}.map(s => getComputedStyle(s).backgroundColor)")
            wanted = pixels(
                np.array([texts[0].states(step)]), shape, palette(VALUES, TREE)
            ).reshape(-1, 3)
            wanted = wanted.repeat(6 // len(wanted), 0)  # the cells of a pixel's channels
            assert shown == [f"rgb({r}, {g}, {b})" for r, g, b in wanted]
        assert browser.run(
            f"{cells}.every(s => s.textContent === '' && s.getBoundingClientRect().width > 10)"
        )
        browser.run("(document.getElementById('text').focus(), 0)")
        browser.key("ArrowRight", 39)
        browser.key("ArrowDown", 40)
        named = (
            "position 3 (row 1, column 0)"
            if len(shape) == 2
            else "position 5 (row 0, column 1, channel 2)"
        )
        assert named in browser.run("detail.textContent")
        assert browser.wrong() == []


features = arrays(
    np.float64, st.tuples(st.integers(2, 12), st.just(3)), elements=st.floats(-10, 10, width=32)
)


@settings(deadline=None, max_examples=60)
@given(features, features, st.randoms(use_true_random=False))
def test_frechet_is_a_symmetric_distance_of_sets(left, right, random):
    scale = 1 + np.square(left).sum() + np.square(right).sum()
    assert metrics.frechet(left, left) <= 1e-6 * scale
    forth = metrics.frechet(left, right)
    assert forth >= 0 and abs(forth - metrics.frechet(right, left)) <= 1e-6 * scale
    order = list(range(len(left)))
    random.shuffle(order)
    assert abs(metrics.frechet(left[order], right) - forth) <= 1e-6 * scale
    shift = np.array([1.0, 2.0, 3.0])
    assert metrics.frechet(left, left + shift) == pytest.approx(14, abs=1e-6 * scale)


def test_frechet_of_known_distributions():
    rng = np.random.default_rng(0)
    base = rng.normal(size=(5000, 4))
    base = (base - base.mean(0)) @ np.linalg.inv(
        np.linalg.cholesky(np.cov(base.T))
    ).T  # exactly N(0, 1)
    # |0|² + tr(1 + s² - 2s) for each axis
    assert metrics.frechet(base, base * [1, 2, 3, 0]) == pytest.approx(0 + 1 + 4 + 1)
    turn = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    wide = base * [1, 2, 3, 4]
    assert metrics.frechet(wide @ turn, base @ turn) == pytest.approx(0 + 1 + 4 + 9)
    assert metrics.frechet(base[:, :1], 3 * base[:, :1] + 1) == pytest.approx(4 + 1)


def test_diversity_is_the_mean_distance_of_pairs():
    assert metrics.diversity(np.ones((5, 3))) == 0
    assert metrics.diversity(np.array([[0.0], [3.0], [6.0]])) == pytest.approx((3 + 6 + 3) / 3)
    found = np.random.default_rng(0).normal(size=(20, 3))
    assert metrics.diversity(found[::-1]) == pytest.approx(metrics.diversity(found))


test_wrong_features_are_named = refuses(r"""
    metrics.frechet(np.ones((3, 2)), np.ones((3, 4))) | ValueError | shapes \(3, 2\) and \(3, 4\)
    metrics.frechet(np.ones((1, 2)), np.ones((3, 2))) | ValueError
        | there are 1 and 3 samples: must be at least 2
    metrics.frechet(np.full((3, 2), np.nan), np.ones((3, 2))) | ValueError | features must be finite
    metrics.diversity(np.ones((1, 2))) | ValueError | with N at least 2
    metrics.diversity(np.full((2, 2), np.inf)) | ValueError | features must be finite
    metrics.Classifier((4,), VALUES, 2) | ValueError | shape=\(4,\): must be \(H, W\)
    metrics.Classifier((4, 4), VALUES, 1) | ValueError | classes=1: must be at least 2
    metrics.Classifier((4, 4), (), 2) | ValueError | values is empty
""")


def stripes(count, seed=0):
    """Pictures 6 x 6 of bright columns (class 0) or rows (class 1)."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    lines = rng.integers(0, V // 2, (count, 6)) + rng.integers(0, 2, (count, 6)) * (V // 2)
    ids = np.where(labels[:, None, None] == 0, lines[:, None, :], lines[:, :, None])
    return np.broadcast_to(ids, (count, 6, 6)).reshape(count, 36), labels


@pytest.fixture(scope="module")
def classifier():
    ids, labels = stripes(400)
    return metrics.train_classifier(ids, labels, (6, 6), VALUES, epochs=6, batch=32)


def test_the_classifier_learns_and_is_reproducible(classifier):
    ids, labels = stripes(200, seed=1)
    assert classifier.accuracy > 0.9 and metrics.class_accuracy(classifier, ids, labels) > 0.9
    state = torch.random.get_rng_state()
    again = metrics.train_classifier(*stripes(400), (6, 6), VALUES, epochs=6, batch=32)
    assert torch.equal(state, torch.random.get_rng_state())
    assert (again.features(ids) == classifier.features(torch.tensor(ids))).all()
    assert not any(parameter.requires_grad for parameter in classifier.parameters())


def test_worse_samples_have_a_larger_distance(classifier):
    data, labels = stripes(200, seed=1)
    found = [metrics.measure(classifier, stripes(200, seed=2)[0], data)]
    noise = np.random.default_rng(0).integers(0, V, data.shape)
    for share in (0.2, 1.0):
        mixed = np.where(np.random.default_rng(1).random(data.shape) < share, noise, data)
        found.append(metrics.measure(classifier, mixed, data, labels))
    distances = [one["classifier_frechet"] for one in found]
    assert (
        distances == sorted(distances) and distances[0] < 3 * found[0]["classifier_frechet_of_data"]
    )
    assert (
        "class_accuracy" not in found[0] and found[1]["class_accuracy"] > found[2]["class_accuracy"]
    )
    assert metrics.measure(classifier, data, data)["classifier_frechet"] < 1e-6
    one = np.repeat(data[:1], 50, 0)
    collapsed = metrics.measure(classifier, one, data)
    assert collapsed["diversity"] < 1e-6 and collapsed["class_entropy"] == 0.0
    assert collapsed["classifier_frechet"] > distances[0]


@pytest.mark.parametrize(
    "change, fault",
    [
        ({"ids": np.zeros((10, 35), int)}, r"ids have the shape \(10, 35\), must be \(N, 36\)"),
        ({"ids": np.zeros((0, 36), int)}, "with N at least 1"),
        ({"ids": np.zeros((10, 36))}, "ids are float64, must be integers"),
        (
            {"ids": np.eye(10, 36, 2, dtype=int) * V},
            f"picture 0 contains id {V} at 2, must be in 0..{V - 1}",
        ),
        ({"labels": np.zeros(9, int)}, r"labels have the shape \(9,\), must be \(10,\)"),
        ({"labels": np.full(10, -1)}, r"labels are in -1..-1, must be in 0.."),
        ({"labels": np.zeros(10, int)}, "classes=1: must be at least 2"),
        ({"labels": np.full(10, 2), "classes": 2}, "labels are in 2..2, must be in 0..1"),
        ({"epochs": 0}, "epochs=0, batch=128: must be at least 1 and 2"),
        ({"held_out": 0.0}, "held_out=0.0: takes 0 of 10 pictures"),
        ({"held_out": 0.9}, "held_out=0.9: takes 9 of 10 pictures"),
    ],
)
def test_wrong_training_data_are_named(change, fault):
    values = {
        "ids": np.zeros((10, 36), int),
        "labels": np.arange(10) % 2,
        "shape": (6, 6),
        "values": VALUES,
    }
    with pytest.raises(ValueError, match=fault):
        metrics.train_classifier(**(values | change))


def test_wrong_labels_of_samples_are_named(classifier):
    ids, _ = stripes(4)
    for labels, fault in (
        (np.zeros(3, int), "one for each picture"),
        (np.full(4, 2), "labels are in 2..2, must be in 0..1"),
    ):
        with pytest.raises(ValueError, match=fault):
            metrics.class_accuracy(classifier, ids, labels)
    with pytest.raises(ValueError, match="data has 3 pictures, must have at least 4"):
        metrics.measure(classifier, ids, ids[:3])
