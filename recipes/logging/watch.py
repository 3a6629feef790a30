"""All output of a run during training: the bar, metrics.jsonl, the boards, the files of samples."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self

import numpy as np
from jaxtyping import Float
from rich.text import Text
from torch import Tensor

from recipes.config import Recipe
from recipes.console import TrainingBar, make_console, on_its_way
from recipes.data import Prepared
from recipes.logging.boards import chosen_boards
from recipes.logging.metrics import METRICS, Metrics
from recipes.metrics import References, Terms, basis, bits


@dataclass(frozen=True)
class Step:
    """Results of a step, the same on every process."""

    loss: float
    """Nats per token, over all processes."""
    norm: float
    """Norm of the gradient before clipping."""
    rate: float
    levels: Float[Tensor, "n 2"]
    """Sum of the loss and number of tokens at every level of the noise."""
    names: Sequence[str]
    """Names of these levels."""
    stop: bool
    """Whether any process received a signal to stop."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Further numbers of the training objective by name."""


P = ParamSpec("P")

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
TIMES = tuple(tenth / 10 for tenth in range(10, -1, -1))
"""Times at which the trajectory of a sample is shown."""


def _first_only(
    method: Callable[Concatenate["Watch", P], None],
) -> Callable[Concatenate["Watch", P], None]:
    @wraps(method)
    def log_first(self: "Watch", *args: P.args, **kwargs: P.kwargs) -> None:
        if self._first:
            method(self, *args, **kwargs)

    return log_first


