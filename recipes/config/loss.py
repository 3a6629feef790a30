"""Training loss of a run."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from ddlib import parts, registry
from ddlib.processes import ForwardProcess
from ddlib.samplers import Sampler
from ddlib.times.base import check_interval
from ddlib.weightings import Clip, Weighting
from recipes.config.times import OPTIMAL, UNIFORM, check_times
from recipes.config.validation import at_least
from recipes.data.source import STRICT


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Training loss; arguments as ``ddlib.training_loss``."""

    weighting: dict[str, Any] | str | None = None
    """Transformation of the weights of the loss, one of ``ddlib.weightings``.

    Evaluation changes no weight. With
    ``order`` no row has them. None: that of the paper that published the process, else the weights
    of the bound."""
    mode: Literal["standard", "hard", "edges"] = "standard"
    """"edges": losses on all edges below a token's state; "hard".

    The paper's ablation, masks predict tokens.
    """
    edge_weights: tuple[float, ...] | None = None
    """Factors of the losses for "edges", one per edge, first that of the edge above the tokens.

    None: those of the
    bound."""
    auxiliary: float = 0.0
    """Weight of the paper's auxiliary cross-entropy of a second head over clusters, 0 for none."""
    consistency: float = 0.0
    """Weight of the consistency loss between two times of a path, 0 for none.

    Its teacher is the average of the
    weights, ``optimizer.ema``. For fewer steps of sampling, with ``start`` at a trained run."""
    consistency_divergence: Literal["forward_kl", "reverse_kl", "jensen_shannon"] = "forward_kl"
    """Divergence from the teacher, as in ``ddlib.consistency_loss``."""
    consistency_anchor: float = 0.25
    """Share of sequences whose earlier time is 0, where the token itself is the target."""
    count_padding: bool = True
    """Whether padding counts in the training loss, as in the HDLM paper.

    It never counts in the bound, and not in
    ``ddlib.training_loss`` by default."""
    parameterization: Literal["cavity", "posterior"] = "cavity"
    """Meaning of the network's output: without the evidence of the token itself, or with it."""
    levels: Literal["independent", "balanced"] = "independent"
    """Coupling of the noise between tokens of a sequence.

    "balanced" has the mean of "independent", see
    ``process.sample``; evaluation has a separate option."""
    times: str | None = None
    """Density of the training times.

    Uniform, beta:a=2,b=1, bell:mean=0,spread=1, or optimal, that of least variance of
    the process at this length. None: optimal where ``weighting`` is None and no paper published the
    process, else uniform."""
    weigh_times: bool = True
    """Divide the loss by that density, so that its mean is that of uniform times.

    Otherwise frequent times have more
    weight."""
    interval: tuple[float, float] = (0.0, 1.0)
    """Interval of the training times.

    Clean positions and positions of pure noise keep the times 0 and 1.
    """

    memory: float = 0.0
    """Share of the sequences that a step calls twice.

    The second call takes the features of the first, which has no
    gradient (self-conditioning). For a network that takes them, such as ``model.memory: true``."""

    order: str | None = None
    """Order of a sampler, such as confidence, confidence:score=entropy or left_to_right, whose
    states are trained on:
    rows of the batch descend along it with their true tokens. None: random noise."""
    order_per_step: int = 16
    """For ``order``, the least number of edges that a row descends in a step."""
    order_share: float = 1.0
    """For ``order``, the share of the rows that follow it; the others are noised at random."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        if self.weighting is not None:
            object.__setattr__(
                self, "weighting", parts.read("weightings", self.weighting, None, "loss.weighting")
            )
        self.rule()  # errors come here, not after the text is read
        if self.edge_weights is not None and self.mode != "edges":
            raise ValueError(
                f"edge_weights={self.edge_weights}: only with mode='edges', not {self.mode!r}"
            )
        at_least(0, auxiliary=self.auxiliary, consistency=self.consistency)
        if not 0 <= self.consistency_anchor <= 1:
            raise ValueError(f"consistency_anchor={self.consistency_anchor}: must lie in [0, 1]")
        if not 0 <= self.memory <= 1:
            raise ValueError(f"memory={self.memory}: must lie in [0, 1]")
        if self.consistency and self.levels != "independent":
            raise ValueError(
                f"consistency={self.consistency}: not with levels={self.levels!r}, must be "
                "'independent': both times "
                "of a path are drawn token by token"
            )
        if self.times is not None:
            check_times("times", self.times)
        check_interval(self.interval)
        at_least(1, order_per_step=self.order_per_step)
        if not 0 < self.order_share <= 1:
            raise ValueError(
                f"order_share={self.order_share}: must lie in (0, 1], the share of rows along "
                "loss.order"
            )
        if self.order is None:
            return
        self.along()
        if self.levels != "independent":
            raise ValueError(
                f"order={self.order!r}: not with levels={self.levels!r}, must be 'independent'"
            )
        if self.order_share == 1 and tuple(self.interval) != (0, 1):
            raise ValueError(
                f"interval={tuple(self.interval)}: not with order={self.order!r} and "
                "order_share=1, as all rows are "
                "along the order and draw no times; must be (0, 1)"
            )
        if self.consistency:
            raise ValueError(
                f"order={self.order!r}: not with consistency={self.consistency}, choose one of them"
            )

    def of(self, kind: str) -> "Loss":
        """Return the loss with weighting and density of times written out, as suits a process.

        A process, or the function that returns it, states its weighting as ``training_weighting``.
        Where that is the weights of the bound, the variance under uniform times may have no finite
        value.

        Args:
            kind: kind of the process.
        """
        default = ForwardProcess.training_weighting
        stated = getattr(registry.find("processes", kind), "training_weighting", default)
        weighted = replace(self, weighting=self.weighting or stated)
        optimal = self.weighting is None and self.weigh_times and weighted.rule().bound
        return replace(weighted, times=self.times or (OPTIMAL if optimal else UNIFORM))

    def rule(self) -> Weighting:
        """Return the weighting as an object; that of the bound where none is set.

        Raises:
            ValueError: the weighting refuses its values.
        """
        if self.weighting is None:
            return Clip()
        return parts.build("weightings", self.weighting, None, "loss.weighting")

    def along(self) -> Sampler:
        """Return the sampler whose order training follows.

        Raises:
            ValueError: there is no such sampler, or it refuses its values.
        """
        found: Sampler = parts.build("samplers", self.order, None, "loss.order")
        return found

    def about(self, padded: bool = True) -> str:
        """Describe how the training loss differs from the bound, for every place that shows it.

        Args:
            padded: whether sequences have padding at all.
        """
        padding = [f"padding {'counted' if self.count_padding else 'left out'}"] if padded else []
        weights = (
            ""
            if self.edge_weights is None
            else f" times {', '.join(f'{w:g}' for w in self.edge_weights)}"
        )
        terms = {
            "hard": ["masks predict tokens"],
            "edges": [f"all edges below a token{weights}"],
        }.get(self.mode, [])
        second = [f"{self.auxiliary:g} x that of clusters added"] if self.auxiliary else []
        if self.consistency:
            second.append(
                f"{self.consistency:g} x the consistency loss ({self.consistency_divergence}) added"
            )
        if self.memory:
            second.append(f"memory from a first pass in {self.memory:g} of the rows")
        drawn = (
            []
            if self.times in (None, UNIFORM) or self.weigh_times
            else [f"times {self.times}, not divided out"]
        )
        low, high = self.interval
        between = [] if (low, high) == (0, 1) else [f"times from {low:g} to {high:g} only"]
        rule = self.rule().about
        along = []
        if self.order is not None:
            rule = "scaled to all edges of a sequence"
            share = "" if self.order_share == 1 else f" for {self.order_share:g} of the rows"
            along = [f"along the order {self.order}{share}"]
        return ", ".join([rule, *padding, *terms, *second, *drawn, *between, *along])
