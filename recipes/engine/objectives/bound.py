"""The bound as a training objective, with other weights and modes."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

import ddlib as dd
from ddlib import parts, registry
from ddlib.integrations import DiffusionLoss
from ddlib.processes import ForwardProcess
from ddlib.weightings import Clip, Weighting, is_bound
from recipes.config import Recipe, at_least, at_once, check_times, own_times, time_density
from recipes.config.times import OPTIMAL, UNIFORM
from recipes.data import Batch
from recipes.engine.network import Network
from recipes.engine.non_finite import cause
from recipes.engine.objectives.base import Objective, Setting
from recipes.engine.objectives.noising import (
    NoiseOptions,
    NoisyBatch,
    add_noise,
    infill,
    loss_weights,
)
from recipes.metrics.conditioned import takes_memory


@dataclass(kw_only=True, repr=False)
class Bound(Objective):
    """Training loss of ``ddlib.training_loss`` on states of random noise.

    Args:
        weighting: transformation of the weights of the loss, one of ``ddlib.weightings``.
            Evaluation changes no weight. None: that of the paper that published the process, else
            the weights of the bound.
        mode: "edges": losses on all edges below a token's state, also with a factor for each edge,
            that above the tokens first. "hard": the paper's ablation, masks predict tokens.
        count_padding: whether padding counts in the training loss, as in the HDLM paper. It never
            counts in the bound, and not in ``ddlib.training_loss`` with a mask.
        parameterization: meaning of the network's output: without the evidence of the token
            itself, or with it.
        levels: coupling of the noise between tokens of a sequence. "balanced" has the mean of
            "independent", see ``process.sample``; evaluation has a separate option.
        times: density of the training times. Uniform, beta:a=2,b=1, bell:mean=0,spread=1, or
            optimal, that of least variance of the process at this length. None: optimal where
            ``weighting`` is None and no paper published the process, else uniform.
        weigh_times: divide the loss by that density, so that its mean is that of uniform times.
            Otherwise frequent times have more weight.
        interval: interval of the training times. Clean positions and positions of pure noise keep
            the times 0 and 1.
        infill: share of the tokens of each sequence that is given in training, at random: these are
            not noised, have no loss, and train the network to fill in the others. Rounded down.
            Below 1. Nothing is given in the bound of the validation data.
    """

    weighting: Weighting | None = None
    mode: Literal["standard", "hard", "edges"] | tuple[float, ...] = "standard"
    count_padding: bool = True
    parameterization: Literal["cavity", "posterior"] = "cavity"
    levels: Literal["independent", "balanced"] = "independent"
    times: str | None = None
    weigh_times: bool = True
    interval: tuple[float, float] = (0.0, 1.0)
    infill: float = 0.0

    def __post_init__(self) -> None:
        if self.weighting is not None:
            self.weighting = dd.build("weightings", self.weighting, None, "loss.weighting")
        if self.times is not None:
            check_times("times", self.times)
        self.interval = tuple(self.interval)
        at_least(0, infill=self.infill)
        if self.infill >= 1:
            raise ValueError(f"infill={self.infill}: must be below 1, nothing else has a loss")
        dd.sample_times(1, generator=torch.Generator(), interval=self.interval)

    @classmethod
    def write_out(cls, values: dict[str, Any], process: str) -> dict[str, Any]:
        """Write out weighting and density of times, as suits a process.

        A process, or the function that returns it, states its weighting as ``training_weighting``.
        Where that is the weights of the bound, the variance under uniform times may have no finite
        value.

        Args:
            values: plain values of the objective.
            process: kind of the process.
        """
        default = ForwardProcess.training_weighting
        stated = getattr(registry.find("processes", process), "training_weighting", default)
        weighting = values["weighting"] or parts.read("weightings", stated)
        bound = is_bound(dd.build("weightings", weighting))
        optimal = values["weighting"] is None and values["weigh_times"] and bound
        times = values["times"] or (OPTIMAL if optimal else UNIFORM)
        return values | {"weighting": weighting, "times": times}

    @cached_property
    def rule(self) -> Weighting:
        """The weighting; that of the bound where none is set."""
        return Clip() if self.weighting is None else self.weighting

    @property
    def mode_name(self) -> str:
        """Name of the mode; factors of edges are those of "edges"."""
        return self.mode if isinstance(self.mode, str) else "edges"

    def check(self, recipe: Recipe) -> None:
        if self.levels == "independent":
            return
        if recipe.data.packed:
            raise ValueError(
                f"loss.levels={self.levels!r}: not with data.packed, whose rows contain several "
                "documents"
            )
        pace = recipe.order()
        if own_times(pace, recipe.data.length):
            raise ValueError(
                f"pace={pace!r}: not with loss.levels={self.levels!r}, which draws the tokens of "
                "one time together; must be 'independent'"
            )

    def check_process(self, process: ForwardProcess) -> None:
        if self.mode_name not in process.modes:
            raise ValueError(
                f"loss.mode={self.mode!r}: {process!r} has only {', '.join(process.modes)}"
            )
        try:
            process.check_levels(self.levels)
        except TypeError as error:
            raise ValueError(f"loss.{error}") from error
        try:
            DiffusionLoss(process, self.rule, self.mode)
        except (TypeError, ValueError) as error:
            raise ValueError(f"loss: {error}") from error

    def check_network(self, model: nn.Module, recipe: Recipe) -> None:
        if takes_memory(model):
            raise ValueError(
                f"loss.kind: must be memory with this {type(model).__name__}, whose takes_memory "
                "is True and is not trained otherwise"
            )

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        length = setting.recipe.data.length
        times = UNIFORM if self.times is None else self.times
        self.density = time_density(times, setting.process, length, pace=setting.pace)
        self.at_once = at_once(setting.pace, setting.network.model)
        if not self.at_once:
            return
        clean = (
            f"not with pace={setting.pace!r} and a network made for its blocks, which takes the "
            "clean sequence: the features of a token that is given in a later block would depend "
            "on the tokens to predict"
        )
        if self.infill:
            raise ValueError(f"loss.infill={self.infill}: must be 0, {clean}")
        data = setting.data
        for name, documents in (("train", data.train), ("validation", data.validation)):
            number = documents.given_behind(setting.pace.block or 1, length)
            if number is not None:
                raise ValueError(
                    f"data.folder={data.folder}: document {number} of {name} has given tokens in a "
                    f"later block than one to predict, {clean}. Prepare a sequence for each answer "
                    "that ends with it (chat --answers each or last)"
                )

    def ahead(self, batches: list[Batch], step: int) -> list[Any]:
        noisy = [self.noise(self.mark(batch, step), step) for batch in batches]
        fixed = self.setting.recipe.hardware.graph == "step"
        return noisy if fixed else [self.plan(one) for one in noisy]

    def prepare(self, batches: list[Any], step: int) -> list[NoisyBatch]:
        return batches

    fixed_sizes = True

    def fix_sizes(self, noisy: NoisyBatch) -> NoisyBatch:
        return self.plan(noisy, whole=True)

    def plan(self, noisy: NoisyBatch, whole: bool = False) -> NoisyBatch:
        """Return a micro-batch with the plan of its loss, which the network does not change."""
        network = self.setting.network
        if not network.split:
            return noisy
        planned = dd.PlannedLoss.of(
            self.setting.process,
            noisy.x,
            noisy.z,
            noisy.t,
            self.rule,
            self.mode,
            parameterization=network.parameterization,
            dtype=network.dtype,
            whole=whole,
        )
        return replace(noisy, planned=planned)

    def mark(self, batch: Batch, step: int) -> Batch:
        """Return a micro-batch with the given tokens of ``infill``, and with a mask that has
        padding too, if that counts.
        """
        if self.infill:
            batch = infill(batch, self.setting.recipe.seed, step, self.infill)
        # without padding in the vocabulary the rest of a packed row is not part of the data
        counts = self.count_padding and self.setting.padded
        return replace(batch, mask=torch.ones_like(batch.mask)) if counts else batch

    def noise(self, batch: Batch, step: int) -> NoisyBatch:
        """Return the states of a micro-batch at random times."""
        setting = self.setting
        options = NoiseOptions(self.levels, self.interval, self.weigh_times)
        draw = options, self.density, setting.pace, self.at_once
        return add_noise(setting.process, batch, setting.recipe.seed, step, *draw)

    def loss(self, noisy: NoisyBatch, network: Network, scale: Tensor) -> tuple[Tensor, Tensor]:
        with network.autocast(noisy.z.device):
            raw = network.evaluate(noisy)
            lost = network.lost(raw)
            return self.losses(raw, noisy, network, scale) if lost is None else lost

    def losses(
        self, raw: Tensor, noisy: NoisyBatch, network: Network, scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the result of ``loss`` from that of ``network.evaluate``."""
        output = network.output(raw, planned=noisy.planned)
        return self.total(output, noisy, network, scale, self.rule, self.mode)

    def total(
        self, output: Any, noisy: NoisyBatch, network: Network, scale: Tensor, *how: Any
    ) -> tuple[Tensor, Tensor]:
        """Compute the training loss with the weighting and mode in ``how``."""
        return dd.summed_loss(
            self.setting.process,
            output,
            noisy.x,
            noisy.z,
            dd.paces.Draw(noisy.t, noisy.measure),
            scale,
            *how,
            mask=noisy.mask,
            parameterization=network.parameterization,
        )

    def remarks(self, noisy: NoisyBatch) -> list[str]:
        """Return a message if the weighting clips most weights of the noisy tokens."""
        weights = loss_weights(self.setting.process, noisy).detach()
        limit = self.rule.limit
        if not len(weights) or (share := float((weights > limit).float().mean())) <= 0.5:
            return []
        median = float(weights.median())
        return [
            f"loss.weighting clips {100 * share:.0f} % of the weights of noisy tokens at {limit:g} "
            "(median "
            f"{median:.3g}): the loss is far from the bound, which loss.weighting: clip, without a "
            "limit, trains on"
        ]

    def cause(self, noisy: list[NoisyBatch], losses: list[Tensor]) -> str:
        return cause(self.setting.process, self.rule, noisy, losses)

    def terms(self) -> list[str]:
        """Return descriptions of the terms of the loss beside the standard one."""
        if self.mode in ("standard", "hard"):
            return ["masks predict tokens"] if self.mode == "hard" else []
        factors = "" if isinstance(self.mode, str) else ", ".join(f"{w:g}" for w in self.mode)
        return [f"all edges below a token{factors and f' times {factors}'}"]

    def about(self, padded: bool = True) -> str:
        """Describe how the training loss differs from the bound, for every place that shows it."""
        padding = [f"padding {'counted' if self.count_padding else 'left out'}"] if padded else []
        drawn = (
            []
            if self.times in (None, UNIFORM) or self.weigh_times
            else [f"times {self.times}, not divided out"]
        )
        low, high = self.interval
        between = [] if (low, high) == (0, 1) else [f"times from {low:g} to {high:g} only"]
        given = [f"{100 * self.infill:g} % of each sequence given"] if self.infill else []
        about = [self.about_weights, *padding, *given, *self.terms(), *drawn, *between]
        return ", ".join(about)

    @property
    def about_weights(self) -> str:
        """Description of the weights."""
        return self.rule.about
