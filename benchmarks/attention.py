"""Attention back ends on a GPU, forwards and backwards: on equal lengths, and on short sequences,
padded or packed.

    python -m benchmarks.attention

12 heads of width 64 in bfloat16. ``even`` is 64 sequences of 512 tokens. ``padded`` is 256
documents of 1 to 128 tokens, 28 on average, in rows of 128, with attention to padding too;
``packed`` the same documents in one row, separated by each back end's mask. Results are compared
with SDPA's in float64 before anything is timed. Milliseconds are between CUDA events, methods take
turns, medians are reported.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu_head import measure as compare
from benchmarks.measuring import require_gpu
from ddlib_models.attention.backends import BACKENDS, SDPA, Attention, backend


class Sizes(NamedTuple):
    """Sizes of the batches."""

    texts: int = 64
    length: int = 512
    documents: int = 256
    row: int = 128
    tokens: int = 28
    heads: int = 12
    device: str = "cuda"


GPU = Sizes()
TINY = Sizes(2, 8, 5, 6, 3, 2, "cpu")


class Case(NamedTuple):
    """A batch of some shape; with offsets it is a pack."""

    sequences: int
    length: int
    offsets: Tensor | None = None

    def mask(self, attend: Attention) -> Any:
        """Build the mask that separates the documents of a pack."""
        return None if self.offsets is None else attend.mask(self.offsets)


def cases(sizes: Sizes) -> Mapping[str, Case]:
    """Return the three batches by name."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.empty(sizes.documents).exponential_(1 / sizes.tokens, generator=generator)
    offsets = torch.cat([torch.zeros(1), lengths.ceil().clamp(1, sizes.row).cumsum(0)]).int()
    return {
        "even": Case(sizes.texts, sizes.length),
        "padded": Case(sizes.documents, sizes.row),
        "packed": Case(1, int(offsets[-1]), offsets.to(sizes.device)),
    }


def step(attend: Attention, mask: Any, tensors: tuple[Tensor, ...]) -> Tensor:
    """Compute a scalar of the result, and its gradient."""
    value = attend(*tensors, mask).float().square().mean()
    torch.autograd.grad(value, tensors)
    return value.detach()


def backends() -> Iterator[tuple[str, Attention]]:
    """Yield the back ends that run here."""
    for name in BACKENDS:
        try:
            yield name, backend(name)
        except (ImportError, RuntimeError):  # not installed, or no GPU
            continue


def measure(sizes: Sizes = GPU, repeats: int = 20) -> dict[str, Any]:
    """Return milliseconds and bytes of every back end on every batch, and SDPA's time over
    theirs.
    """
    results = {}
    for name, case in cases(sizes).items():
        torch.manual_seed(0)
        shape = (case.sequences, case.length, sizes.heads, 64)
        exact = tuple(
            torch.randn(shape, dtype=torch.float64, device=sizes.device).requires_grad_()
            for _ in range(3)
        )
        half = tuple(tensor.detach().bfloat16().requires_grad_() for tensor in exact)
        work = {key: partial(step, attend, case.mask(attend), half) for key, attend in backends()}
        expected = step(SDPA(), case.mask(SDPA()), exact)
        results[name] = compare(work, float(expected), sizes.device, repeats)
    ratios = {
        f"{name}: {key} time": rows["sdpa"]["median_ms"] / row["median_ms"]
        for name, rows in results.items()
        for key, row in rows.items()
        if "median_ms" in row and key != "sdpa"
    }
    return {"ratios": ratios, "settings": sizes._asdict(), "rows": results}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    require_gpu(parser)
    print(json.dumps(measure(repeats=options.repeats), indent=1))


if __name__ == "__main__":
    main()
