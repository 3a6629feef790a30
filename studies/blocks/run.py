"""Block sizes of docs/studies/blocks.md.

Masks and a hierarchy, at once and in ever smaller blocks, at equal budget.

A killed training is resumed by the same command. With ``--out`` another machine makes the runs that
are missing in the file. Protocol and expectations were written before the runs.

A record of the code: it ran at commit c97867fc, and protocol.md has the commands.
"""

import os
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from recipes.config import Recipe, recipe_yaml
from recipes.engine.provenance import provenance
from studies.blocks import page as blocks_page
from studies.budgets.run import EDGES_64, MODELS
from studies.corpus_study import LENGTH, TINY, CorpusStudy, together
from studies.study import Run, by_text, curve, earlier, finished, less, shared, written


@dataclass(frozen=True)
class Blocks(CorpusStudy):
    """Kinds of noise by sizes of a block.

    The first size is the whole sequence, which is plain diffusion.
    """

    results = blocks_page.PAGE
    commands = ("train", "evaluate", "page")
    sizes: tuple[int, ...] = (LENGTH, 32, 8, 4, 1)
    kinds: tuple[str, ...] = ("MDLM", EDGES_64)
    millions: float = 2
    seeds: tuple[int, ...] = (0, 1)

    @classmethod
    def tiny(cls) -> Self:
        """Return two sizes, one seed and ten steps."""
        return cls(TINY, sizes=(LENGTH, 32), millions=0.005, seeds=(0,))

    def runs(self, work: Path) -> Iterator[tuple[str, int, int, Recipe]]:
        """Yield all runs: kind, size of a block, seed, recipe."""
        for seed in self.seeds:
            for size in self.sizes:
                for kind in self.kinds:
                    given = self.setting.recipe(
                        work, f"blocks-{size}-{kind}", MODELS[kind], self.millions, seed
                    )
                    yield (
                        kind,
                        size,
                        seed,
                        given if size == LENGTH else replace(given, pace=f"blocks:size={size}"),
                    )

    def train(self, options: Namespace) -> None:
        """Train the runs that the result file does not have."""
        known = earlier(options.out, "kind", "size", "seed")
        shared(
            [given for *key, given in self.runs(options.work) if tuple(key) not in known], options
        )

    def evaluate(self, options: Namespace) -> None:
        """Write the result file: all runs made or known, in nats per token, errors over texts."""
        known, work = earlier(options.out, "kind", "size", "seed"), options.work
        found, about = dict[tuple[str, int, int], Run](), provenance() | {"cores": os.cpu_count()}
        for kind, size, seed, given in self.runs(work):
            if (kind, size, seed) in known:
                run = known[kind, size, seed]
            elif finished(given):
                whole = together(self.setting.tested(work, given.output.folder))
                run = {
                    "kind": kind,
                    "size": size,
                    "seed": seed,
                    "bound": asdict(whole.per_token),
                } | by_text(whole)
                run |= {"curve": curve(given.output.folder), "provenance": about}
            else:
                continue
            found[kind, size, seed] = run
            others = {
                "less_whole_text": (kind, LENGTH, seed),
                "less_mdlm": (self.kinds[0], size, seed),
            }
            for name, other in others.items():
                run.pop(name, None)  # from an earlier file
                if other in found:
                    run[name] = less(run, found[other])
            print(kind, size, seed, run["bound"], flush=True)
        shown = recipe_yaml(next(self.runs(Path("work")))[3])
        written(options.out, {"recipe": shown, "runs": list(found.values())})


STUDY = Blocks()

if __name__ == "__main__":
    STUDY.main(__doc__)
