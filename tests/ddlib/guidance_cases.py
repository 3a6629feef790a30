"""Guidances over small processes, and how texts are drawn with them, for their tests."""

from fixtures import generate

from ddlib.guidance import ClassifierFree
from ddlib.guidance.small_networks import Lookup
from ddlib.processes.examples import four

KINDS = four()


class Counted:
    """A denoiser that counts its calls and their rows."""

    def __init__(self, inner):
        self.inner = inner
        self.calls = 0
        self.rows = 0

    def __call__(self, *given):
        self.calls, self.rows = self.calls + 1, self.rows + len(given[0])
        return self.inner(*given)


def constant(row):
    return lambda z, t: row.expand(*z.shape, -1)


def parts(process):
    return Counted(Lookup(process, 1)), Counted(Lookup(process, 2))


def free(name, strength=2.5, on="states", **options):
    process = KINDS[name]
    return ClassifierFree(process, *parts(process), strength, on, **options)


def draw(process, denoiser, sampler=None, meaning="cavity", **options):
    return generate(process, denoiser, sampler, parameterization=meaning, **options)


def guided(guidance, sampler=None, **options):
    return draw(guidance.process, guidance, sampler, guidance.parameterization, **options)
