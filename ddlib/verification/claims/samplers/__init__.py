"""Claims about samplers, correctors, guidance and likelihoods."""

from ddlib.processes import ForwardProcess
from ddlib.samplers import Sampler
from ddlib.verification.claims.arguments import PART_CLAIMS
from ddlib.verification.claims.samplers import (
    blocks,
    likelihood,
    particles,
    paths,
    sampler,
    transition_kernel,
)
from ddlib.verification.framework.cases import on_cases
from ddlib.verification.framework.dependencies import evaluate_claims, explain
from ddlib.verification.report import Check


def verify(
    subject: Sampler, full: bool, on: ForwardProcess | None = None
) -> tuple[list[Check], str]:
    """Check a sampler on each kind of process that it supports, or on the given one only.

    Claims about kernels, likelihoods and rewards hold for some samplers only.
    """
    checks, note = on_cases(
        "sampler", sampler.runs(subject, on), (*sampler.CLAIMS, *blocks.CLAIMS, *paths.CLAIMS), full
    )
    if on is None:
        checks += on_cases("step", transition_kernel.runs(subject), transition_kernel.CLAIMS, full)[
            0
        ]
    checks += on_cases("likelihood", likelihood.runs(subject, on), likelihood.CLAIMS, full)[0]
    checks += on_cases("reward", particles.runs(subject, on), particles.CLAIMS, full)[0]
    return checks + (
        explain(evaluate_claims(PART_CLAIMS, subject, full)) if on is None else []
    ), note
