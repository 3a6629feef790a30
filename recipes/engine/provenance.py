"""Provenance of a run: code, machine and command."""

import hashlib
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

STARTS = "starts.jsonl"
PACKAGES = ("ddlib", "torch", "datasets", "grain", "tokenizers")


def provenance(plugins: Mapping[str, Mapping[str, str | None]] | None = None) -> dict[str, Any]:
    """Return commit (and the hash of uncommitted changes), versions, device, command, time.

    Args:
        plugins: package and version of the parts that are not in ddlib, by kind.
    """
    others = {part["package"]: part["version"] for part in (plugins or {}).values()}
    changes = _git("diff", "HEAD")
    return {
        "commit": _git("rev-parse", "HEAD"),
        "changes": hashlib.sha256(changes.encode()).hexdigest() if changes else None,
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in PACKAGES}
        | others,
        "device": torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else platform.processor() or "CPU",
        "command": ["python", *sys.orig_argv[1:]],
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def record(
    folder: Path, step: int, plugins: Mapping[str, Mapping[str, str | None]] | None = None
) -> list[str]:
    """Append a line to ``starts.jsonl``: this start of the run, and the step that it begins at.

    Returns:
        The changes of the code and its packages since the last start.
    """
    path = folder / STARTS
    now = provenance(plugins)
    before = _last(path) or now
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step} | now) + "\n")
    messages = []
    if (before["commit"], before["changes"]) != (now["commit"], now["changes"]):
        messages.append("the code is not the same as at the last start: losses may differ")
    for name, value in now["versions"].items():
        if before["versions"].get(name) != value:
            messages.append(f"{name} is {value}, was {before['versions'].get(name)}")
    return messages


def _last(path: Path) -> dict[str, Any] | None:
    """Return the last line; None if there is none, or an interrupted write truncated it."""
    try:
        return json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
    except (FileNotFoundError, IndexError, json.JSONDecodeError):
        return None


def _git(*arguments: str) -> str | None:
    """Return git's output for the checkout of this code; None outside of one."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
