"""Cost of a step of block sampling with cached keys and values, early and late in a sequence.

    python -m benchmarks.block_cache

A 12 x 768 DiT by blocks of 32 tokens with random weights, one sequence, one thread of a CPU,
float32. ``ours`` computes the last window of a sequence of 512 or 2,048 tokens with a cache of the
others, logits at all its positions; ``whole`` computes the sequence so far, as a network without a
cache would. The ratio of interest is ``ours`` late over early: work per token that does not depend
on the length so far gives 1, and attention to every token adds to it.
"""

import torch

from benchmarks.head import GPT2, TINY
from benchmarks.measuring import command_line, medians, over_ours, report, require_equal, seconds
from ddlib_models import DiT
from ddlib_models.dit.presets import small

BLOCK = 32
LENGTHS = (512, 2048)


@torch.no_grad()
def measure(
    length: int, block: int, repeats: int, words: int, network: dict[str, int]
) -> dict[str, object]:
    """Return the seconds of a step in the last window of a sequence, both ways."""
    torch.manual_seed(0)
    model = DiT(words + 1, words, **network, block_size=block).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    text = torch.randint(words, (1, length))
    window = torch.full((1, block), words)
    t = torch.full((1, block), 0.5)
    cache = model.prefill(text[:, :-block])
    states = torch.cat([text[:, :-block], window], 1)
    times = torch.cat([torch.zeros(1, length - block), t], 1)
    methods = {
        "ours": lambda: model.extend(window, t, cache),
        "whole": lambda: model(states, times)[:, -block:],
    }
    require_equal({name: float(method().square().sum()) for name, method in methods.items()}, 1e-3)
    timings = seconds(methods, repeats)
    middle = medians(timings)
    return {
        "length": length,
        "ratios": over_ours(middle, "time"),
        "seconds_per_token": {name: value / block for name, value in middle.items()},
        "measured": timings,
    }


def main() -> None:
    """Run the command."""
    options = command_line(__doc__).parse_args()
    torch.set_num_threads(1)
    lengths, block = ((16, 64), 4) if options.tiny else (LENGTHS, BLOCK)
    sizes = (TINY.words, dict(dim=16, depth=2, heads=2)) if options.tiny else (GPT2.words, small())
    runs = [measure(length, block, options.repeats, *sizes) for length in lengths]
    early, late = (run["seconds_per_token"]["ours"] for run in runs)  # type: ignore[index]
    for run in runs:
        print(run["length"], run["seconds_per_token"], run["ratios"])
    print(f"late over early: {late / early:.2f}")
    if not options.tiny:
        report("block_cache", runs)


if __name__ == "__main__":
    main()