class Watch:
    """Output of a run, which only the first process writes.

    ``seconds`` in the records, tokens/s and the time left count training and saving, not validating
    and sampling, and not steps lost by a kill. Tokens are all positions of the network's input,
    padding included. ``tokens_per_second`` is since the start of the process;
    ``window_tokens_per_second``, ``step_seconds`` and ``mfu``, the share of the devices' peak, are
    those of the steps since the record before.

    Args:
        recipe: configuration of the run; its output folder exists.
        first: whether this process is the first.
        start: steps that were made before; records of later ones are removed.
        fastest: seconds of a step at the devices' peak; None where it is unknown, then there is no
            ``mfu``.
        padded: whether sequences have padding.

    Raises:
        ModuleNotFoundError: a configured board is not installed.
        ValueError: the metrics in the folder are damaged.
    """

    def __init__(
        self,
        recipe: Recipe,
        first: bool,
        start: int,
        fastest: float | None = None,
        padded: bool = True,
    ) -> None:
        self._first = first
        self._recipe = recipe
        self._fastest = fastest
        self._stack = ExitStack()
        if first:
            self._open(recipe, start, padded)

    def _open(self, recipe: Recipe, start: int, padded: bool) -> None:
        makers = chosen_boards(recipe)
        folder = recipe.output.folder
        with ExitStack() as stack:
            known = start or -1  # the values before the first step are measured again
            self._metrics = stack.enter_context(Metrics(folder / METRICS, known))
            self._before = max(
                (record.get("seconds", 0.0) for record in self._metrics.kept), default=0.0
            )
            self._boards = [stack.enter_context(make(start)) for make in makers]
            self._console = make_console()
            self._window = (
                start,
                0.0,
                0,
            )  # of the last record: number of the step, seconds, tokens
            objective = recipe.objective()
            about = objective.about(padded)
            self._bar = stack.enter_context(
                TrainingBar(self._console, "step", recipe.steps, start, about, objective.unit)
            )
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def close(self) -> None:
        """End the bar, and flush the boards."""
        self._stack.close()

    @_first_only
    def say(self, message: str) -> None:
        """Print a line above the bar."""
        self._console.print(message, markup=False, soft_wrap=True)

    @_first_only
    def aside(self, message: str) -> None:
        """Print a line, and exclude the time since the last step from the training time."""
        self.say(message)
        self._bar.leave_out()

    @_first_only
    def step(self, number: int, step: Step) -> None:
        """Report a step, after which ``number`` are made."""
        losses, tokens = step.levels.double().cpu().T.tolist()
        total = sum(tokens)
        self._bar.step(number, step.loss, round(total))
        if number % self._recipe.output.log_every and number != self._recipe.steps:
            return
        seen = {
            name: pair for name, *pair in zip(step.names, losses, tokens, strict=True) if pair[1]
        }
        self._record(
            number,
            "train",
            loss=step.loss,
            norm=step.norm,
            rate=step.rate,
            tokens=round(total),
            levels={level: loss / count for level, (loss, count) in seen.items()},
            share={level: count / total for level, (_, count) in seen.items()},
            seconds=self._before + self._bar.seconds,
            tokens_per_second=self._bar.speed,
            **self._since(number),
            **step.numbers,
        )

    def _since(self, number: int) -> dict[str, float]:
        """Return the speeds since the last record."""
        before = self._window
        self._window = (number, self._bar.seconds, self._bar.tokens)
        steps, seconds, tokens = (
            now - then for now, then in zip(self._window, before, strict=True)
        )
        seconds = max(seconds, 1e-9)
        speeds = {"window_tokens_per_second": tokens / seconds, "step_seconds": seconds / steps}
        if self._fastest is not None:
            speeds["mfu"] = self._fastest * steps / seconds
            self._bar.note = f"  MFU {100 * speeds['mfu']:.1f} %"
        return speeds

    @_first_only
    def weights(self, number: int, weights: Float[Tensor, " N"]) -> None:
        """Report loss weights of noisy tokens; empty ones are skipped."""
        values = weights.detach().double().cpu().numpy()
        if not len(values):
            return
        quantiles = dict(
            zip(map(str, QUANTILES), np.quantile(values, QUANTILES).tolist(), strict=True)
        )
        self._record(
            number, "weights", count=len(values), mean=float(values.mean()), quantiles=quantiles
        )
        for board in self._boards:
            board.histogram(number, "weights/histogram", values)

    @_first_only
    def bound(
        self,
        number: int,
        terms: Terms,
        data: Prepared | None = None,
        references: References | None = None,
    ) -> None:
        """Report the bound on the validation data, which determines the unit of its bits, beside
        its references.
        """
        whole = terms.per_token
        name, unit = ("bits_per_token", "bits/token") if data is None else bits(data)
        noun = "text" if data is None or data.is_text else "sequence"
        names = ("diffusion", "prior", "reconstruction")
        parts = {name: terms.term(place).value for place, name in enumerate(names)}
        self._record(
            number,
            "bound",
            nats_per_token=whole.value,
            **{name: whole.value / math.log(2)},
            standard_error=whole.standard_error,
            error_method=whole.method,
            **parts,
            sequences=len(terms.index),
            draws=terms.draws,
            **({} if references is None else asdict(references)),
        )
        split = " + ".join(f"{name} {value:.4f}" for name, value in parts.items())
        sample = basis(len(terms.index), terms.draws, noun)
        beside = "" if references is None else f"; {references.beside(whole.value)}"
        self.say(
            f"  step {number}: validation bound {whole} over {sample} ({split}; "
            f"{whole.value / math.log(2):.4f} {unit})"
            f"{beside}"
        )
        self._bar.leave_out()

    @_first_only
    def samples(
        self, number: int, texts: Sequence[str], trace: Sequence[tuple[float, str | Text]]
    ) -> None:
        """Report finished samples, and the trajectory of the first one: (t, noisy text)."""
        parts = [f"sample {place}\n{text}" for place, text in enumerate(texts, start=1)]
        if trace:
            # one state can be the nearest to several tenths
            times = np.array([t for t, _ in trace])
            near = dict.fromkeys(int(abs(times - time).argmin()) for time in TIMES)
            way = [str(on_its_way(*trace[place])) for place in near]
            parts.append("\n".join(["sample 1 as it denoises", *way]))
        text = "\n\n".join(parts) + "\n"
        path = self._recipe.output.folder / "samples" / f"step_{number:08d}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        for board in self._boards:
            board.text(number, "samples", text)
        self.say(f"  step {number}: samples in {path}")
        self._bar.leave_out()

    def _record(self, number: int, kind: str, **values: Any) -> None:
        record = {"step": number, "kind": kind, **values}
        self._metrics.write(record)
        for board in self._boards:
            board.scalars(number, dict(_flat(kind, values)))


def _flat(name: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{name}/{key}", value)
        elif not isinstance(value, str) and math.isfinite(value):
            yield f"{name}/{key}", value
