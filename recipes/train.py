"""Training of a configuration file: any combination of process, schedule, hierarchy and network.

    python -m recipes.train mine.yaml
    python -m recipes.train mine.yaml --process.schedule cosine --steps 1000
    python -m recipes.train mine.yaml --smoke              # tiny, on local text
    torchrun --nproc-per-node 8 -m recipes.train mine.yaml

The same command resumes a run that was stopped. ``python -m recipes.train mine.yaml --help`` shows
the values most often changed, ``--help-all`` every value. Reading the file imports the objects
named package.module:object in it: check third-party files before training.
"""

import sys
from collections.abc import Sequence

from recipes.config.help import ALL
from recipes.console import command
from recipes.papers import run


def main(arguments: Sequence[str] | None = None) -> None:
    line = sys.argv[1:] if arguments is None else arguments
    if line and line[0] in ("-h", "--help", ALL):
        print(__doc__)  # the values depend on the file
        return
    if not line or line[0].startswith("-"):
        raise SystemExit(__doc__)
    run({}, "python -m recipes.train", ["--recipe", *line])


if __name__ == "__main__":
    command(main)
