"""What a run minimises."""

from dataclasses import dataclass
from typing import Any, Literal

from ddlib import parts
from ddlib.times.base import check_interval
from ddlib.weightings import Weighting
from recipes.config.times import check_times
from recipes.config.validation import at_least
from recipes.data.source import STRICT


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What is minimised; arguments as ``ddlib.training_loss``."""

    weighting: dict[str, Any] | str = "clip:2"
    """What becomes of the weight of a token's loss, a rule of ``ddlib.weightings``; evaluation changes no weight."""
    mode: Literal["standard", "hard", "edges"] = "standard"
    """"edges": losses on all edges below a token's state; "hard": the paper's ablation, masks predict words."""
    edge_weights: tuple[float, ...] | None = None
    """Of "edges", one factor per edge, that above the words first; none: the bound's own."""
    auxiliary: float = 0.0
    """Weight of the paper's auxiliary cross-entropy of a second head over clusters, 0 for none."""
    count_padding: bool = True
    """Whether padding counts in the training loss, as the paper has it and other than ``ddlib.training_loss`` by
    default; in the bound it never does."""
    parameterization: Literal["cavity", "posterior"] = "cavity"
    """What the network's output means: without the evidence of the token itself, or with it."""
    levels: Literal["independent", "systematic", "balanced"] = "independent"
    """How the tokens of a text share its noise: "balanced" has the mean of "independent", "systematic" another, see
    ``process.sample``; evaluation has a choice of its own."""
    mirror: bool = False
    """Noise the sequences two by two, at one time, the second by what the first was not: 1 - u for u."""
    times: str = "uniform"
    """Density that training times are drawn from: uniform, beta:a=2,b=1, bell:mean=0,spread=1, or optimal, the
    process's own for texts of this length."""
    weigh_times: bool = True
    """Divide the loss by that density, so that it stays that of uniform times; else what is drawn often counts more."""
    interval: tuple[float, float] = (0.0, 1.0)
    """Training times are drawn between these. What is not being noised, or is noise already, stays at 0 and at 1."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        object.__setattr__(self, "weighting", parts.read("weightings", self.weighting, None, "loss.weighting"))
        self.rule()  # refused here, not after the text is read
        if self.edge_weights is not None and self.mode != "edges":
            raise ValueError(f"edge_weights={self.edge_weights}: only with mode='edges', not {self.mode!r}")
        at_least(0, auxiliary=self.auxiliary)
        check_times("times", self.times)
        check_interval(self.interval)

    def rule(self) -> Weighting:
        """The weighting itself.

        Raises:
            ValueError: what it refuses of its values.
        """
        return parts.build("weightings", self.weighting, None, "loss.weighting")

    def about(self, padded: bool = True) -> str:
        """What tells the training loss from the bound, to be said wherever it is shown.

        Args:
            padded: whether sequences have padding at all.
        """
        padding = [f"padding {'counted' if self.count_padding else 'left out'}"] if padded else []
        weights = "" if self.edge_weights is None else f" times {', '.join(f'{w:g}' for w in self.edge_weights)}"
        asked = {"hard": ["masks predict words"], "edges": [f"all edges below a token{weights}"]}.get(self.mode, [])
        levels = ["levels in strata"] if self.levels == "systematic" else []
        second = [f"{self.auxiliary:g} x that of clusters added"] if self.auxiliary else []
        drawn = [] if self.times == "uniform" or self.weigh_times else [f"times {self.times}, not divided out"]
        low, high = self.interval
        between = [] if (low, high) == (0, 1) else [f"times from {low:g} to {high:g} alone"]
        return ", ".join([self.rule().about, *padding, *asked, *levels, *second, *drawn, *between])
