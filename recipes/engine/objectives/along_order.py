"""Training along the order of a sampler: the rows of this process, and their next sequences."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

import ddlib as dd
from ddlib.processes import ForwardProcess
from ddlib.samplers import Sampler
from recipes.config import Recipe, at_least, own_times
from recipes.data import Batch
from recipes.engine.network import Network
from recipes.engine.objectives.base import Setting
from recipes.engine.objectives.bound import Bound
from recipes.engine.objectives.noising import NoiseOptions, NoisyBatch, add_noise


@dataclass(frozen=True, kw_only=True)
class InRows(NoisyBatch):
    """States of rows along an order; ``measure`` weighs divergences."""

    rows: dd.contrib.TrainingRows


@dataclass(kw_only=True, repr=False)
class AlongOrder(Bound):
    """Loss on the states of a sampler's order: rows descend along it with their true tokens.

    Row g of the whole batch goes through the examples at the positions g, g + batch, g + 2 batch,
    ... of the global order. Rows that do not follow the order take a new example in every step, at
    random noise. No row has the weights of ``weighting``.

    Args:
        order: order of a sampler, such as confidence, confidence:score=entropy or left_to_right.
        per_step: least number of edges that a row descends in a step.
        share: share of the rows that follow the order; the others are noised at random.
    """

    order: Sampler
    per_step: int = 16
    share: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.order = dd.build("samplers", self.order, None, "loss.order")
        at_least(1, per_step=self.per_step)
        if not 0 < self.share <= 1:
            raise ValueError(
                f"share={self.share}: must lie in (0, 1], the share of rows along loss.order"
            )
        if self.levels != "independent":
            raise ValueError(
                f"levels={self.levels!r}: not with loss.kind=along_order, must be 'independent'"
            )
        if self.infill:
            raise ValueError(
                f"infill={self.infill}: not with loss.kind=along_order, must be 0: a row keeps its "
                "states from step to step"
            )
        if self.share == 1 and self.interval != (0, 1):
            raise ValueError(
                f"interval={self.interval}: not with loss.kind=along_order and share=1, as "
                "all rows are along the order and draw no times; must be (0, 1)"
            )

    def check(self, recipe: Recipe) -> None:
        super().check(recipe)
        if recipe.data.packed:
            raise ValueError(
                "loss.kind=along_order: not with data.packed, whose documents share rows"
            )
        pace = recipe.order()
        if own_times(pace, recipe.data.length):
            raise ValueError(f"loss.kind=along_order: not with pace={pace!r}, choose one of them")

    def check_process(self, process: ForwardProcess) -> None:
        super().check_process(process)
        try:
            dd.contrib.TrainingRows.check(process, self.order)
        except (TypeError, ValueError) as error:
            raise ValueError(f"loss.order={self.order!r}: {error}") from error

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        recipe = setting.recipe
        data = setting.data
        world = setting.world
        from recipes.data import lookup  # imports grain, which help does without

        find = lookup(data.train, length=recipe.data.length, pad_id=data.fill_id, seed=recipe.seed)
        shared = _Shared(
            setting.process,
            recipe,
            find,
            _spread(recipe.batch, 1 - self.share),
            setting.network.parameterization,
            self,
            self.count_padding and setting.padded,
            world.device,
        )
        rows = torch.arange(world.rank, recipe.batch, world.size)
        self._parts = [_Part(shared, numbers) for numbers in rows.split(setting.micro)]

    def batches(self, stream: Iterator[list[Batch]]) -> Iterator[list[Batch]]:
        """Yield the examples of the next step, a batch for each micro-batch."""
        while True:
            yield [part.batch for part in self._parts]

    def ahead(self, batches: list[Batch], step: int) -> list[Any]:
        """Return the micro-batches: the states of a step are those to which the one before led."""
        return batches

    def prepare(self, batches: list[Any], step: int) -> list[NoisyBatch]:
        """Return the states of the next step, a part for each micro-batch."""
        return [part.noisy(step) for part in self._parts]

    def losses(
        self, raw: Tensor, noisy: NoisyBatch, network: Network, scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(noisy, InRows)
        rows = noisy.rows
        output = network.output(raw, observe=rows.observe)
        # every edge counts 1, the rest of the weights is in the measure of the rows
        mode = rows.loss_options(self.mode)["mode"] if self.mode == "edges" else self.mode
        loss = self.total(output, noisy, network, scale, dd.weightings.Constant(), mode)
        rows.step(raw.detach(), network.model if network.split else None)
        return loss

    def after(self) -> None:
        """Put the next example into every row that is finished or at random noise."""
        for part in self._parts:
            part.replace()

    def tensors(self) -> dict[str, Tensor]:
        """Return the progress of the rows of all processes, in their order in the batch."""
        mine = [torch.cat([part.progress()[i] for part in self._parts]).cpu() for i in range(2)]
        gathered = self.setting.world.gather(mine)
        columns = [
            torch.stack(list(column), 1).flatten(0, 1) for column in zip(*gathered, strict=True)
        ]  # type: ignore[call-overload]
        steps = torch.tensor(self._parts[0].rows.steps)
        return {"states": columns[0], "turns": columns[1], "steps": steps}

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore the result of ``tensors``."""
        for part in self._parts:
            part.load(
                state["states"][part.numbers], state["turns"][part.numbers], int(state["steps"])
            )

    @property
    def about_weights(self) -> str:
        return "scaled to all edges of a sequence"

    def terms(self) -> list[str]:
        share = "" if self.share == 1 else f" for {self.share:g} of the rows"
        return [*super().terms(), f"along the order {self.order!r}{share}"]


