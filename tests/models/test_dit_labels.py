"""DiT with a label: the condition of every call, its dropout, guidance, refusals, files."""

import json

import pytest
import torch
from cases import caches
from refusals import refused_with, refuses
from tiny import WORDS, build, inputs, trained
from zoo.trees import ELEVEN_IN_TWO

import ddlib as dd
from ddlib.parameterization.capabilities import Capabilities
from ddlib_models import DiT
from ddlib_models.hf.auto import DiTModel

CLASSES = 4
LABEL = torch.tensor([3, 0, -1])
close = dict(atol=1e-5, rtol=1e-5)


def labelled(**changes):
    return trained(**(dict(num_classes=CLASSES) | changes)).eval()


def clean(z):
    return z % WORDS


@pytest.mark.parametrize("time_conditioned", [True, False])
def test_each_row_has_its_label(time_conditioned):
    model = labelled(time_conditioned=time_conditioned)
    (z, t) = inputs()
    together = model(z, t, label=LABEL)
    for row, label in enumerate(LABEL.tolist()):
        alone = model(z[row : row + 1], t[row : row + 1], label=label)
        torch.testing.assert_close(together[row : row + 1], alone, **close)
    for unlabelled in (-1, 0 * LABEL - 1):
        assert torch.equal(model(z, t), model(z, t, label=unlabelled))
    different = [model(z, t, label=label) for label in (*range(CLASSES), None)]
    for i, one in enumerate(different):
        assert all((one - other).abs().max() > 1e-3 for other in different[:i])


@pytest.mark.parametrize("time_conditioned", [True, False])
def test_the_condition_is_that_of_the_paper(time_conditioned):
    """silu(mlp(t) + e(label)), with the null class in the last row.

    Without times silu(e(label)).
    """
    model = labelled(time_conditioned=time_conditioned)
    (_, t) = inputs()
    added = model.labels.weight[[3, 0, CLASSES]]
    plain = (
        model.time.mlp.register_forward_hook(lambda layer, given, out: out + added)
        if time_conditioned
        else None
    )
    expected = model.time(t) if time_conditioned else torch.nn.functional.silu(added)
    if plain is not None:
        plain.remove()
    classes = model.labels.indices(LABEL, 3, t.device)
    assert classes.tolist() == [3, 0, CLASSES]
    torch.testing.assert_close(model._condition(t, classes, None), expected)


@pytest.mark.parametrize(
    "options", [{}, dict(time_conditioned=False), dict(tied=True), dict(num_clusters=2)]
)
def test_a_fresh_model_depends_on_no_label_and_learns_to(options):
    model = build(num_classes=CLASSES, **options).eval()
    (z, t) = inputs()
    assert torch.equal(model(z, t, label=LABEL), model(z, t))
    plain = build(**options).eval()
    assert torch.equal(plain(z, t), model(z, t)), "and it starts where one without classes does"
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(3):
        optimizer.zero_grad()
        logits = model(z, t, label=LABEL)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), clean(z).flatten()).backward()
        optimizer.step()
    moved = model.labels.weight.grad.abs().amax(-1) > 0
    assert moved.tolist() == [True, False, False, True, True]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("time_conditioned", [True, False])
def test_packed_sequences_have_their_labels(own, time_conditioned):
    model = labelled(time_conditioned=time_conditioned)
    (z, _) = inputs(1, 9)
    offsets = torch.tensor([0, 2, 5, 9])
    label = torch.tensor([1, 3, -1])
    times = torch.rand(1, 9) if own else torch.rand(3)
    together = model(z, times, offsets, label=label)
    for i in range(3):
        part = slice(int(offsets[i]), int(offsets[i + 1]))
        given = times[:, part] if own else times[i : i + 1]
        alone = model(z[:, part], given, label=label[i : i + 1])
        torch.testing.assert_close(together[:, part], alone, **close)
    same = model(z, times, model.pack(offsets), label=2)
    torch.testing.assert_close(same, model(z, times, offsets, label=torch.full((3,), 2)), **close)


