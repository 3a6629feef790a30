"""Metrics of molecules as MOSES defines them (Polykovskiy et al. 2020), computed by rdkit from
SMILES.

Results agree with the package ``molsets`` up to changes of rdkit since. Its distances that need
further networks or tables (FCD, SA, filters) are left out.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from rdkit.Chem import Mol

RADIUS = 2
BITS = 1024
"""Radius and length of the Morgan fingerprints of MOSES."""

ROWS = 1000
"""Molecules of which the similarities to all others are in memory at a time."""

PROPERTIES = ("qed", "logp", "weight")


def rdkit() -> None:
    """Import rdkit, and silence its reports on invalid molecules.

    Raises:
        ModuleNotFoundError: with the command that installs it.
    """
    try:
        from rdkit import RDLogger
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("molecules need rdkit; run: pip install rdkit") from error
    RDLogger.DisableLog("rdApp.*")


def molecule(smiles: str) -> "Mol | None":
    """Return the molecule, or None if the string is empty or no valid SMILES."""
    rdkit()
    from rdkit import Chem

    return Chem.MolFromSmiles(smiles) if smiles else None


def canonical(smiles: Sequence[str]) -> list[str | None]:
    """Return the canonical SMILES of each molecule, None for an invalid one.

    Raises:
        ModuleNotFoundError: rdkit is not installed.
        ValueError: an entry that is not a string.
    """
    rdkit()
    from rdkit import Chem

    for number, one in enumerate(smiles):
        if not isinstance(one, str):
            raise ValueError(f"molecule {number} is {one!r}: must be a string")
    molecules = map(molecule, smiles)
    return [None if one is None else Chem.MolToSmiles(one) for one in molecules]


def validity(smiles: Sequence[str]) -> float:
    """Return the share of valid molecules.

    Raises:
        ModuleNotFoundError: rdkit is not installed.
        ValueError: no molecules.
    """
    names = canonical(_some(smiles))
    return sum(one is not None for one in names) / len(names)


def uniqueness(smiles: Sequence[str], first: int | None = None) -> float:
    """Return the number of different molecules divided by that of valid ones.

    Args:
        smiles: molecules; invalid ones are left out.
        first: only this many valid ones, as in unique@1000; all by default.

    Raises:
        ModuleNotFoundError: rdkit is not installed.
        ValueError: no valid molecules, or fewer than ``first``.
    """
    valid = _valid(smiles)
    if first is not None and not 1 <= first <= len(valid):
        raise ValueError(f"first={first}: must be between 1 and the {len(valid)} valid molecules")
    valid = valid[:first]
    return len(set(valid)) / len(valid)


def novelty(smiles: Sequence[str], train: Collection[str]) -> float:
    """Return the share of the different valid molecules that training data lack.

    Args:
        smiles: molecules; invalid ones are left out.
        train: canonical SMILES of the training data; those of MOSES are canonical, 9,998 of 10,000
            also by rdkit 2026.

    Raises:
        ModuleNotFoundError: rdkit is not installed.
        ValueError: no valid molecules.
    """
    different = set(_valid(smiles))
    return len(different - set(train)) / len(different)


def internal_diversity(smiles: Sequence[str], power: int = 1) -> float:
    """Return 1 - the mean Tanimoto similarity of all pairs of valid molecules, those with
    themselves included.

    It is IntDiv of MOSES for power 1, IntDiv2 for power 2: 1 - mean over x of (mean over y of T(x,
    y)^p)^(1/p).

    Raises:
        ModuleNotFoundError: rdkit is not installed.
        ValueError: no valid molecules, a power below 1.
    """
    if power < 1:
        raise ValueError(f"power={power}: must be at least 1")
    return _diversity(_valid(smiles), power)


def properties(smiles: Sequence[str]) -> dict[str, Float[np.ndarray, " N"]]:
    """Return QED (drug-likeness, 0 to 1), logP (Crippen) and weight (g/mol) of the valid molecules.

    Raises:
        ModuleNotFoundError: rdkit is not installed.
        ValueError: no valid molecules.
    """
    return _properties(_valid(smiles))


def measure(smiles: Sequence[str], data: Sequence[str], train: Collection[str]) -> dict[str, float]:
    """Return all metrics of samples.

    Args:
        smiles: samples.
        data: molecules that are not among the training data, for the distributions of the
            properties; a few thousand.
        train: canonical SMILES of all training data.

    Returns:
        validity, uniqueness, novelty, internal_diversity, internal_diversity_of_data; then for each
        property its mean over samples, its mean over data, and the Wasserstein-1 distance of both
        distributions, as in MOSES. Without a valid molecule only validity is a number, the others
        are NaN.

    Raises:
        ModuleNotFoundError: rdkit is not installed.
        ValueError: no samples, no valid molecules in the data.
    """
    from scipy.stats import wasserstein_distance  # takes a second to import

    known = _valid(data)
    valid = [one for one in canonical(_some(smiles)) if one is not None]
    different = set(valid)
    nothing = {name: np.array([np.nan]) for name in PROPERTIES}
    of_samples = _properties(valid) if valid else nothing
    of_data = _properties(known)
    result = {
        "validity": len(valid) / len(smiles),
        "uniqueness": len(different) / len(valid) if valid else np.nan,
        "novelty": len(different - set(train)) / len(different) if valid else np.nan,
        "internal_diversity": _diversity(valid) if valid else np.nan,
        "internal_diversity_of_data": _diversity(known),
    }
    for name in PROPERTIES:
        left = of_samples[name]
        right = of_data[name]
        result |= {f"{name}_mean": float(left.mean()), f"{name}_mean_of_data": float(right.mean())}
        result[f"{name}_distance"] = float(wasserstein_distance(left, right)) if valid else np.nan
    return result


def _some(smiles: Sequence[str]) -> Sequence[str]:
    if isinstance(smiles, str) or not len(smiles):
        raise ValueError(f"smiles={smiles!r}: must be a list of one or more strings")
    return smiles


def _valid(smiles: Sequence[str]) -> list[str]:
    """Return the canonical SMILES of the valid molecules."""
    valid = [one for one in canonical(_some(smiles)) if one is not None]
    if not valid:
        raise ValueError(f"none of the {len(smiles)} molecules is valid")
    return valid


def _diversity(valid: Sequence[str], power: int = 1) -> float:
    """Return the internal diversity of valid molecules."""
    from rdkit.Chem import rdFingerprintGenerator

    generator = rdFingerprintGenerator.GetMorganGenerator(radius=RADIUS, fpSize=BITS)
    bits = np.array(
        [generator.GetFingerprintAsNumPy(molecule(one)) for one in valid], dtype=np.float32
    )
    sizes = bits.sum(1)
    means = []
    for first in range(0, len(bits), ROWS):
        common = bits[first : first + ROWS] @ bits.T  # exact: counts of at most 1024 bits
        similar = common / (sizes[first : first + ROWS, None] + sizes - common)
        means.append((similar.astype(np.float64) ** power).mean(1) ** (1 / power))
    return 1.0 - float(np.concatenate(means).mean())


def _properties(valid: Sequence[str]) -> dict[str, Float[np.ndarray, " N"]]:
    """Return the properties of valid molecules."""
    from rdkit.Chem import Crippen, Descriptors
    from rdkit.Chem.QED import qed

    parsed = [molecule(one) for one in valid]
    functions = zip(PROPERTIES, (qed, Crippen.MolLogP, Descriptors.MolWt), strict=True)
    return {name: np.array([function(one) for one in parsed]) for name, function in functions}
