"""Networks of the study: processes, weights, learning rates, and what a network is trained by."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from recipes.config import Recipe
from recipes.data import open_prepared
from recipes.embeddings.grouping import clusters_for
from recipes.papers.autoregressive import autoregressive_variant
from studies.setting import TINY as TINY_SETTING
from studies.setting import Model, Setting
from studies.weights.texts import HASHES

CLUSTERS = 64
TWO_LEVELS = {"kind": "hdlm", "clusters": CLUSTERS}
EDGES = {"mode": "edges"}
MASKS = Model({"kind": "mdlm"})
RANDOM = "random tree, all edges"
WEIGHTS = {
    "clip 2": "clip:2",
    "clip 10": "clip:10",
    "optimal": "optimal:length=128",
    "constant": "constant",
}
"""Weights of the training loss; all draw uniform times."""
RATES = (1.5e-3, 3e-3, 6e-3)
RATE = 3e-3
"""Learning rate of the grid of weights."""
TUNED = {
    "masks": MASKS,
    "HDLM-64": Model(TWO_LEVELS),
    "HDLM-64, all edges": Model(TWO_LEVELS, EDGES),
}
"""Processes whose weights and rate the search chooses."""
THREE_LEVELS = Model({"kind": "hdlm_levels", "clusters": [CLUSTERS, 8]}, EDGES)
UNTUNED = {RANDOM: "HDLM-64, all edges", "HDLM-64-8, all edges": "HDLM-64, all edges"}
"""Processes that take weights and rate of another one."""
FURTHER = {"HDLM-64, all edges": (1.2e-2,)}
"""Learning rates of a deviation in the protocol, which choose nothing."""
NOISY = {"xi = 0.9": 0.9, "xi = 0.8": 0.8}
"""Perturbed hierarchies, trained as HDLM-64."""
JUDGE = "judge"
JUDGE_SEED = 7


@dataclass(frozen=True)
class Sizes:
    """Sizes of the study."""

    setting: Setting = field(default_factory=Setting)
    searched: float = 4
    """Millions of tokens of a run of the search."""
    search_seed: int = 3
    """Seed of the search, which no later run has."""
    budget: float = 8
    """Millions of tokens of a compared run."""
    seeds: tuple[int, ...] = (0, 1, 2)
    noisy_seeds: tuple[int, ...] = (0, 1)
    """Seeds of the xi arm."""
    calls: tuple[int, ...] = (8, 16, 32, 64, 128)
    temperatures: tuple[float, ...] = (1.0, 0.85, 0.7)
    mask_temperatures: tuple[float, ...] = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
    samples: int = 256
    """Samples of a cell."""
    rescored: int = 128
    """Samples of a cell that the second judge scores."""
    weights: tuple[str, ...] = tuple(WEIGHTS)
    rates: tuple[float, ...] = RATES
    further: Mapping[str, tuple[float, ...]] = field(default_factory=lambda: FURTHER)
    noisy: tuple[str, ...] = tuple(NOISY)
    hashes: Path = HASHES
    """File with the hashes of the texts from which nothing was chosen."""


def tiny(hashes: Path) -> Sizes:
    """Return sizes at which a run takes seconds."""
    return Sizes(
        setting=TINY_SETTING,
        searched=0.005,
        budget=0.005,
        seeds=(0,),
        noisy_seeds=(0,),
        calls=(2, 4),
        temperatures=(1.0, 0.7),
        mask_temperatures=(1.0, 0.7),
        samples=4,
        rescored=2,
        weights=("optimal", "constant"),
        rates=(RATE, 6e-3),
        further={},
        noisy=("xi = 0.9",),
        hashes=hashes,
    )


@dataclass(frozen=True)
class Tuning:
    """Weights of a training loss, and a learning rate."""

    weights: str
    rate: float

    @property
    def name(self) -> str:
        """Name in the result file."""
        return f"{self.weights}, {self.rate:g}"


@dataclass(frozen=True)
class Arms:
    """Recipes of the networks in a working folder."""

    work: Path
    sizes: Sizes

    def search(self, process: str, tuning: Tuning) -> Recipe:
        """Return the recipe of a run of the search."""
        sizes = self.sizes
        return self._recipe(
            f"search-{process}", TUNED[process], tuning, sizes.searched, sizes.search_seed
        )

    def compared(self, process: str, tuning: Tuning, seed: int) -> Recipe:
        """Return the recipe of a compared run."""
        return self._recipe(process, self._model(process), tuning, self.sizes.budget, seed)

    def judge(self) -> Recipe:
        """Return the recipe of the autoregressive network that judges samples."""
        tuning = Tuning("clip 2", RATE)
        recipe = self._recipe(JUDGE, MASKS, tuning, self.sizes.budget, JUDGE_SEED)
        causal = autoregressive_variant(recipe)["ar"][1]
        return replace(causal, output=recipe.output)

    def _model(self, process: str) -> Model:
        if process in NOISY:
            return Model(TWO_LEVELS | {"xi": NOISY[process]})
        if process == RANDOM:
            return Model(TWO_LEVELS | {"clusters": str(random_tree(self.work))}, EDGES)
        return TUNED.get(process, THREE_LEVELS)

    def _recipe(
        self, name: str, model: Model, tuning: Tuning, millions: float, seed: int
    ) -> Recipe:
        weighted = model | {"weighting": WEIGHTS[tuning.weights]}
        plain = f"{name}, {tuning.name}".replace("=", "")
        recipe = self.sizes.setting.recipe(self.work, plain, weighted, millions, seed)
        return replace(recipe, optimizer=replace(recipe.optimizer, lr=tuning.rate))


def random_tree(work: Path) -> Path:
    """Return the path of the random tree."""
    return work / "random.csv"


def write_random_tree(work: Path) -> None:
    """Write a tree with clusters of the sizes of the semantic one and permuted tokens."""
    data = open_prepared(work / "data")
    clusters = clusters_for(CLUSTERS, data)
    order = torch.randperm(data.vocab_size, generator=torch.Generator().manual_seed(0))
    parents = clusters.parents[0][order].tolist()
    vocabulary = data.tokenizer.get_vocab()
    with random_tree(work).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("token", "parent"))
        tokens = sorted(vocabulary, key=vocabulary.__getitem__)
        writer.writerows((token, parents[vocabulary[token]]) for token in tokens)


Result = dict[str, Any]


def chosen_weights(result: Result, process: str, sizes: Sizes) -> str | None:
    """Return the weights with the lowest bound on the search text, None before all are trained."""
    bounds = _bounds(result, process, [Tuning(weights, RATE) for weights in sizes.weights])
    return None if bounds is None else min(bounds, key=lambda tuning: bounds[tuning]).weights


def chosen(result: Result, process: str, sizes: Sizes) -> Tuning | None:
    """Return weights and rate with the lowest bound, None before all runs of the search."""
    process = UNTUNED.get(process, "HDLM-64" if process in NOISY else process)
    weights = chosen_weights(result, process, sizes)
    if weights is None:
        return None
    bounds = _bounds(result, process, [Tuning(weights, rate) for rate in sizes.rates])
    return None if bounds is None else min(bounds, key=lambda tuning: bounds[tuning])


def _bounds(result: Result, process: str, tunings: list[Tuning]) -> Mapping[Tuning, float] | None:
    runs = result["search"].get(process, {})
    if any(tuning.name not in runs for tuning in tunings):
        return None
    return {tuning: runs[tuning.name]["bound"]["value"] for tuning in tunings}
