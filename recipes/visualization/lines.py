"""Samples as files of other programs: FASTA for proteins and DNA, one sample a line for SMILES and
the like.
"""

from collections.abc import Sequence
from pathlib import Path

WIDTH = 60
"""Letters of a line of FASTA."""


def write_fasta(path: Path | str, sequences: Sequence[str], names: Sequence[str] = ()) -> None:
    """Write sequences in the FASTA format: a line ``>name``, then the letters, 60 in a line.

    Args:
        path: file.
        sequences: one string of letters each.
        names: name of each; by default sample_0, sample_1, ...

    Raises:
        ValueError: a sequence with ">" or blanks, a name with a line break, a wrong number of
            names.
    """
    names = names or [f"sample_{number}" for number in range(len(sequences))]
    if len(names) != len(sequences):
        raise ValueError(
            f"names has {len(names)} entries, must have {len(sequences)}: one for each sequence"
        )
    lines = []
    for number, (name, sequence) in enumerate(zip(names, sequences, strict=True)):
        if ">" in sequence or any(letter.isspace() for letter in sequence):
            raise ValueError(f"sequence {number}, {sequence!r}: may contain neither '>' nor blanks")
        if len(name.splitlines()) != 1:
            raise ValueError(f"name {number}, {name!r}: must be one line")
        lines.append(f">{name}")
        lines += [sequence[first : first + WIDTH] for first in range(0, len(sequence), WIDTH)]
    Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_lines(path: Path | str, sequences: Sequence[str]) -> None:
    """Write one sequence a line, e.g. a .smi file of SMILES.

    Raises:
        ValueError: a sequence with a line break.
    """
    for number, sequence in enumerate(sequences):
        if len(sequence.splitlines()) > 1:
            raise ValueError(f"sequence {number}, {sequence!r}: must be one line")
    Path(path).write_text("".join(f"{sequence}\n" for sequence in sequences), encoding="utf-8")
