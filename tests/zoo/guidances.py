"""Guidances of small processes, and calls of ``sample`` with them."""

from ddlib.guidance import ClassifierFree
from ddlib.guidance.small_networks import Lookup
from ddlib.processes.examples import four
from zoo.calls import generate
from zoo.networks import Counted

FOUR = four()


def parts(process):
    return Counted(Lookup(process, 1)), Counted(Lookup(process, 2))


def free(name, strength=2.5, on="states", **options):
    process = FOUR[name]
    return ClassifierFree(process, *parts(process), strength, on, **options)


def draw(process, denoiser, sampler=None, meaning="cavity", **options):
    return generate(process, denoiser, sampler, parameterization=meaning, **options)


def guided(guidance, sampler=None, **options):
    return draw(guidance.process, guidance, sampler, guidance.parameterization, **options)
