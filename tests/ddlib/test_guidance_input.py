"""Guidance: what it refuses, and how it is shown."""

import math

import pytest
import torch
from guiding import KINDS, at, free

import ddlib as dd
from ddlib.guidance import ClassifierBased, ClassifierFree

MASKS, Z = KINDS["masked"], torch.tensor([[4, 0]])


def say(columns, value=0.0):
    return lambda z, t: torch.full((*z.shape, columns), value)


def classed(answer, how="exact", strength=1.0):
    def label(states, t):
        return answer(states) if callable(answer) else answer

    return lambda: ClassifierBased(MASKS, say(4), label, strength, how)(Z, at(0.5))


def made(*given, **options):
    return lambda: ClassifierFree(MASKS, say(4), say(4), *given, **options)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (made("2"), TypeError, r"strength is '2', must be a number between 0 and 1e\+06, or a function of t"),
        (made(float("nan")), ValueError, r"strength is nan, must be between 0"),
        (made(float("inf")), ValueError, r"strength is inf, must be between 0"),
        (made(-1.0), ValueError, r"strength is -1.0, must be between 0"),
        (made(2.0, "tokens"), ValueError, r"on is 'tokens', must be one of 'words', 'states'"),
        (made(2.0, interval=(0.5, 1.5)), ValueError, r"interval\[1\] is 1.5, must be in \[0, 1\]"),
        (made(2.0, interval=(0.7, 0.2)), ValueError, r"interval is \(0.7, 0.2\).*the earlier first"),
        (made(2.0, interval=(0.7,)), ValueError, r"interval is \(0.7,\), must be two times"),
        (made(2.0, parameterization="logits"), ValueError, r"parameterization is 'logits'"),
        (lambda: ClassifierFree(None, say(4), say(4), 2.0), TypeError, r"process is None.*ForwardProcess"),
        (lambda: ClassifierFree(MASKS, None, say(4), 2.0), TypeError, r"conditional is None, must be a denoiser"),
        (lambda: ClassifierFree(MASKS, say(4), 3, 2.0), TypeError, r"unconditional is 3, must be a denoiser"),
        (
            lambda: ClassifierFree(MASKS, say(4), say(5), 2.0)(Z, at(0.5)),
            ValueError,
            r"conditional has 4 columns and unconditional has 5 columns: they must be of one vocabulary",
        ),
        (
            lambda: ClassifierFree(MASKS, say(5), say(5), 2.0)(Z, at(0.5)),
            ValueError,
            r"conditional: logits has 5 columns, the process has vocab_size 4",
        ),
        (
            lambda: ClassifierFree(MASKS, say(4), say(4, float("nan")), 2.0)(Z, at(0.5)),
            ValueError,
            r"unconditional: logits at position.*NaN",
        ),
        (
            lambda: made(lambda t: [t])()(Z, at(0.5)),
            TypeError,
            r"strength\(0.5\) is \[0.5\], must be a number between 0",
        ),
        (lambda: made(lambda t: t - 1)()(Z, at(0.5)), ValueError, r"strength\(0.5\) is -0.5, must be between 0"),
        (lambda: made(lambda t: math.inf)()(Z, at(0.5)), ValueError, r"strength\(0.5\) is inf, must be between 0"),
        (lambda: ClassifierBased(MASKS, say(4), None), TypeError, r"classifier is None, must be a function"),
        (
            lambda: ClassifierBased(MASKS, say(4), say(4), how="both"),
            ValueError,
            r"how is 'both', must be one of 'exact'",
        ),
        (lambda: ClassifierBased(MASKS, say(4), say(4), True), TypeError, r"strength is True"),
        (classed(torch.zeros(2, 2)), ValueError, r"classifier's answer has shape \(2, 2\), must be \(B,\) = \(1,\)"),
        (classed(0.5), TypeError, r"classifier gives float, must be a floating-point tensor \(B,\)"),
        (classed(lambda s: s.sum((1, 2)) * float("nan")), ValueError, r"classifier's answer holds \[nan\]"),
        (classed(lambda s: s.sum((1, 2)) + float("inf")), ValueError, r"classifier's answer holds \[inf\]"),
        (classed(lambda s: s.sum((1, 2)) - float("inf")), ValueError, r"classifier gives -inf for a text as it stands"),
        (classed(lambda s: s.detach().sum((1, 2)), "first order"), ValueError, r"classifier gives no gradient"),
        (classed(lambda s: (0 * s).sum((1, 2)).sqrt(), "first order"), ValueError, r"gradient with NaN or infinity"),
    ],
)
def test_refused_by_name_value_and_rule(call, error, message):
    with pytest.raises(error, match=f"(?s){message}"):
        call()


def test_a_guidance_prints_what_it_does_and_not_its_networks():
    assert repr(free("tree", 2.0)) == f"ClassifierFree({KINDS['tree']!r}, strength=2.0, on='states')"
    shown = repr(free("masked", 2.0, "words", interval=(0.0, 0.5)))
    assert shown == f"ClassifierFree({KINDS['masked']!r}, strength=2.0, on='words', interval=(0.0, 0.5))"


def test_names_are_found_from_the_top():
    assert dd.guidance.ClassifierFree is ClassifierFree
    with pytest.raises(AttributeError, match=r"did you mean dd.guidance.ClassifierFree\?"):
        dd.ClassifierFree  # noqa: B018
