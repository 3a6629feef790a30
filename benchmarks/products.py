"""Matrix product on a CPU in several forms.

    python -m benchmarks.products

The logits of a chunk of rows over 50,257 tokens, a few hundred columns at a time, against one
product, in float32 on one thread; the results are asserted equal.
"""

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.head import GPT2, TINY, Sizes
from benchmarks.measuring import REPEATS, command_line, medians, over_ours, seconds
from ddlib.kernels.fused import multiply

ROWS = 128
Method = Callable[[], Tensor]


def stripes(sizes: Sizes) -> dict[str, Method]:
    """Compute logits of some rows into preallocated memory."""
    hidden = torch.randn(ROWS, sizes.width)
    matrix = torch.randn(sizes.words, sizes.width)
    narrow, whole = (torch.empty(ROWS, sizes.words) for _ in range(2))
    return {
        "ours": lambda: multiply(hidden, matrix, None, narrow),
        "one_product": lambda: torch.mm(hidden, matrix.t(), out=whole),
    }


@torch.no_grad()
def measure(sizes: Sizes = GPT2, repeats: int = REPEATS) -> dict[str, Any]:
    """Return CPU seconds of each method, and the speedup of ``ours``."""
    torch.manual_seed(0)
    methods = stripes(sizes)
    ours, theirs = (method() for method in methods.values())
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    timings = seconds(methods, repeats)
    ratios = over_ours(medians(timings), "time")
    return {
        "ratios": {f"stripes: {name}": value for name, value in ratios.items()},
        "cpu_seconds": timings,
    }


def main() -> None:
    """Run the command."""
    options = command_line(__doc__).parse_args()
    torch.set_num_threads(1)
    print(json.dumps(measure(TINY if options.tiny else GPT2, options.repeats), indent=1))


if __name__ == "__main__":
    main()
