"""Trains what a file says: any process, clock, hierarchy and network that can be composed.

    python -m recipes.train mine.yaml
    python -m recipes.train mine.yaml --process.schedule cosine --steps 1000
    python -m recipes.train mine.yaml --smoke              # tiny, on text that is here
    torchrun --nproc-per-node 8 -m recipes.train mine.yaml

The same command goes on with a run that was stopped. ``python -m recipes.train mine.yaml --help`` shows what people
change first, ``--help-all`` every value.
Reading the file imports what it names as package.module:object: read a stranger's before you train it.
"""

import sys
from collections.abc import Sequence

from recipes.config.help import ALL
from recipes.papers import run


def main(arguments: Sequence[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    if words and words[0] in ("-h", "--help", ALL):
        print(__doc__)  # which values there are depends on the file
        return
    if not words or words[0].startswith("-"):
        raise SystemExit(__doc__)
    run({}, "python -m recipes.train", ["--recipe", *words])


if __name__ == "__main__":
    main()
