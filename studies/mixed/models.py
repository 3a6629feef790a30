"""Models of digits and their labels, and what is measured of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import Tensor

import ddlib as dd
from ddlib.processes import Masked, Product
from ddlib.schedules import Linear
from ddlib_models import FieldDiT
from recipes.config import Optimizer
from recipes.domains.pictures.grey import quantise, values_of
from recipes.domains.pictures.metrics import class_accuracy, train_classifier
from recipes.engine.optimizer import optimizers

SIDE, LEVELS, CLASSES = 8, 4, 10
PIXELS = SIDE * SIDE
LABEL = PIXELS
"""Position of the label."""
FIELDS = ["pixel"] * PIXELS + ["label"]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the study."""

    steps: int = 400
    batch: int = 64
    dim: int = 48
    depth: int = 2
    tested: int = 500
    reversed: int = 50
    drawn: int = 20
    """Pictures of each label."""
    judged: int = 20
    """Epochs of the classifier that judges them."""


TINY = Sizes(steps=4, batch=8, dim=16, depth=1, tested=20, reversed=4, drawn=3, judged=1)


PROCESS = Product({"pixel": Masked(LEVELS, Linear()), "label": Masked(CLASSES, Linear())}, FIELDS)
LABEL_WEIGHTS = {"joint": 1, "joint, label x 64": PIXELS}
"""Weight of the label's term in the loss of each joint model."""
MODELS = (*LABEL_WEIGHTS, "classifier")


@cache
def digits(tested: int) -> tuple[Int[Tensor, "N L"], Int[Tensor, "M L"]]:
    """Return pixels and labels for training and for the test."""
    data = load_digits()
    grey = quantise((data.images * 255 / 16).astype(np.uint8), LEVELS).reshape(-1, PIXELS)
    rows = torch.tensor(np.concatenate([grey, data.target[:, None]], 1))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    return rows[order[tested:]], rows[order[:tested]]


def pixels_given(x: Int[Tensor, "B L"]) -> Tensor:
    """Return True at the pixels."""
    return (torch.arange(x.shape[1]) < LABEL).expand(x.shape)


def train(name: str, seed: int, sizes: Sizes) -> FieldDiT:
    """Train a model; the classifier is given all pixels."""
    torch.manual_seed(seed)
    network = FieldDiT(
        PROCESS.sizes,
        sizes.dim,
        sizes.depth,
        4,
        time_conditioned=False,
        dropout=0.1,
        positions="learned",
        shape=(PIXELS + 1,),
    )
    several = optimizers(network, Optimizer(lr=0.01, muon=True))
    density = PROCESS.time_density(PIXELS + 1)
    generator = torch.Generator().manual_seed(seed)
    rows = digits(sizes.tested)[0]
    for step in range(sizes.steps):
        share = min((step + 1) / 20, 1) * (1 - step / sizes.steps)
        x = rows[torch.randint(len(rows), (sizes.batch,), generator=generator)]
        if name == "classifier":
            network_loss = torch.nn.functional.cross_entropy(label_logits(network, x), x[:, LABEL])
        else:
            t = dd.sample_times(len(x), generator=generator, density=density)
            z = PROCESS.sample(x, t, generator)
            draw = dd.paces.Draw(t, density.weight(t))
            terms = dd.training_loss(PROCESS, network(z, t), x, z, draw, reduction="none")
            weights = torch.ones(PIXELS + 1)
            weights[LABEL] = LABEL_WEIGHTS[name]
            network_loss = (weights * terms).sum(1).mean() / weights.sum()
        network.zero_grad()
        network_loss.backward()
        for optimizer in several:
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * share
            optimizer.step()
    return network.eval()


def label_logits(network: FieldDiT, x: Int[Tensor, "B L"]) -> Tensor:
    """Return the logits of the label where all pixels are given and the label is masked."""
    z = PROCESS.tokens_as_states(x)
    z[:, LABEL] = PROCESS.num_states - 1
    return network(z, z.new_zeros(len(z), dtype=torch.get_default_dtype()))[:, LABEL, :CLASSES]


@torch.no_grad()
def measure(name: str, network: FieldDiT, seed: int, sizes: Sizes) -> dict[str, float]:
    """Return accuracy and nats of the labels of the test pictures; of joint models by masks also
    those of the other direction.
    """
    x = digits(sizes.tested)[1]
    best = label_logits(network, x).argmax(-1)
    exact = dd.likelihood(PROCESS, network, x, given=pixels_given(x))
    result = {
        "accuracy": float((best == x[:, LABEL]).double().mean()),
        "nats": -float(exact.log_likelihood.mean()),
    }
    if name == "classifier":
        return result
    nats, best = reverse(network, x[: sizes.reversed])
    return result | {
        "picture_nats": nats,
        "reverse_accuracy": float((best == x[: sizes.reversed, LABEL]).double().mean()),
        "right_class": class_accuracy(judge(sizes.judged), *pictures(network, seed, sizes)),
    }


def reverse(network: FieldDiT, x: Int[Tensor, "B L"]) -> tuple[float, Int[Tensor, "B"]]:
    """Return the mean nats of pictures given their labels, and the labels under which they have the
    largest likelihood.
    """
    order = dd.samplers.LeftToRight()
    scores = []
    for label in range(CLASSES):
        rows = x.clone()
        rows[:, LABEL] = label
        exact = dd.likelihood(PROCESS, network, rows, order, given=~pixels_given(rows))
        scores.append(exact.log_likelihood)
    table = torch.stack(scores, 1)
    return -float(table.gather(1, x[:, LABEL, None]).mean()), table.argmax(1)


def pictures(
    network: FieldDiT, seed: int, sizes: Sizes
) -> tuple[Int[Tensor, "N P"], Int[Tensor, "N"]]:
    """Draw pictures given their labels."""
    labels = torch.arange(CLASSES).repeat_interleave(sizes.drawn)
    x = torch.zeros(len(labels), PIXELS + 1, dtype=torch.int64)
    x[:, LABEL] = labels
    drawn = dd.sample(
        PROCESS,
        network,
        x.shape,
        steps=64,
        prompt=dd.Given(x, ~pixels_given(x)),
        generator=torch.Generator().manual_seed(seed),
    )
    return drawn[:, :LABEL], labels


@cache
def judge(epochs: int) -> Any:
    """Return a convolutional classifier of the training pictures, which judges samples."""
    rows = digits(Sizes().tested)[0]
    return train_classifier(
        rows[:, :LABEL], rows[:, LABEL], (SIDE, SIDE), values_of(LEVELS), epochs=epochs
    )


def of_data(sizes: Sizes) -> dict[str, float]:
    """Return what logistic regression and the judge of samples have on the test pictures."""
    train_rows, x = digits(sizes.tested)

    def indicators(rows: Int[Tensor, "N L"]) -> np.ndarray:
        return torch.nn.functional.one_hot(rows[:, :LABEL], LEVELS).flatten(1).double().numpy()

    regression = LogisticRegression(max_iter=2000).fit(
        indicators(train_rows), train_rows[:, LABEL].numpy()
    )
    log_probs = torch.tensor(regression.predict_log_proba(indicators(x)))
    return {
        "accuracy": float((log_probs.argmax(1) == x[:, LABEL]).double().mean()),
        "nats": -float(log_probs.gather(1, x[:, LABEL, None]).mean()),
        "right_class": class_accuracy(judge(sizes.judged), x[:, :LABEL], x[:, LABEL]),
    }


@contextmanager
def one_thread() -> Iterator[None]:
    """Set one thread: the order of sums, and so the numbers, depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
