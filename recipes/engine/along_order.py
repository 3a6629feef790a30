"""Training along the order of a sampler: the rows of this process, and their next sequences."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

import ddlib as dd
from ddlib.parameterization.logits import Parameterization
from ddlib.samplers.ordered import check_order
from recipes.config import Recipe, own_times
from recipes.data import Batch, Prepared, lookup
from recipes.engine.noisy import Noisy
from recipes.engine.objective import noised
from recipes.engine.parallel import World


class AlongOrder:
    """Rows of this process that descend along ``loss.order``, in micro-batches.

    Row g of the whole batch goes through the examples at the positions g, g + batch, g + 2 batch,
    ... of the global order. Rows that do not follow the order take a new example in every step, at
    random noise.

    Args:
        process: the noise.
        recipe: the run.
        data: the prepared text.
        world: this process among others.
        micro: number of rows of a micro-batch.
        parameterization: meaning of the network's logits.
        density: density of the times of rows at random noise; None is uniform.
        counted: whether padding is generated too, and counts in the loss.
    """

    def __init__(
        self,
        process: dd.processes.ForwardProcess,
        recipe: Recipe,
        data: Prepared,
        world: World,
        micro: int,
        parameterization: Parameterization,
        density: dd.times.TimeDensity | None,
        counted: bool,
    ) -> None:
        find = lookup(data.train, length=recipe.data.length, pad_id=data.fill_id, seed=recipe.seed)
        random = _spread(recipe.batch, 1 - recipe.loss.order_share)
        shared = _Shared(
            process, recipe, find, random, parameterization, density, counted, world.device
        )
        own = torch.arange(world.rank, recipe.batch, world.size)
        self._world, self._parts = world, [_Part(shared, numbers) for numbers in own.split(micro)]

    @classmethod
    def of(
        cls, process: dd.processes.ForwardProcess, recipe: Recipe, *rest: Any
    ) -> "AlongOrder | None":
        """Create the object for a recipe with ``loss.order``; arguments as of the class.

        Raises:
            ValueError: the process or the data cannot follow the order.
        """
        if recipe.loss.order is None:
            return None
        place = f"loss.order={recipe.loss.order!r}"
        if recipe.data.packed:
            raise ValueError(f"{place}: not with data.packed, whose documents share rows")
        if own_times(recipe.order(), recipe.data.length):
            raise ValueError(f"{place}: not with pace={recipe.order()!r}, choose one of them")
        try:
            check_order(process, recipe.loss.along())
        except (TypeError, ValueError) as error:
            raise ValueError(f"{place}: {error}") from error
        return cls(process, recipe, *rest)

    def batches(self) -> list[Batch]:
        """Return the examples of the next step, a batch for each micro-batch."""
        return [part.batch for part in self._parts]

    def noisy(self, step: int) -> list[Noisy]:
        """Return the states of the next step, a part for each micro-batch."""
        return [part.noisy(step) for part in self._parts]

    def replace(self) -> None:
        """Put the next example into every row that is finished or at random noise."""
        for part in self._parts:
            part.replace()

    def tensors(self) -> dict[str, Tensor]:
        """Return the progress of the rows of all processes, in their order in the batch."""
        mine = [torch.cat([part.progress()[i] for part in self._parts]).cpu() for i in range(2)]
        gathered = self._world.gather(mine)
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


@dataclass(frozen=True)
class _Shared:
    """Options and examples of the rows of all micro-batches.

    Those of the class above, except for two.
    """

    process: dd.processes.ForwardProcess
    recipe: Recipe
    find: Callable[[list[int]], Batch]
    """Function that returns the examples at some positions of the global order."""
    random: Bool[Tensor, " batch"]
    """True at the rows of the whole batch that are at random noise."""
    parameterization: Parameterization
    density: dd.times.TimeDensity | None
    counted: bool
    device: torch.device

    def examples(self, numbers: Int[Tensor, " n"], turns: Int[Tensor, " n"]) -> Batch:
        """Return the examples of some rows, by the number of examples that each row had before."""
        return self.find((numbers + turns * self.recipe.batch).tolist()).to(self.device)

    def free(self, batch: Batch) -> Bool[Tensor, "B L"]:
        """Return the positions that descend: all, or those of real tokens."""
        return torch.ones_like(batch.mask) if self.counted else batch.mask


class _Part:
    """Rows of a micro-batch."""

    def __init__(self, shared: _Shared, numbers: Int[Tensor, " B"]) -> None:
        recipe = shared.recipe
        self._shared = shared
        self.numbers = numbers
        self.turns, self.batch = (
            torch.zeros_like(numbers),
            shared.examples(numbers, torch.zeros_like(numbers)),
        )
        self.rows = dd.TrainingRows(
            shared.process,
            recipe.loss.along(),
            self.batch.x,
            shared.free(self.batch),
            per_step=recipe.loss.order_per_step,
            parameterization=shared.parameterization,
            seed=recipe.seed,
            index=numbers.to(self.batch.x.device),
            total=recipe.batch,
        )
        self._random: Bool[Tensor, " B"] = shared.random[numbers]

    def noisy(self, step: int) -> Noisy:
        """Return the states of the next step.

        Rows at random noise are drawn, by (seed, step) and their number.
        """
        rows = self.rows
        shared = self._shared
        recipe = self._shared.recipe
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
            random = noised(shared.process, batch, recipe.seed, step, recipe.loss, shared.density)
            rows.z[some] = torch.where(rows.free[some], random.z, batch.x)
            t[some] = random.t.to(t)
            drawn[some] = random.measure.to(drawn)
        measure = drawn * rows.draw(recipe.loss.mode).measure
        return Noisy(
            rows.x.clone(),
            rows.z.clone(),
            t,
            measure,
            self.batch.mask,
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
        self.turns, self.batch = turns.clone(), self._shared.examples(self.numbers, turns)
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
