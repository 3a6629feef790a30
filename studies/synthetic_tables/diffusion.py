"""Products of processes for tables: noise of each column, training for some seconds, samples."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import ddlib as dd
from ddlib.hierarchies import Blur, Tree
from ddlib.processes import Hierarchical, Masked, Product
from ddlib.schedules import Linear
from ddlib_models import FieldDiT
from recipes.metrics.tables import Codes, Columns
from studies.synthetic_tables.settings import EDGES, Network

LEAST = 8
"""Number of codes from which an ordered column has noise of its own."""
GROUP = 4
DRAWS = 4
"""Draws of noise for the bound of a row."""


def product(columns: Columns, noise: str) -> Product:
    """Return the process of a table: masks, and "blur" or "intervals" in ordered columns."""
    processes: dict[str, dd.processes.ForwardProcess] = {}
    for name, size, fits in zip(columns.names, columns.sizes, _ordered(columns), strict=True):
        if noise == "masks" or not fits:
            processes[name] = Masked(size, Linear())
        elif noise == "blur":
            processes[name] = Hierarchical(Blur(size, [size / 16, size / 4]), Linear())
        else:
            processes[name] = Hierarchical(Tree([torch.arange(size) // GROUP]), Linear())
    return Product(processes, [*columns.names])


def jumps(columns: Columns, noise: str) -> int:
    """Return the number of jumps of a row."""
    return sum(EDGES[noise] if fits else 1 for fits in _ordered(columns))


def _ordered(columns: Columns) -> Sequence[bool]:
    """Return whether a column has noise of its own."""
    pairs = zip(columns.sizes, columns.ordered, strict=True)
    return [ordered and size >= LEAST for size, ordered in pairs]


Share = Callable[[int], float]
"""Share of the training that is done after a number of steps."""


def of_seconds(seconds: float) -> Share:
    """Return the share of CPU time, from now."""
    begin = time.process_time()
    return lambda steps: (time.process_time() - begin) / seconds


def of_steps(number: int) -> Share:
    """Return the share of steps."""
    return lambda steps: steps / number


class Diffusion:
    """A network of a process.

    Args:
        columns: columns of the table.
        noise: see ``product``.
        network: size and training.
    """

    def __init__(self, columns: Columns, noise: str, network: Network) -> None:
        self.columns = columns
        self.noise = noise
        self.process = product(columns, noise)
        self.network = network
        self.steps = 0

    def fit(self, codes: Codes, share_of: Share, seed: int) -> None:
        """Train until the share that is done is 1."""
        torch.manual_seed(seed)
        length = len(self.columns.names)
        self.model = FieldDiT(
            self.process.sizes,
            self.network.dim,
            self.network.depth,
            self.network.heads,
            cond_dim=self.network.dim,
            positions="learned",
            shape=(length,),
        )
        optimizer = torch.optim.AdamW(self.model.parameters(), self.network.rate)
        density = self.process.time_density(length=length)
        rows = torch.as_tensor(codes)
        while (share := share_of(self.steps)) < 1:
            for group in optimizer.param_groups:
                group["lr"] = self.network.rate * (1 - share)
            x = rows[torch.randint(len(rows), (self.network.batch,))]
            t = dd.sample_times(len(x), density=density)
            z = self.process.sample(x, t)
            draw = dd.paces.Draw(t, density.weight(t))
            loss = dd.training_loss(self.process, self.model(z, t), x, z, draw)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.steps += 1
        self.model.eval()

    @torch.no_grad()
    def sample(self, number: int, batch: int = 1000) -> Codes:
        """Draw rows, exactly in continuous time."""
        parts = []
        for first in range(0, number, batch):
            shape = (min(batch, number - first), len(self.columns.names))
            steps = jumps(self.columns, self.noise)
            sampler = dd.samplers.FirstHitting()
            parts.append(dd.sample(self.process, self.model, shape, sampler, steps=steps))
        return torch.cat(parts).numpy()

    @torch.no_grad()
    def bits(self, codes: Codes) -> dict[str, Any]:
        """Return the bound of rows in bits, with its error, and its mean for each column."""
        density = self.process.time_density(len(self.columns.names), chance=0.2)
        x = torch.as_tensor(codes)
        draws = [dd.bound(self.process, self.model, x, density=density).total for _ in range(DRAWS)]
        nats = torch.stack(draws).mean(0).double() / math.log(2)
        return summary(nats.numpy())


def summary(bits: np.ndarray) -> dict[str, Any]:
    """Return the mean bits of rows, the error, and the mean of each column."""
    rows = bits.sum(1)
    return {
        "value": float(rows.mean()),
        "error": float(rows.std(ddof=1) / math.sqrt(len(rows))),
        "columns": [float(each) for each in bits.mean(0)],
    }
