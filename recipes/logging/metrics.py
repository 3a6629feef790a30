"""Metrics of a run in metrics.jsonl, one JSON object per line, each with its step."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

METRICS = "metrics.jsonl"
TIMING = ("seconds", "tokens_per_second", "window_tokens_per_second", "step_seconds", "mfu")
"""Fields of a record that differ between two equal runs."""

Record = Mapping[str, Any]


def read_metrics(path: Path) -> Iterator[tuple[bytes, Record]]:
    """Yield every record and its line; a truncated last line is left out.

    Raises:
        ValueError: another line is not a record.
    """
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            whole = (
                line.endswith(b"\n")
                and isinstance(record["step"], int)
                and isinstance(record["kind"], str)
            )
        except (ValueError, TypeError, KeyError):
            whole = False
        if whole:
            yield line, record
        elif number < len(lines):
            raise ValueError(
                f"{path}, line {number}: not a JSON object with step and kind: {line[:80]!r}"
            )


class Metrics:
    """Writer of records; those of steps that will be repeated are cut off first.

    A record is written in one call, so a process that is killed leaves one broken line at most, the
    last.

    Args:
        path: path of the file; its folder exists.
        start: the last step whose records stay.
    """

    def __init__(self, path: Path, start: int) -> None:
        records = list(read_metrics(path)) if path.exists() else []
        self.kept = [record for _, record in records if record["step"] <= start]
        temporary = path.with_name(path.name + ".tmp")
        with temporary.open("wb") as file:
            file.writelines(line for line, record in records if record["step"] <= start)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        self._file = path.open("ab", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, record: Record) -> None:
        """Append a record; a number that is not finite, which JSON does not support, becomes
        null.
        """
        values = {name: _finite(value) for name, value in record.items()}
        self._file.write((json.dumps(values, allow_nan=False) + "\n").encode())


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
