"""Memory of a run before it starts: passes of a few rows, extrapolated to the rows of a step.

The network has its full size, so the machine must hold its weights three times; a GPU is used where
there is one. Blocks are not compiled: compilation stores less. The optimizer's state is not
allocated but counted.
"""

import math
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ddlib.typing import implements
from recipes.config import Recipe, at_least
from recipes.engine.model_protocols import HasBlocks
from recipes.engine.objectives.bound import Bound
from recipes.engine.objectives.noising import NoisyBatch
from recipes.engine.parallel import World
from recipes.engine.run import Run
from recipes.engine.setup import Rehearsal, micro_batch
from recipes.engine.utilisation import device_peak, operations, peak

TOKENS = 512
"""Tokens of the smaller of two passes, as far as the rows of a step reach."""

USUAL = 0.4
"""Share of the peak of a device that large networks usually reach in training."""


class Memory(TorchDispatchMode):
    """Context that counts the bytes of tensors allocated in it, after every operation, in parts
    that ``cut`` ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[list[int]] = [[0]]
        self._bytes = 0
        self._seen: dict[int, Any] = {}

    def cut(self, *_: Any) -> None:
        """Begin the next part."""
        self.parts.append([self._bytes])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._add((args, kwargs), counted=False)  # allocated before
        result = func(*args, **kwargs)
        self._add(result, counted=True)
        self.parts[-1].append(self._bytes)
        return result

    def _add(self, values: Any, counted: bool) -> None:
        for value in tree_leaves(values):
            if (
                isinstance(value, Tensor)
                and id(storage := value.untyped_storage()) not in self._seen
            ):
                size = storage.nbytes() if counted else 0
                self._bytes += size
                key = id(storage)
                self._seen[key] = weakref.finalize(storage, self._release, key, size)
                self._seen[key].atexit = False

    def _release(self, key: int, size: int) -> None:
        self._bytes -= size
        del self._seen[key]


@dataclass(frozen=True)
class Growth:
    """Bytes over the operations of a pass of ``rows`` rows, and of one of twice as many."""

    rows: int
    one: list[list[int]]
    two: list[list[int]]

    @classmethod
    def of(cls, rows: int, one: list[list[int]], two: list[list[int]]) -> "Growth":
        """Return the growth of passes with the same parts, or of each as one part."""
        same = len(one) == len(two)
        return cls(rows, one, two) if same else cls(rows, [list(chain(*one))], [list(chain(*two))])

    def part(
        self, number: int, rows: int, value: Callable[[Iterable[float]], float] = max
    ) -> float:
        """Return the largest bytes of a part for some rows, or another ``value`` of its
        operations.
        """
        one = self.one[number]
        two = self.two[number]
        if len(one) != len(two):  # the loss groups rows by their noise
            one = [int(value(one))]
            two = [int(value(two))]
        more = rows / self.rows - 1
        return value(
            first + max(second - first, 0) * more for first, second in zip(one, two, strict=True)
        )

    def peak(self, rows: int) -> float:
        """Return the largest bytes of the pass."""
        return max(self.part(number, rows) for number in range(len(self.one)))


class Layout(NamedTuple):
    """Bytes of one device in a way to distribute a run."""

    name: str
    rows: int
    parameters: float
    gradients: float
    optimizer: float
    average: float
    gathered: float
    activations: float
    loss: float
    training: float
    validation: float


def estimate(recipe: Recipe, devices: int = 1) -> str:
    """Return a table of the memory of each device: on one, and on several with copies or shards of
    the weights.

    Below it are the operations of the run, and the time that they take at a usual utilisation.

    Args:
        recipe: the run; its text is prepared.
        devices: number of devices.

    Raises:
        ValueError, OSError: as ``Run.prepare``; a batch that does not divide.
    """
    at_least(1, estimate=devices)
    return f"{table(layouts(recipe, devices))}\n{work(recipe, devices)}"


def work(recipe: Recipe, devices: int) -> str:
    """Return the operations of a run, and its hours on devices that reach ``USUAL`` of their
    peak.
    """
    run = _rehearse(recipe, _device())
    step = operations(run) * recipe.batch
    known = device_peak(recipe.hardware, run.world.device)
    name = "H100" if known is None else "this device"
    speed = known or peak("H100", recipe.hardware.bf16) or math.nan
    hours = step * recipe.steps / (USUAL * speed * devices) / 3600
    return (
        f"operations: {step / 1e12:,.3g} TFLOP a step, {step * recipe.steps:.3g} FLOP in "
        f"{recipe.steps:,} steps; "
        f"{hours:,.3g} hours on {devices} x {name} at {100 * USUAL:.0f} % of {speed / 1e12:g} "
        "TFLOP/s"
    )


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _rehearse(recipe: Recipe, device: torch.device) -> Run:
    """Return a run on one device that writes nothing, whose blocks are not compiled."""
    hardware = replace(recipe.hardware, micro_batch=None, compile=False, shard=False)
    return Run.prepare(
        replace(recipe, hardware=hardware), World(0, 1, device), context=Rehearsal, writes=False
    )


def layouts(recipe: Recipe, devices: int) -> list[Layout]:
    """Return the memory of one device alone and, if there are several, of each with copies and with
    shards.

    Raises:
        ValueError: a batch that does not divide; a training objective with other evaluations of the
            network than one of a noisy batch.
    """
    if not isinstance(recipe.objective(), Bound):
        raise ValueError(
            f"estimate: not with loss.kind={recipe.loss['kind']}, which evaluates the network more "
            "than once in a step; must be bound, or a kind that adds to it"
        )
    sizes = [1] if devices == 1 else [1, devices, devices]
    worlds = [World(0, size, _device()) for size in sizes]
    rows = [micro_batch(recipe, world) for world in worlds]
    few = max(min(min(rows) // 2, TOKENS // recipe.data.length), 1)
    run = _rehearse(replace(recipe, batch=few), _device())
    state = sum(_state(optimizer) for optimizer in run.state.optimizers)
    copied = 0 if run.state.average is None else _size(run.state.average.weights.values())
    run.state = replace(
        run.state, average=None
    )  # free, and validation is measured without its exchange
    fresh, held, validation = _growths(run, few)

    def layout(world: World, rows: int, shard: bool, name: str) -> Layout:
        model = run.network.model
        process = run.process
        share = world.size if shard else 1
        whole = _size([*model.buffers(), *process.parameters(), *process.buffers()])
        weights = _size(model.parameters()) / share + whole
        gradients = _size(p for p in model.parameters() if p.requires_grad) / share
        average = copied / share
        gathered = _gathered_bytes(model, recipe.hardware.bf16) if shard else 0.0
        # gradients are there during a pass if one went before, or if they are views of the buckets
        # that are exchanged
        stays = world.size > 1 or recipe.batch > rows
        growth = held if stays else fresh
        activations = growth.part(-3, rows, lambda values: list(values)[-1])
        fixed = weights + state / share + average
        training = (
            fixed + gathered + gradients * stays + max(growth.peak(rows), gradients * (not stays))
        )
        buckets = gradients * (world.size > 1 and not shard)
        return Layout(
            name,
            rows,
            weights,
            gradients,
            state / share,
            average,
            gathered,
            activations,
            growth.part(-2, rows) - activations,
            training,
            fixed + gathered + buckets + validation.peak(rows),
        )

    names = ["one device", f"copies on {devices} (DDP)", f"shards on {devices} (FSDP2)"]
    return [
        layout(world, count, number == 2, name)
        for number, (world, count, name) in enumerate(zip(worlds, rows, names, strict=False))
    ]


def _growths(run: Run, few: int) -> tuple[Growth, Growth, Growth]:
    """Measure passes without gradients before them, passes that add to gradients, and passes of
    validation.
    """
    passes: list[Memory] = []

    def measure_growth(call: Callable[[], Any]) -> list[list[int]]:
        with Memory() as memory:
            passes.append(memory)
            call()
        return memory.parts

    def cutting(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            passes[-1].cut()
            result = inner(*arguments, **options)
            passes[-1].cut()
            return result

        return call

    def train_once(noisy: NoisyBatch) -> None:
        noisy = run.state.objective.before(noisy, run.use_averages)
        run.called(run.state.objective.loss, noisy, scale)[0].backward()

    objective = run.state.objective
    objective.losses = cutting(objective.losses)
    run.network.predict = cutting(run.network.predict)
    growths = []
    scale = torch.ones((), device=run.world.device)
    for rows in (few, 2 * few):
        run.recipe = replace(
            run.recipe, batch=rows, output=replace(run.recipe.output, validate_sequences=rows)
        )
        objective.begin(run.setting)
        (prepared,) = objective.prepare(run.ready(next(run.batches()), 0), 0)
        run.network.zero_grad()
        passed = [measure_growth(lambda prepared=prepared: train_once(prepared)) for _ in range(2)]
        run.network.zero_grad()
        growths.append([*passed, measure_growth(run.validate)])
    return tuple(Growth.of(few, *both) for both in zip(*growths, strict=True))


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _state(optimizer: torch.optim.Optimizer) -> float:
    """Return the bytes of an optimizer's state, from a step of its smallest weight."""
    weights = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if not weights:
        return 0.0
    probe = min(weights, key=lambda weight: (weight.numel() < 2, weight.numel()))
    probe.grad = torch.zeros_like(probe)
    optimizer.step()
    probe.grad = None
    values = [value for value in optimizer.state[probe].values() if isinstance(value, Tensor)]
    return (
        _size(value for value in values if value.shape == probe.shape)
        / probe.numel()
        * sum(weight.numel() for weight in weights)
    )