@dataclass(frozen=True)
class _Shared:
    """Options and examples of the rows of all micro-batches.

    Those of the class above.
    """

    process: dd.processes.ForwardProcess
    recipe: Recipe
    find: Callable[[list[int]], Batch]
    """Function that returns the examples at some positions of the global order."""
    random: Bool[Tensor, " batch"]
    """True at the rows of the whole batch that are at random noise."""
    parameterization: str | dd.Children
    objective: AlongOrder
    counted: bool
    device: torch.device

    def examples(self, numbers: Int[Tensor, " n"], turns: Int[Tensor, " n"]) -> Batch:
        """Return the examples of some rows, by the number of examples that each row had before."""
        return self.find((numbers + turns * self.recipe.batch).tolist()).to(self.device)

    def free(self, batch: Batch) -> Bool[Tensor, "B L"]:
        """Return the positions that descend: all but given tokens, or real ones of these."""
        return batch.free if self.counted else batch.free & batch.mask


class _Part:
    """Rows of a micro-batch."""

    def __init__(self, shared: _Shared, numbers: Int[Tensor, " B"]) -> None:
        recipe = shared.recipe
        self._shared = shared
        self.numbers = numbers
        self.turns = torch.zeros_like(numbers)
        self.batch = shared.examples(numbers, torch.zeros_like(numbers))
        self.rows = dd.contrib.TrainingRows(
            shared.process,
            shared.objective.order,
            self.batch.x,
            shared.free(self.batch),
            per_step=shared.objective.per_step,
            parameterization=shared.parameterization,
            seed=recipe.seed,
            index=numbers.to(self.batch.x.device),
            total=recipe.batch,
        )
        self._random: Bool[Tensor, " B"] = shared.random[numbers]

    def noisy(self, step: int) -> NoisyBatch:
        """Return the states of the next step.

        Rows at random noise are drawn, by (seed, step) and their number.
        """
        rows = self.rows
        shared = self._shared
        recipe = shared.recipe
        objective = shared.objective
        drawn = torch.ones(len(self.numbers), dtype=torch.float64, device=rows.x.device)
        t = rows.t.clone()  # an assignment to part of the property would be lost
        some = self._random.nonzero()[:, 0]
        if len(some):
            rank = (
                shared.random.cumsum(0)[self.numbers[some]] - 1
            )  # consecutive, so that times are stratified
            batch = replace(
                _select_rows(self.batch, some),
                index=(rank + step * int(shared.random.sum())).to(rows.x.device),
            )
            options = NoiseOptions(interval=objective.interval, weigh_times=objective.weigh_times)
            draw = options, objective.density
            random = add_noise(shared.process, batch, recipe.seed, step, *draw)
            rows.z[some] = torch.where(rows.free[some], random.z, batch.x)
            t[some] = random.t.to(t)
            drawn[some] = random.measure.to(drawn)
        measure = drawn * rows.draw(objective.mode_name).measure
        return InRows(
            x=rows.x.clone(),
            z=rows.z.clone(),
            t=t,
            measure=measure,
            mask=shared.free(self.batch),
            labels=self.batch.labels,
            rows=rows,
        )

    def replace(self) -> None:
        rows = self.rows
        ended = ((rows.levels == 0).all(-1).cpu() | self._random).nonzero()[:, 0]
        if not len(ended):
            return
        self.turns[ended] += 1
        new = self._shared.examples(self.numbers[ended], self.turns[ended])
        rows.replace(ended.to(rows.x.device), new.x, self._shared.free(new))
        self.batch = _put(self.batch, ended, new)

    def progress(self) -> tuple[Tensor, Tensor]:
        return self.rows.z, self.turns

    def load(self, states: Tensor, turns: Tensor, steps: int) -> None:
        self.turns = turns.clone()
        self.batch = self._shared.examples(self.numbers, turns)
        self.rows.load_state_dict(
            {"x": self.batch.x, "z": states, "free": self._shared.free(self.batch), "steps": steps}
        )


def _spread(batch: int, share: float) -> Bool[Tensor, " B"]:
    """Return the rows at random noise, (batch,) bool: a share of them, evenly spread."""
    steps = (torch.arange(batch + 1, dtype=torch.float64) * share + 1e-9).floor()
    return steps.diff() > 0


def _select_rows(batch: Batch, rows: Tensor) -> Batch:
    """Return some rows of an unpacked batch."""
    rows = rows.to(batch.x.device)
    return Batch(*(None if part is None else part[rows] for part in vars(batch).values()))


def _put(batch: Batch, rows: Tensor, new: Batch) -> Batch:
    """Return an unpacked batch with new examples in some rows."""
    rows = rows.to(batch.x.device)
    return Batch(
        *(
            None if part is None else part.index_copy(0, rows, other)
            for part, other in zip(vars(batch).values(), vars(new).values(), strict=True)
        )
    )
