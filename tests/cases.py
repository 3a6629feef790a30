"""Helpers of parametrised cases and of properties."""

from hypothesis import settings

from ddlib.contrib import Cache


def examples(number):
    """Scale the number of examples of a property by the share that the current profile runs, to at
    least 3.
    """
    return max(
        number * settings.default.max_examples // settings.get_profile("full").max_examples, 3
    )


def caches(rule):
    """Controls for a cache: True for the exact one, False for none, or the name of another."""
    return [] if rule is True else [Cache(rule or "none")]