def _gathered_bytes(model: nn.Module, half: bool) -> float:
    """Return the bytes of the weights that FSDP2 gathers, and of their gradients before they are
    scattered.

    The weights outside of the blocks stay gathered in a step, and those of two blocks, one of them
    in advance.
    """
    inside = (
        [_size(block.parameters()) for block in model.blocks]
        if implements(model, HasBlocks)
        else [0]
    )
    outside = _size(model.parameters()) - sum(inside)
    block = max(inside)
    return (outside + 2 * block + outside + block) / (2 if half else 1)


def table(layouts: list[Layout]) -> str:
    """Format the bytes of every layout in MB."""
    rows = [
        ("MB of each device", [one.name for one in layouts]),
        ("rows of a pass", [f"{one.rows:,}" for one in layouts]),
    ]
    named = {
        "average": "average of the weights",
        "gathered": "gathered weights",
        "loss": "loss, beside activations",
    }
    named |= {"training": "peak of a training step", "validation": "peak of validation"}
    rows += [
        (named.get(name, name), [f"{getattr(one, name) / 1e6:,.1f}" for one in layouts])
        for name in Layout._fields[2:]
    ]
    return "\n".join(
        f"{name:<24}" + "".join(f"{value:>22}" for value in values) for name, values in rows
    )
