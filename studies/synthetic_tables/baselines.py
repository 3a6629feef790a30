"""What a user would pick otherwise: independent columns, CTGAN, a Gaussian copula."""

import importlib
import math
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from recipes.metrics.tables import Codes, Columns, frequencies
from studies.synthetic_tables.data import Split
from studies.synthetic_tables.diffusion import summary


def independent(codes: Codes, columns: Columns, number: int, seed: int) -> Codes:
    """Draw each column from its frequencies."""
    generator = np.random.default_rng(seed)
    drawn = [
        generator.choice(size, number, p=frequencies(codes[:, i], size))
        for i, size in enumerate(columns.sizes)
    ]
    return np.stack(drawn, 1)


def independent_bits(codes: Codes, held_out: Codes, columns: Columns) -> dict[str, Any]:
    """Return the bits of held-out rows under the frequencies, each count increased by one half."""
    costs = []
    for i, size in enumerate(columns.sizes):
        counts = np.bincount(codes[:, i], minlength=size) + 0.5
        costs.append(-np.log2(counts / counts.sum())[held_out[:, i]])
    return summary(np.stack(costs, 1))


def ctgan(
    split: Split, number: int, seed: int, seconds: float = math.inf, epochs: int = 10**6
) -> tuple[Codes, dict[str, Any]]:
    """Train CTGAN, with its other defaults, for some epochs or until ``seconds`` of CPU time are
    spent; return samples.

    Its loop over epochs has no limit of time, so its progress bar is replaced by one that ends.
    """
    module = importlib.import_module("ctgan.synthesizers.ctgan")
    bar = _Until(seconds)
    module.tqdm = bar
    begin = time.process_time()
    generator = module.CTGAN(epochs=epochs, enable_gpu=False)
    generator.set_random_state(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        generator.fit(split.training, split.coder.discrete)
        frame = generator.sample(number)
    facts = {
        "seconds": bar.spent,
        "epochs": bar.epochs,
        "steps": bar.epochs * max(len(split.training) // generator._batch_size, 1),
        "preparation": bar.begin - begin,
    }
    return split.coder.encode(frame), facts


class _Until:
    """Iterator over epochs that ends when its CPU time is spent."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.epochs = 0

    def __call__(self, epochs: Iterable[int], disable: bool = True) -> Iterator[int]:
        self.begin = time.process_time()
        for epoch in epochs:
            yield epoch
            self.epochs = epoch + 1
            self.spent = time.process_time() - self.begin
            if self.spent >= self.seconds:
                return


def copula(split: Split, number: int, seed: int) -> tuple[Codes, dict[str, Any]]:
    """Fit a Gaussian copula with beta marginals, categories as intervals of [0, 1]; return samples
    and the CPU time.
    """
    multivariate = importlib.import_module("copulas.multivariate")
    univariate = importlib.import_module("copulas.univariate")
    categorical = importlib.import_module("rdt.transformers.categorical")
    begin = time.process_time()
    frame = split.training
    np.random.seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        encoders = {}
        parts = []
        for name, ordered in zip(frame, split.columns.ordered, strict=True):
            column = frame[[name]]
            if not ordered:
                encoders[name] = categorical.UniformEncoder()
                column = encoders[name].fit_transform(column, name)
            parts.append(column.astype(float))
        model = multivariate.GaussianMultivariate(
            distribution=univariate.BetaUnivariate, random_state=seed
        )
        model.fit(pd.concat(parts, axis=1))
        samples = model.sample(number)
        for name, encoder in encoders.items():
            samples[[name]] = encoder.reverse_transform(samples[[name]])
    return split.coder.encode(samples), {"seconds": time.process_time() - begin}