@pytest.mark.parametrize("time_conditioned", [True, False])
def test_blocks_and_caches_keep_the_label(time_conditioned):
    model = labelled(block_size=2, time_conditioned=time_conditioned)
    (z, _) = inputs(3, 6)
    x = clean(z)
    t = torch.rand(3, 6)
    whole = torch.cat([x[:, :4], z[:, 4:]], 1), torch.cat([0 * t[:, :4], t[:, 4:]], 1)
    expected = model(*whole, label=LABEL)[:, 4:]
    cache = model.prefill(x[:, 2:4], model.prefill(x[:, :2], label=LABEL), label=LABEL)
    torch.testing.assert_close(
        model.extend(z[:, 4:], t[:, 4:], cache, label=LABEL), expected, **close
    )
    torch.testing.assert_close(model(z, t, clean=x, label=LABEL)[:, 4:], expected, **close)
    conditioned = model.with_label(LABEL)
    last = torch.tensor([[1], [0], [1]])
    torch.testing.assert_close(
        conditioned.extend(z[:, 4:], t[:, 4:], conditioned.prefill(x[:, :4])), expected, **close
    )
    some = model.features_at(z[:, 4:], t[:, 4:], last, cache=cache, label=LABEL)
    features = model.features(z[:, 4:], t[:, 4:], cache=cache, label=LABEL)
    torch.testing.assert_close(some, features.take_along_dim(last[..., None], 1), **close)
    index = torch.tensor([2, 0])
    rows = model.extend(z[index, 4:], t[index, 4:], cache.rows(index), label=LABEL[index])
    torch.testing.assert_close(rows, expected[index], **close)
    refused_with(model=model, z=z, t=t, cache=cache, x=x)(r"""
        model.extend(z[:, 4:], t[:, 4:], cache, label=3) | ValueError |
            cache: has label 0 in row 1, but 3 is given; prefill with the same labels
        model.extend(z[:, 4:], t[:, 4:], cache) | ValueError
            | cache: has label 3 in row 0, but 4 is given
        model.prefill(x[:, 4:], cache, label=1) | ValueError
            | cache: has label 3 in row 0, but 1 is given
    """)


def test_both_heads_have_the_label():
    model = labelled(num_clusters=2)
    (z, t) = inputs()
    logits, clusters = model.with_clusters(z, t, label=LABEL)
    assert torch.equal(logits, model(z, t, label=LABEL)) and not torch.equal(
        clusters, model.with_clusters(z, t)[1]
    )


def test_dropout_in_training_only_by_torchs_generator():
    model = labelled(label_dropout=0.25).train()
    (z, t) = inputs(2000, 1)
    label = torch.arange(2000) % CLASSES
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(model(z, t, label=label))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    model.eval()
    kept = model(z, t, label=label)
    without = model(z, t)
    dropped = (drawn[0] - without).abs().amax((1, 2)) < 1e-5
    torch.testing.assert_close(drawn[0][~dropped], kept[~dropped], **close)
    assert dropped.double().mean().item() == pytest.approx(
        0.25, abs=4 * (0.25 * 0.75 / 2000) ** 0.5
    )


@pytest.mark.parametrize("options", [{}, dict(label_dropout=0.0)])
def test_without_dropout_or_classes_nothing_is_drawn(options):
    model = trained(num_classes=CLASSES * len(options), **options).train()
    (z, t) = inputs()
    state = torch.get_rng_state()
    assert torch.equal(*(model(z, t, label=1 if options else None) for _ in range(2)))
    assert torch.equal(state, torch.get_rng_state())


def test_files_hold_classes_only_where_there_are_some(tmp_path):
    model = labelled(label_dropout=0.3)
    (z, t) = inputs()
    model.save_pretrained(tmp_path / "one")
    config = json.loads((tmp_path / "one" / "config.json").read_text())
    assert (config["num_classes"], config["label_dropout"]) == (CLASSES, 0.3)
    for loaded in (
        DiT.from_pretrained(tmp_path / "one"),
        DiTModel.from_pretrained(tmp_path / "one"),
    ):
        assert torch.equal(loaded(z, t, label=LABEL), model(z, t, label=LABEL))
        assert torch.equal(loaded.with_label(2)(z, t), model(z, t, label=2))
    trained().save_pretrained(tmp_path / "none")
    assert (
        not {"num_classes", "label_dropout"}
        & json.loads((tmp_path / "none" / "config.json").read_text()).keys()
    )


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize("label", [1, torch.tensor([1, 3, 2])])
def test_calls_with_a_label_compile_to_one_graph(label):
    model = labelled()
    (z, t) = inputs()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(z, t, label=label), model(z, t, label=label))
    model.train()
    compiled(z, t, label=label).sum().backward()
    fixed = torch.compile(model.eval().with_label(label).features, fullgraph=True, backend="eager")
    torch.testing.assert_close(fixed(z, t), model.features(z, t, label=label))


def test_a_fixed_label_has_the_capabilities_of_the_model():
    for options in (dict(tree=ELEVEN_IN_TWO), dict(block_size=2), {}):
        model = labelled(**options)
        for fixed in (model.with_label(1), model.with_label(LABEL)):
            ours = Capabilities.of(fixed)
            theirs = Capabilities.of(model)
            for name in (
                "own_times",
                "block_size",
                "caches_blocks",
                "is_split",
                "is_sparse",
                "modules",
            ):
                assert getattr(ours, name) == getattr(theirs, name), name
            assert (ours.tree is None) == (theirs.tree is None)
            z, t = inputs()
            where = torch.tensor([[1], [0], [4]])
            features = fixed.features(z, t)
            assert torch.equal(features, model.features(z, t, label=fixed.label))
            assert torch.equal(fixed(z, t), model.head(features))
            some = features.take_along_dim(where[..., None], 1)
            torch.testing.assert_close(fixed.features_at(z, t, where), some, **close)
            assert all(map(torch.equal, fixed.output_weights(), model.output_weights()))
            if options.get("tree"):
                assert (
                    all(map(torch.equal, fixed.siblings(), model.siblings()))
                    and fixed.tree is model.tree
                )


