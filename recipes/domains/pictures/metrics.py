"""Metrics of pictures in the features of a small classifier that is trained on the labelled data.

The Fréchet distance here is not the FID of papers, whose features are those of Inception on
ImageNet: its name is ``classifier_frechet``, and values are comparable only between samples that
the same classifier measured.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

FEATURES = 64
"""Number of features, and so the size of the covariance matrices."""


class Classifier(nn.Module):
    """Convolutional classifier of pictures given as ids.

    Its last hidden layer provides the features.

    Args:
        shape: (H, W), (H, W, 1) or (H, W, 3) of a picture.
        values: value of each token, 0 to 255.
        classes: number of classes.

    Raises:
        ValueError: another shape, fewer than two classes, no values.
    """

    accuracy: float
    """Share of the held-out pictures that it classifies correctly, after ``train_classifier``."""

    def __init__(self, shape: Sequence[int], values: Sequence[int], classes: int) -> None:
        super().__init__()
        self.shape = (*shape, 1) if len(shape) == 2 else tuple(shape)
        if len(self.shape) != 3 or min(self.shape) < 1 or self.shape[2] not in (1, 3):
            raise ValueError(f"shape={tuple(shape)}: must be (H, W), (H, W, 1) or (H, W, 3)")
        if classes < 2:
            raise ValueError(f"classes={classes}: must be at least 2")
        if not len(values):
            raise ValueError("values is empty: must have the value of each token")
        self.classes = classes
        self.accuracy = float("nan")
        self.register_buffer("values", torch.tensor(values, dtype=torch.float32) / 127.5 - 1)
        self.body = nn.Sequential(
            *_stage(self.shape[2], 24),
            nn.MaxPool2d(2, ceil_mode=True),
            *_stage(24, 48),
            nn.MaxPool2d(2, ceil_mode=True),
            *_stage(48, 64),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(256, FEATURES),
            nn.GELU(),
        )
        self.head = nn.Linear(FEATURES, classes)

    def forward(self, ids: Int[Tensor, "B L"]) -> Float[Tensor, "B K"]:
        """Return the logits of the classes."""
        return self.head(self._embed(ids))

    def features(self, ids: Int[np.ndarray | Tensor, "N L"]) -> Float[np.ndarray, "N 64"]:
        """Return the features of pictures, in float64.

        Raises:
            ValueError: ids of another shape, or outside of the tokens.
        """
        return self._over(ids, self._embed).numpy()

    def predict(self, ids: Int[np.ndarray | Tensor, "N L"]) -> Int[np.ndarray, " N"]:
        """Return the most probable class of each picture.

        Raises:
            ValueError: as ``features``.
        """
        return self._over(ids, self.forward).argmax(-1).numpy()

    def _embed(self, ids: Int[Tensor, "B L"]) -> Float[Tensor, "B 64"]:
        return self.body(self.values[ids].view(-1, *self.shape).permute(0, 3, 1, 2))

    @torch.no_grad()
    def _over(self, ids: Int[np.ndarray | Tensor, "N L"], function: nn.Module) -> Tensor:
        pictures = check_pictures(ids, self.shape, len(self.values))
        device = self.values.device
        return torch.cat([function(part.to(device)).double().cpu() for part in pictures.split(512)])


def _stage(inner: int, outer: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.GELU()


def check_pictures(
    ids: Int[np.ndarray | Tensor, "N L"], shape: Sequence[int], vocab_size: int
) -> Int[Tensor, "N L"]:
    """Return ids as a tensor of int64.

    Raises:
        ValueError: no pictures, of another length, no integers, or outside of the tokens; with the
            first such picture.
    """
    array = _array(ids)
    length = int(np.prod(shape))
    if array.ndim != 2 or array.shape[1] != length or not len(array):
        raise ValueError(
            f"ids have the shape {array.shape}, must be (N, {length}) with N at least 1"
        )
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"ids are {array.dtype}, must be integers")
    if (bad := np.argwhere((array < 0) | (array >= vocab_size))).size:
        row, column = bad[0]
        raise ValueError(
            f"picture {row} contains id {array[row, column]} at {column}, must be in "
            f"0..{vocab_size - 1}"
        )
    return torch.from_numpy(array.astype(np.int64))  # a copy: arrays of Arrow are read-only


def _array(ids: Int[np.ndarray | Tensor, "*n"]) -> Int[np.ndarray, "*n"]:
    return ids.detach().cpu().numpy() if isinstance(ids, Tensor) else np.asarray(ids)


def train_classifier(
    ids: Int[np.ndarray | Tensor, "N L"],
    labels: Int[np.ndarray | Tensor, " N"],
    shape: Sequence[int],
    values: Sequence[int],
    *,
    classes: int | None = None,
    epochs: int = 8,
    batch: int = 128,
    held_out: float = 0.1,
    seed: int = 0,
) -> Classifier:
    """Train a classifier on labelled pictures: 4,000 digits of 28 x 28 take about 16 s on a core.

    The global random state is left as it is. Equal arguments give equal weights on the same
    machine.

    Args:
        ids: training pictures of the model under test, never its samples.
        labels: class of each.
        shape: shape of a picture.
        values: value of each token.
        classes: number of classes; by default the largest label plus one.
        epochs: passes over the data.
        batch: most pictures of a step, at least 2.
        held_out: share of the pictures on which ``accuracy`` is measured and which are not trained
            on.
        seed: of the weights, the held-out pictures and the order.

    Raises:
        ValueError: pictures that ``check_pictures`` rejects; a wrong number of labels, or one
            outside of the classes; fewer than one epoch or two pictures per step; a share that
            takes no picture, or leaves fewer than two.
    """
    checked = check_pictures(ids, shape, len(values))
    target = torch.from_numpy(_array(labels).astype(np.int64))
    if target.shape != (len(checked),):
        raise ValueError(
            f"labels have the shape {tuple(target.shape)}, must be ({len(checked)},): one for each "
            "picture"
        )
    classes = int(target.max()) + 1 if classes is None else classes
    if int(target.min()) < 0 or int(target.max()) >= classes:
        raise ValueError(
            f"labels are in {int(target.min())}..{int(target.max())}, must be in 0..{classes - 1}"
        )
    if epochs < 1 or batch < 2:
        raise ValueError(f"epochs={epochs}, batch={batch}: must be at least 1 and 2")
    held = round(held_out * len(checked))
    if not 0 < held < len(checked) - 1:
        raise ValueError(
            f"held_out={held_out}: takes {held} of {len(checked)} pictures for the test, must take "
            "one and leave two"
        )
    with _seed(seed):
        model = Classifier(shape, values, classes)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(checked), generator=generator)
    tested = order[:held]
    trained = order[held:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    parts = -(
        -len(trained) // batch
    )  # of nearly equal size: a batch of one picture has no variance
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=epochs * parts)
    with torch.enable_grad():
        for _ in range(epochs):
            for rows in trained[torch.randperm(len(trained), generator=generator)].tensor_split(
                parts
            ):
                optimizer.zero_grad(set_to_none=True)
                functional.cross_entropy(
                    model(checked[rows]), target[rows], label_smoothing=0.05
                ).backward()
                optimizer.step()
                schedule.step()
    model.eval().requires_grad_(False)
    model.accuracy = class_accuracy(model, checked[tested], target[tested])
    return model


def frechet(left: Float[np.ndarray, "N D"], right: Float[np.ndarray, "M D"]) -> float:
    """Return the Fréchet distance of two normal distributions with the means and covariances of two
    sets of features.

    It is |μ1 - μ2|² + tr(C1 + C2 - 2 (C1^½ C2 C1^½)^½) (Dowson & Landau 1982). Like FID it is
    biased upwards for few samples: compare values for equal numbers only.

    Raises:
        ValueError: features of different numbers, fewer than two samples on a side, values that are
            not finite.
    """
    left = np.asarray(left, dtype=np.float64)
    right = np.asarray(right, dtype=np.float64)
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[1]:
        raise ValueError(
            f"features have the shapes {left.shape} and {right.shape}, must be (N, D) and (M, D)"
        )
    if min(len(left), len(right)) < 2:
        raise ValueError(
            f"there are {len(left)} and {len(right)} samples: must be at least 2 of each"
        )
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        raise ValueError("features must be finite")
    shift = left.mean(0) - right.mean(0)
    first, second = (np.atleast_2d(np.cov(one, rowvar=False)) for one in (left, right))
    # tr (C1 C2)^½ is the sum of the singular values of C1^½ C2^½: no squares, so no loss of digits
    cross = np.linalg.svd(_root(first) @ _root(second), compute_uv=False).sum()
    return float(max(shift @ shift + np.trace(first) + np.trace(second) - 2 * cross, 0.0))


def diversity(features: Float[np.ndarray, "N D"]) -> float:
    """Return the mean Euclidean distance of two different samples in the features: 0 if all are the
    same.

    Raises:
        ValueError: fewer than two samples, values that are not finite.
    """
    features = np.asarray(features, dtype=np.float64)
    if features.ndim != 2 or len(features) < 2:
        raise ValueError(
            f"features have the shape {features.shape}, must be (N, D) with N at least 2"
        )
    if not np.isfinite(features).all():
        raise ValueError("features must be finite")
    total = sum(np.linalg.norm(features - one, axis=1).sum() for one in features)
    return float(total / (len(features) * (len(features) - 1)))


def class_accuracy(
    classifier: Classifier,
    ids: Int[np.ndarray | Tensor, "N L"],
    labels: Int[np.ndarray | Tensor, " N"],
) -> float:
    """Return the share of pictures that the classifier puts into the class that they were drawn
    for.

    Raises:
        ValueError: pictures that ``check_pictures`` rejects, a wrong number of labels, labels
            outside of the classes.
    """
    labels = _array(labels)
    if labels.shape != (len(ids),):
        raise ValueError(
            f"labels have the shape {labels.shape}, must be ({len(ids)},): one for each picture"
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < classifier.classes:
        raise ValueError(
            f"labels are in {labels.min()}..{labels.max()}, must be in 0..{classifier.classes - 1}"
        )
    return float((classifier.predict(ids) == labels).mean())


def class_entropy(classifier: Classifier, ids: Int[np.ndarray | Tensor, "N L"]) -> float:
    """Return the entropy of the shares of the predicted classes in nats, at most ln of the number
    of classes.

    Raises:
        ValueError: as ``Classifier.predict``.
    """
    shares = np.bincount(classifier.predict(ids), minlength=classifier.classes) / len(ids)
    return float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum())


def measure(
    classifier: Classifier,
    samples: Int[np.ndarray | Tensor, "N L"],
    data: Int[np.ndarray | Tensor, "M L"],
    labels: Int[np.ndarray | Tensor, " N"] | None = None,
) -> dict[str, float]:
    """Return all metrics of samples beside those of data.

    Args:
        classifier: trained on labelled data.
        samples: N samples.
        data: at least 4 pictures of the data. For the distance as many as there are samples are
            used, the first ones, if there are so many.
        labels: class that each sample was drawn for, if any.

    Returns:
        ``classifier_frechet``; ``classifier_frechet_of_data``, the same distance between two random
        halves of the compared data, which are smaller sets and so more apart than two sets of equal
        distributions and full size; ``classifier_accuracy`` on held-out data; ``diversity``,
        ``diversity_of_data``, ``class_entropy``; with labels ``class_accuracy``.

    Raises:
        ValueError: as the functions above; fewer than 4 pictures of the data.
    """
    of_samples = classifier.features(samples)
    of_data = classifier.features(data)
    if len(of_data) < 4:
        raise ValueError(f"data has {len(of_data)} pictures, must have at least 4")
    compared = of_data[: max(len(of_samples), 4)]
    shuffled = compared[
        np.random.default_rng(0).permutation(len(compared))
    ]  # the order may go by class
    result = {
        "classifier_frechet": frechet(of_samples, compared),
        "classifier_frechet_of_data": frechet(shuffled[::2], shuffled[1::2]),
        "classifier_accuracy": classifier.accuracy,
        "diversity": diversity(of_samples),
        "diversity_of_data": diversity(compared),
        "class_entropy": class_entropy(classifier, samples),
    }
    return (
        result
        if labels is None
        else result | {"class_accuracy": class_accuracy(classifier, samples, labels)}
    )


def _root(matrix: Float[np.ndarray, "D D"]) -> Float[np.ndarray, "D D"]:
    """Return the root of a positive semidefinite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return vectors * np.sqrt(np.maximum(values, 0)) @ vectors.T


@contextmanager
def _seed(seed: int) -> Iterator[None]:
    """Seed the global generator for the duration of a block."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
