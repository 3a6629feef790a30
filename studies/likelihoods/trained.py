"""Second stage of the study of likelihoods: estimators on trained networks.

    python -m studies.likelihoods.trained train WORK     # prepares the text, trains all networks
    python -m studies.likelihoods.trained --tiny FOLDER  # all of it, in seconds

The same command continues after a kill. The protocol is protocol.md.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from recipes.config import Data, Hardware, Loss, Optimizer, Output, Recipe
from recipes.data import prepare, speeches
from recipes.engine import train

LENGTH = 128
BATCH = 16
WHOLE: Mapping[str, dict[str, Any]] = {
    "masks": {"process": {"kind": "mdlm"}},
    "HDLM-64": {"process": {"kind": "hdlm", "clusters": 64}},
    "HDLM-64, xi = 0.9": {"process": {"kind": "hdlm", "clusters": 64, "xi": 0.9}},
    "GIDD": {"process": {"kind": "gidd", "p_uniform": 0.1}, "loss": Loss(weighting="dynamic")},
}
"""Networks over whole sequences; GIDD with the weights of its recipe."""
BLOCKS = (32, 8, 1)
"""Sizes of blocks; networks of blocks start at the weights of masks, whose block is the sequence."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the stage."""

    words: int = 4096
    network: Mapping[str, int] = field(default_factory=lambda: {"dim": 128, "depth": 4, "heads": 4})
    steps: int = 977
    """Two million tokens."""
    block_steps: int = 244
    """Half a million tokens."""


TINY = Sizes(words=300, network={"dim": 16, "depth": 1, "heads": 1}, steps=4, block_steps=2)


def recipes(work: Path, sizes: Sizes) -> dict[str, Recipe]:
    """Return the recipes by name, in the order of training."""
    base = Recipe(
        data=Data(folder=work / "data", length=LENGTH, wrap=True),
        process={"kind": "mdlm"},
        model={"kind": "dit", **sizes.network, "pad_to": 1},
        start="text",
        loss=Loss(weighting="clip:2"),
        hardware=Hardware(threads=1),
        output=Output(folder=work),
        batch=BATCH,
        steps=sizes.steps,
    )
    named = {name: replace(base, **values) for name, values in WHOLE.items()}
    for size in BLOCKS:
        named[f"blocks of {size}"] = replace(
            base,
            pace=f"blocks:size={size}",
            start=str(work / "runs" / "masks"),
            steps=sizes.block_steps,
        )
    return {
        name: replace(one, optimizer=_optimizer(one.steps), output=_output(work, name, one.steps))
        for name, one in named.items()
    }


def _optimizer(steps: int) -> Optimizer:
    warmup = min(50, steps // 2)
    ema = max(0.0, 1 - 10 / steps)
    return Optimizer(lr=3e-3, warmup=warmup, weight_decay=0.1, muon=True, ema=ema)


def _output(work: Path, name: str, steps: int) -> Output:
    return Output(
        folder=work / "runs" / name.replace(", ", "-").replace(" ", "_"),
        validate_every=max(1, steps // 5),
        validate_sequences=128,
        validate_times="optimal",
        sample_every=steps,
        samples=1,
        save_every=max(1, steps // 20),
        keep=1,
        tensorboard=False,
    )


def train_all(work: Path, sizes: Sizes) -> None:
    """Train the networks that are not finished, until a signal stops it."""
    prepare(speeches(sizes.words), work / "data")
    for recipe in recipes(work, sizes).values():
        if not train(recipe):
            return


def main(words: Sequence[str] | None = None) -> None:
    """Run a command of the stage, or with ``--tiny`` all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("train",), nargs="?")
    parser.add_argument("work", type=Path, nargs="?", help="folder of the data and the runs")
    parser.add_argument("--tiny", type=Path, metavar="FOLDER", help="all commands at tiny sizes")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    if options.tiny is not None:
        train_all(options.tiny, TINY)
    elif options.work is None:
        parser.error("pass a command and WORK, or --tiny FOLDER")
    else:
        train_all(options.work.resolve(), Sizes())


if __name__ == "__main__":
    main()
