"""State of a machine at a measurement: clocks and power of the GPU, and the load of the host."""

import os
import subprocess
from typing import Any

QUERY = ("nvidia-smi", "-q", "-d", "CLOCK,POWER")
SECTIONS = ("Clocks", "Max Clocks", "GPU Power Readings")


def state() -> dict[str, Any]:
    """Return the load averages of the host, and the answer of nvidia-smi, empty without it."""
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, timeout=20, check=True)
        answer = done.stdout
    except (OSError, subprocess.SubprocessError):
        answer = ""
    return {"load": [round(value, 2) for value in os.getloadavg()], "gpu": readings(answer)}


def readings(answer: str) -> dict[str, dict[str, str]]:
    """Return the values of some sections by their names."""
    sections = dict[str, dict[str, str]]()
    section = ""
    for line in answer.splitlines():
        name, colon, value = (part.strip() for part in line.partition(" : "))
        if not colon:
            section = name
        elif section in SECTIONS:
            sections.setdefault(section, {})[name] = value
    return sections