def test_guidance_and_samplers_take_it():
    process = dd.presets.mdlm(WORDS)
    draw = torch.Generator().manual_seed(0)
    model = labelled(num_states=process.num_states)
    guided = dd.guidance.ClassifierFree(process, model.with_label(3), model, 2.0)
    z = torch.full((2, 5), process.num_states - 1)
    t = torch.rand(2)
    log_c = model(z, t, label=3).log_softmax(-1)
    log_u = model(z, t).log_softmax(-1)
    torch.testing.assert_close(guided(z, t).softmax(-1), (2 * log_c - log_u).softmax(-1), **close)
    assert dd.sample(process, guided, (2, 5), steps=3, generator=draw).shape == (2, 5)
    with torch.no_grad():
        for label in (2, LABEL):
            assert (
                dd.bound(process, model.with_label(label), clean(inputs()[0]), generator=draw)
                .diffusion.isfinite()
                .all()
            )
    # labels of each row are those of the rows alone
    seeds = range(3)
    rows = dd.sample(
        process,
        model.with_label(LABEL),
        (3, 5),
        steps=6,
        controls=[dd.controls.WholeBatch()],
        generator=seeds,
    )
    for row, label in enumerate(LABEL.tolist()):
        alone = dd.sample(process, model.with_label(label), (1, 5), steps=6, generator=[row])
        assert torch.equal(rows[row : row + 1], alone)
    with pytest.raises(ValueError, match=r"label has shape \(3,\): expected \(\d,\).*WholeBatch"):
        dd.sample(process, model.with_label(LABEL), (3, 5), steps=40, generator=seeds)
    blocks = labelled(num_states=process.num_states, block_size=2)
    text = [
        dd.sample(
            process,
            blocks.with_label(2),
            (2, 6),
            steps=3,
            pace=dd.paces.Blocks(2),
            controls=[*caches(keep)],
            generator=seeds[:2],
        )
        for keep in (True, False)
    ]
    assert torch.equal(*text)


test_bad_arguments_are_refused = refuses(r"""
    build(num_classes=-1) | ValueError | num_classes=-1: must be at least 0
    build(num_classes=3, label_dropout=1.0) | ValueError | label_dropout=1\.0: must lie in \[0, 1\)
    build(num_classes=3, label_dropout=-0.1) | ValueError | label_dropout=-0\.1
    build()(*inputs(), label=3) | ValueError
        | label is 3: must be None with num_classes=0; build the model with
    build().with_label(3) | ValueError | label is 3: must be None with num_classes=0
    build().with_label(LABEL) | ValueError
        | label is of shape \(3,\): must be None with num_classes=0
    labelled().with_label(4) | ValueError
        | label is 4: must lie in 0\.\.num_classes-1=3, or be -1 or None for no label
    labelled().with_label(LABEL + 2) | ValueError
        | label holds 1\.\.5: must lie in 0\.\.num_classes-1=3
    labelled().with_label("cat") | TypeError
        | label is 'cat': must be int64 \(B,\), an int, or None
    labelled().with_label(True) | TypeError | label is True: must be int64
    labelled().with_label(LABEL[0]) | ValueError | label has shape \(\): expected \(1,\)
    labelled().with_label(LABEL[:, None]) | ValueError | label has shape \(3, 1\)
    labelled()(*inputs(), label=LABEL - 1) | ValueError | label holds -2\.\.2
    labelled()(*inputs(), label=-2) | ValueError | label is -2: must lie in 0\.\.num_classes-1=3
    labelled()(*inputs(), label=LABEL.int()) | TypeError
        | label has dtype torch\.int32: must be int64
    labelled()(*inputs(), label=[1, 2, 3]) | TypeError | label is \[1, 2, 3\]: must be int64
    labelled()(*inputs(), label=LABEL[:2]) | ValueError
        | label has shape \(2,\): expected \(3,\), one for each sequence
    labelled(label_dropout=0.0)(*inputs()) | ValueError
        | label is None.*label_dropout=0 trains no null class
    labelled(label_dropout=0.0)(*inputs(), label=LABEL) | ValueError
        | label holds -1\.\.3.*label_dropout=0 trains no
    labelled(label_dropout=0.0).with_label(None) | ValueError
        | label is None.*label_dropout=0 trains no null class
""")
