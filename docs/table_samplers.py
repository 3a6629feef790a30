"""Writes the table of docs/samplers.md, every sampler on every process: ``python docs/table_samplers.py``.

A cell says on how many of the examples of a class of processes ``dd.verify`` proves a sampler right; the notes say why
it is refused on the others. The command fails where a sampler is refuted.
"""

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import ddlib as dd
from ddlib.processes import ForwardProcess
from ddlib.samplers import Corrector, Sampler

PAGE = Path(__file__).parent / "samplers.md"
BEGIN, END = "<!-- table: python docs/table_samplers.py -->", "<!-- end of table -->"


def short(part: Any) -> str:
    """A sampler or a corrector as one would write it, defaults left out."""
    said = []
    for name, parameter in signature(type(part)).parameters.items():
        value = getattr(part, name, parameter.default)
        if value != parameter.default:
            own = isinstance(value, Sampler | Corrector)
            said.append(short(value) if own else f"{name}={value!r}")
    return f"{type(part).__name__}({', '.join(said)})"


def refusal(sampler: Sampler, process: ForwardProcess) -> str:
    """Why the sampler does not serve the process; empty where it is verified."""
    try:
        report = dd.verify(sampler, on=process)
    except TypeError as error:
        return str(error).replace(repr(process), "this process").replace(type(process).__name__, "this process")
    if not report.ok:
        raise SystemExit(f"{sampler!r} on {process!r} is refuted:\n{report}")
    return ""


def cell(sampler: Sampler, processes: Sequence[ForwardProcess], notes: list[str]) -> str:
    """How many of the processes it is verified on, and the numbers of the notes on the others."""
    reasons = [refusal(sampler, process) for process in processes]
    good, refused = reasons.count(""), dict.fromkeys(filter(None, reasons))
    notes.extend(reason for reason in refused if reason not in notes)
    numbers = ", ".join(str(notes.index(reason) + 1) for reason in refused)
    count = f"all {good}" if good == len(reasons) else f"{good} of {len(reasons)}" if good else "-"
    return f"{count} <sup>{numbers}</sup>" if numbers else count


def row(sampler: Sampler, notes: list[str]) -> str:
    """A line of the table; reasons that no note says yet are added to the notes."""
    kinds = (dd.registry.get("processes", name).examples() for name in dd.registry.own("processes"))
    return f"| `{short(sampler)}` | {' | '.join(cell(sampler, examples, notes) for examples in kinds)} |"


def table() -> str:
    """The table and its notes."""
    kinds, notes = dd.registry.own("processes"), list[str]()
    lines = [f"| sampler | {' | '.join(kinds)} |", "| --- |" + " --- |" * len(kinds)]
    for name in dd.registry.own("samplers"):
        lines += [row(sampler, notes) for sampler in dd.registry.get("samplers", name).examples()]
    return "\n".join([*lines, "", *(f"{number}. {note}" for number, note in enumerate(notes, 1))])


def main() -> None:
    """The command."""
    found = table()
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{found}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
