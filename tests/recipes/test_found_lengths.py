"""Lengths that a rule finds: ``--length auto:max=1024`` of ``recipes.generate``."""

import io
from dataclasses import replace

import pytest
import torch
from ddlib_ragged import Margin
from zoo.runs import LENGTH, publishes, quiet, read_lines

import ddlib as dd
from recipes.console import make_console
from recipes.generate import Options, generate, main
from recipes.generation.lengths import FoundLength
from recipes.generation.sampling import NOISE, Sampling

FEW = Sampling(steps=30, sampler="confidence:threshold=0.5")


published = publishes("packed")


def drawn(run, tmp_path, **options):
    """The lines of the file, and what was printed."""
    out = tmp_path / "found.jsonl"
    printed = io.StringIO()
    generate(Options(run=str(run), sampling=FEW, out=out, **options), make_console(printed))
    return read_lines(out), printed.getvalue()


def test_a_rule_is_that_of_ddlib(run, saved, tmp_path):
    lines, printed = drawn(
        run, tmp_path, samples=3, length="auto:max=20,start=4,step=2,positions=4", seed=5
    )
    rule = dd.contrib.RhoEOS(saved.special.eos, start=4, step=2, positions=4)
    sampler = dd.samplers.Confidence(threshold=0.5)
    expected = dd.sample(
        saved.process,
        saved.denoiser,
        (3, 20),
        sampler,
        30,
        controls=[rule],
        parameterization="posterior",
        generator=dd.KeyedGenerator(5, NOISE, torch.arange(3)),
    )
    assert [line["tokens"] for line in lines] == expected.tolist()
    sizes = [line["length"] for line in lines]
    assert sizes == [len(saved.document(line["tokens"])) for line in lines]
    assert f"tokens: {', '.join(map(str, sizes))}; network calls per sample: " in printed
    assert all(
        line["protocol"]["length"] == "auto:max=20,start=4,step=2,positions=4" for line in lines
    )
    calls = float(printed.split("per sample: ")[1].split()[0])
    assert calls == pytest.approx(sum(line["steps"] for line in lines) / 3, abs=0.05)


def test_a_rule_of_another_package(run, saved, tmp_path):
    lines, _ = drawn(run, tmp_path, samples=2, length="margin:max=18,start=5,margin=2", seed=5)
    expected = dd.sample(
        saved.process,
        saved.denoiser,
        (2, 18),
        dd.samplers.Confidence(threshold=0.5),
        30,
        controls=[Margin(saved.special.eos, start=5, margin=2)],
        parameterization="posterior",
        generator=dd.KeyedGenerator(5, NOISE, torch.arange(2)),
    )
    assert [line["tokens"] for line in lines] == expected.tolist()
    rule = FoundLength("ddlib_ragged.length:Margin").rule(saved)
    assert repr(rule) == repr(Margin(saved.special.eos))


@pytest.mark.parametrize(
    "length", ["rho_eos:start=3,step=1", "daedal:start=3,step=2,positions=4,max=18"]
)
def test_a_sample_is_the_same_with_any_others(run, tmp_path, length):
    prompts = ("The state", "Tonight we celebrate the work")
    lines, _ = drawn(run, tmp_path, samples=2, length=length, prompt=prompts, batch=4)
    alone, _ = drawn(run, tmp_path, numbers=(1,), length=length, prompt=prompts[1])
    small, _ = drawn(run, tmp_path, samples=2, length=length, prompt=prompts, batch=1)
    for line in (*lines, *alone, *small):
        del line["protocol"]["provenance"]  # it holds the time
    assert small == lines and lines[3:] == alone


def test_the_length_of_the_model_is_the_largest(run, saved, tmp_path):
    lines, _ = drawn(run, tmp_path, samples=1, length="auto")
    assert len(lines[0]["tokens"]) == LENGTH == FoundLength("auto").limit(saved)


def test_by_command(run, capsys):
    main(
        [
            str(run),
            "--length",
            "daedal:max=12,start=2,step=1",
            "--samples",
            "2",
            "--steps",
            "3",
            "--stream",
        ]
    )
    assert "network calls per sample" in capsys.readouterr().out
    main([str(run), "--length", "8", "--samples", "1", "--steps", "2"])
    assert "network calls" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"length": "automatic"},
            "length='automatic': must be a number, or one of auto, daedal, .*, as in auto:max",
        ),
        (
            {"length": "auto:most=9"},
            "'most' is not an option of rho_eos, which has start, low, high, .* and max",
        ),
        ({"length": "auto:word=9"}, "'word' is not an option of rho_eos"),
        ({"length": "auto:20"}, "'20' is not an option of rho_eos"),
        ({"length": "auto:max=0"}, "max must be a number of tokens, at least 1"),
        ({"length": "auto:max=many"}, "max must be a number of tokens, at least 1"),
        (
            {"length": "auto:low=0.9"},
            "length='auto:low=0.9': low is 0.9 and high is 0.6, must be at most high",
        ),
        (
            {"length": "auto:start=few"},
            "length='auto:start=few'.start: Input should be a valid integer",
        ),
        ({"length": "auto", "new": 3}, "new=3: not with length=auto"),
        ({"length": "auto", "html": "page.html"}, "length='auto': not with a page or a film"),
        ({"length": f"auto:max={LENGTH + 1}"}, f"max must be at most {LENGTH}, the maximum"),
        (
            {"length": "auto", "prompt": "The [MASK:3] of"},
            "length='auto': not with gaps in a prompt",
        ),
        (
            {"length": "auto", "sampling": Sampling(sampler="first_hitting")},
            "which FirstHitting.* does not support",
        ),
        ({"length": "auto", "sampling": Sampling(memory=True)}, "memory"),
        ({"length": "auto:block=4"}, "RhoEOS.* with a block, and Ancestral.* has the same time"),
        (
            {"length": "auto", "sampling": Sampling(pace="blocks:size=4", sampler="confidence")},
            "not with pace=Blocks",
        ),
    ],
)
def test_refused(run, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        generate(Options(run=str(run), **options), quiet())


def test_a_model_without_an_end_needs_a_number(saved):
    without = replace(saved, special=replace(saved.special, eos=None))
    with pytest.raises(ValueError, match=r"length='auto': .* has no end of text, give a number"):
        FoundLength("auto").rule(without)
