"""The report of approximate caches.

Their error on held-out text, changed tokens and time; and their option.
"""

import json
from dataclasses import replace
from importlib.metadata import version

import pytest
import torch
from published import publish_tiny

import ddlib as dd
from recipes import cache_error as command
from recipes.cache_error import Options, cache_error, main, subject_of
from recipes.console import make_console
from recipes.generation.sampling import Sampling, draw
from recipes.model_io import LoadOptions

CACHES = ("prefix", "dual", "dual:refresh=1")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    # in a single layer keys and values depend on their own position alone, and every cache is exact
    return publish_tiny(tmp_path_factory.mktemp("caches"), depth=2)


@pytest.fixture
def options(published, tmp_path):
    values = dict(caches=CACHES, block=6, sequences=3, steps=3, repeats=1)
    return Options(run=str(published.run), out=tmp_path / "found.json", **values)


def opened(published):
    return LoadOptions().open(str(published.run), "cpu", "float32")


def test_one_command_writes_the_errors_of_each_block(published, capsys):
    flags = [
        "--block",
        "6",
        "--sequences",
        "3",
        "--repeats",
        "1",
        "--steps",
        "3",
        "--caches",
        *CACHES,
    ]
    main([str(published.run), *flags])
    result = json.loads((published.run / "cache_error.json").read_text())
    found = {one["cache"]: one for one in result["caches"]}
    assert list(found) == list(CACHES) and result["protocol"]["length"] == 24
    assert (
        result["starts"][0]["versions"]["torch"] == version("torch")
        and len(result["starts"][0]["load"]) == 3
    )
    for name, one in found.items():
        blocks = one["blocks"]
        assert [block["block"] for block in blocks] == [0, 1, 2, 3]
        assert (
            all(0 <= block["mean"] <= block["largest"] <= 1 for block in blocks)
            and one["times_faster"] > 0
        )
        assert blocks[0]["changed"] == 0, "the first block is given"
        if name == "dual:refresh=1":
            assert max(block["largest"] for block in blocks) < 1e-5 and one["changed"] == 0
            assert abs(one["more_nats_per_token"]["value"]) < 1e-6
        else:
            assert blocks[-1]["mean"] > 1e-6
    assert found["prefix"]["blocks"][0]["largest"] == 0, "nothing is before the first block"
    assert found["dual"]["blocks"][0]["mean"] > 1e-6
    printed = capsys.readouterr().out
    assert "block 3: total variation" in printed and "times as fast as without" in printed


def test_a_single_sequence_has_no_error(published, options, capsys):
    found = cache_error(replace(options, caches=("dual",), sequences=1), make_console())
    assert (
        found["without"]["nats_per_token"]["error"]
        is found["caches"][0]["more_nats_per_token"]["error"]
        is None
    )
    assert "±" not in capsys.readouterr().out and "NaN" not in options.out.read_text()


def test_its_nats_are_those_of_the_likelihood(published, options):
    subject = subject_of(options, opened(published))
    exact = subject.nats(False)
    cached = subject.nats("dual")
    assert exact.shape == (3,) and (exact - cached).abs().max() > 1e-6
    torch.testing.assert_close(subject.nats("dual:refresh=1"), exact, atol=1e-3, rtol=1e-6)


def test_mismatches_are_refused_before_any_work(published, options, tmp_path, monkeypatch):
    monkeypatch.setattr(command.Subject, "nats", None)

    def run(given):
        return cache_error(given, make_console())

    for changed, message in (
        (dict(caches=("dual", "triple")), "keep is 'triple', must be True, False"),
        (dict(caches=()), "caches: must be at least one"),
        (dict(block=0), "block=0: must be at least 1"),
        (dict(order="nonsense"), "nonsense"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(options, **changed)
    for changed, message in (
        (dict(block=7), "length=24: must be a multiple of --block 7, at least"),
        (dict(block=24), "length=24: must be a multiple of --block 24, at least"),
        (dict(order="ancestral"), "ancestral"),
    ):
        with pytest.raises(ValueError, match=message):
            run(replace(options, **changed))
    blocks = publish_tiny(tmp_path, pace="blocks:size=6")
    with pytest.raises(
        ValueError, match="attends by blocks of 6: its cache is exact, so there is no error"
    ):
        run(replace(options, run=str(blocks.run)))


def test_the_option_of_samples_is_that_of_dd_sample(published):
    saved = opened(published)
    index = torch.arange(2)
    for keep in ("dual", "prefix:refresh=2", None):
        sampling = Sampling(sampler="confidence", steps=3, pace="blocks:size=6", keep=keep)
        words = draw(saved, sampling, 0, index, 24)
        want = dd.sample(
            saved.process, saved.denoiser, (2, 24), dd.samplers.Confidence(), 3, pace=dd.paces.Blocks(6),
            keep=keep or True, parameterization=saved.parameterization,
            generator=dd.KeyedGenerator(0, 2**62, index),
        )  # fmt: skip
        assert torch.equal(words, want)
    with pytest.raises(ValueError, match="keep='dual': keep is 'dual' and pace is Together"):
        draw(saved, Sampling(keep="dual"), 0, index, 24)
    with pytest.raises(ValueError, match="keep is 'dual:4'"):
        Sampling(keep="dual:4")
