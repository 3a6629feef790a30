"""The estimators in use, each with its source."""

import ddlib as dd
from recipes.estimators import orders, values
from recipes.estimators.base import Estimator
from recipes.estimators.noise import OverNoise, Term
from recipes.estimators.orders import AlongOrders
from recipes.estimators.times import HalfMasked, Interval, LeastVariance, Once, Steps

ORDERS = 4
"""Number of orders of the estimators that read several."""
_MDLM = "MDLM, arXiv 2406.07524; theory section 1"
_D3PM = "D3PM, arXiv 2107.03006"


def _ends(low: float = 0.0) -> tuple[Term, Term]:
    return Term(Once(low), values.reconstruction), Term(Once(1.0), values.prior)


def _integral(low: float, ends: bool) -> OverNoise:
    between = Term(Interval(low), values.integrand)
    return OverNoise(
        name=f"NELBO, times from {low:g}, {'with' if ends else 'without'} ends",
        claim="bound" if ends else "neither",
        source=_MDLM,
        terms=(between, *_ends(low)) if ends else (between,),
    )


def _sum(steps: int, ends: bool) -> OverNoise:
    reconstructed, prior = _ends()
    divergences = Term(Steps(steps, first=1 if ends else 2), values.divergence)
    return OverNoise(
        name=f"{steps} steps, {'with' if ends else 'without'} reconstruction",
        claim="bound" if ends else "neither",
        source=_D3PM,
        terms=(divergences, prior, reconstructed) if ends else (divergences, prior),
    )


FIXED = "chain, left to right"
"""Name of the chain of a fixed order that stands beside every bound."""

ESTIMATORS: tuple[Estimator, ...] = (
    *(_integral(low, ends) for low in (0.0, 1e-3, 0.1) for ends in (True, False)),
    OverNoise(
        name="NELBO, times of least variance",
        claim="bound",
        source="theory section 12",
        needs=("density",),
        terms=(Term(LeastVariance(), values.integrand), *_ends()),
    ),
    *(_sum(steps, ends) for steps in (16, 256) for ends in (True, False)),
    OverNoise(
        name="pseudo-likelihood at half masks",
        claim="neither",
        source="parameter-golf#1053",
        needs=("masks", "whole sequences"),
        terms=(Term(HalfMasked(), values.masked_cross_entropy),),
    ),
    OverNoise(
        name="weights clipped at 2",
        claim="neither",
        source="the training loss of GIDD, arXiv 2503.04482, and HDLM, arXiv 2510.08632",
        terms=(Term(Interval(), values.clip_weights(2.0)), *_ends()),
    ),
    OverNoise(
        name="HDLM's released loss, xi < 1",
        claim="neither",
        source="jedguz/HDLM, commit 1392f86; docs/errata.md",
        needs=("wrong clusters",),
        terms=(Term(Interval(), values.released_hdlm),),
    ),
    AlongOrders(
        name=FIXED,
        claim="exact",
        source="theory section 10",
        needs=("order",),
        reading=orders.along(dd.samplers.LeftToRight()),
    ),
    AlongOrders(
        name="chain, by confidence",
        claim="exact",
        source="DUEL, arXiv 2603.01367; theory section 10",
        needs=("order",),
        reading=orders.along(dd.samplers.Confidence()),
    ),
    AlongOrders(
        name="sets of two, by confidence",
        claim="exact",
        source="theory section 24",
        needs=("order",),
        reading=orders.along(dd.samplers.Confidence(), group=2),
    ),
    AlongOrders(
        name="order that reads the true token",
        claim="neither",
        source="theory section 24",
        needs=("order",),
        reading=orders.true_token_first,
    ),
    AlongOrders(
        name=f"best of {ORDERS} orders",
        claim="neither",
        source="theory section 24",
        needs=("order",),
        reading=orders.among(ORDERS, orders.best),
    ),
    AlongOrders(
        name=f"best of {ORDERS} orders, and log {ORDERS}",
        claim="bound",
        source="theory section 24",
        needs=("order",),
        reading=orders.among(ORDERS, orders.best_and_its_number),
    ),
    AlongOrders(
        name=f"mixture over {ORDERS} orders",
        claim="exact",
        source="theory section 24",
        needs=("order",),
        reading=orders.among(ORDERS, orders.mixture),
    ),
    AlongOrders(
        name="coupled pairs without normaliser",
        claim="neither",
        source="EDLM, arXiv 2410.21357",
        needs=("masks", "whole sequences"),
        reading=orders.coupled_pairs,
    ),
)
"""All estimators."""


def find(name: str) -> Estimator:
    """Return the estimator with this name.

    Raises:
        ValueError: there is none.
    """
    for estimator in ESTIMATORS:
        if estimator.name == name:
            return estimator
    raise ValueError(
        f"name is {name!r}, must be one of {', '.join(repr(each.name) for each in ESTIMATORS)}"
    )
