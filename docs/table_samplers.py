"""Write the table of samplers and processes in docs/samplers.md: ``python docs/table_samplers.py``.

A cell is the number of examples of a process class for which ``dd.verify`` verifies the sampler.
The notes below the table are the errors that the sampler raises for the other examples. The command
fails if a verification fails.
"""

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import ddlib as dd
from ddlib.processes import ForwardProcess, Product
from ddlib.samplers import Corrector, Sampler

PAGE = Path(__file__).parent / "samplers.md"
BEGIN, END = "<!-- table: python docs/table_samplers.py -->", "<!-- end of table -->"


def short(part: Any) -> str:
    """Expression that constructs a sampler or a corrector, without default arguments."""
    said = []
    for name, parameter in signature(type(part)).parameters.items():
        value = getattr(part, name, parameter.default)
        if value != parameter.default:
            own = isinstance(value, Sampler | Corrector)
            said.append(short(value) if own else f"{name}={value!r}")
    return f"{type(part).__name__}({', '.join(said)})"


def refusal(sampler: Sampler, process: ForwardProcess) -> str:
    """Message of the error that the sampler raises for the process; empty if it is verified."""
    try:
        report = dd.verify(sampler, on=process)
    except TypeError as error:
        return (
            str(error)
            .replace(repr(process), "this process")
            .replace(type(process).__name__, "this process")
        )
    if not report.ok:
        raise SystemExit(f"{sampler!r} on {process!r} is refuted:\n{report}")
    return ""


def cell(sampler: Sampler, processes: Sequence[ForwardProcess], notes: list[str]) -> str:
    """Number of processes for which the sampler is verified, and the numbers of the notes on the
    others.
    """
    reasons = [refusal(sampler, process) for process in processes]
    good, refused = reasons.count(""), dict.fromkeys(filter(None, reasons))
    notes.extend(reason for reason in refused if reason not in notes)
    numbers = ", ".join(str(notes.index(reason) + 1) for reason in refused)
    count = f"all {good}" if good == len(reasons) else f"{good} of {len(reasons)}" if good else "-"
    return f"{count} <sup>{numbers}</sup>" if numbers else count


def kinds() -> list[str]:
    """Names of the processes; a product supports what its fields support."""
    every = dd.registry.built_in("processes")
    return [name for name in every if dd.registry.get("processes", name) is not Product]


def row(sampler: Sampler, notes: list[str]) -> str:
    """Row of the table; appends new errors to the notes."""
    every = (dd.registry.get("processes", name).examples() for name in kinds())
    return (
        f"| `{short(sampler)}` | "
        f"{' | '.join(cell(sampler, examples, notes) for examples in every)} |"
    )


def table() -> str:
    """Table with its notes, as Markdown."""
    names = kinds()
    notes = list[str]()
    lines = [f"| sampler | {' | '.join(names)} |", "| --- |" + " --- |" * len(names)]
    for name in dd.registry.built_in("samplers"):
        lines += [row(sampler, notes) for sampler in dd.registry.get("samplers", name).examples()]
    return "\n".join([*lines, "", *(f"{number}. {note}" for number, note in enumerate(notes, 1))])


def main() -> None:
    """Replace the table between the markers of the page."""
    found = table()
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{found}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
