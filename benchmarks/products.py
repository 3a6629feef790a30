"""Matrix products on a CPU: ours, which ask the same library differently or another one, against torch's.

    python -m benchmarks.products

``stripes``: the logits of a chunk of rows over 50,257 words, a few hundred columns at a time, against one product.
``network``: the blocks of a DiT of 12 x 768 over 512 tokens without gradients, its products by oneDNN, against the same
by the BLAS that torch was built with. Both in float32 on one thread; the results are asserted equal.
"""

import json
import math
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.measuring import REPEATS, command_line, medians, over_ours, seconds
from benchmarks.sampling import PROCESSES, TEXT, TINY_TEXT, Text
from benchmarks.sampling import network as untrained
from ddlib.kernels.fused import multiply
from ddlib_models import linear

ROWS = 128
Method = Callable[[], Tensor]


def stripes(given: Text) -> dict[str, Method]:
    """Logits of some rows, into memory that is there already."""
    hidden = torch.randn(ROWS, given.vocabulary.width)
    matrix = torch.randn(given.vocabulary.words, given.vocabulary.width)
    narrow, whole = (torch.empty(ROWS, given.vocabulary.words) for _ in range(2))
    return {
        "ours": lambda: multiply(hidden, matrix, None, narrow),
        "one_product": lambda: torch.mm(hidden, matrix.t(), out=whole),
    }


def network(given: Text) -> dict[str, Method]:
    """Features of a text."""
    model = untrained(PROCESSES["masked"](given.vocabulary), given)
    z, t = torch.randint(given.vocabulary.words, (given.sequences, given.length)), torch.rand(given.sequences)

    def plain() -> Tensor:
        with patch.object(linear, "LARGE", math.inf):
            return model.features(z, t)

    return {"ours": lambda: model.features(z, t), "blas": plain}


@torch.no_grad()
def measure(given: Text = TEXT, repeats: int = REPEATS) -> dict[str, Any]:
    """CPU seconds of each method, and how many times faster ours is."""
    torch.manual_seed(0)
    told: dict[str, Any] = {"ratios": {}, "cpu_seconds": {}}
    for name, make in (("stripes", stripes), ("network", network)):
        found = make(given)
        ours, theirs = (method() for method in found.values())
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
        taken = seconds(found, repeats)
        told["cpu_seconds"][name] = taken
        told["ratios"] |= {f"{name}: {ratio}": value for ratio, value in over_ours(medians(taken), "time").items()}
    return told


def main() -> None:
    """The command."""
    options = command_line(__doc__).parse_args()
    torch.set_num_threads(1)
    print(json.dumps(measure(TINY_TEXT if options.tiny else TEXT, options.repeats), indent=1))


if __name__ == "__main__":
    main()
