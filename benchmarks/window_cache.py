"""Time of a call of block sampling with approximate caches, in networks in which all positions
attend to each other.

    python -m benchmarks.window_cache

Random weights, one sequence, one thread of a CPU, float32, blocks of 32, the block in the middle of
a sequence of 256, 512 or 1,024 tokens: a 12 x 768 DiT, and the Llama of SmolLM2-135M. For a
``prefix`` and a ``dual`` cache, the first call of a block, with its pass over the full sequence,
and a later one; and a call without a cache. Each computes the logits of all positions of the block.
All in turns, CPU seconds, medians. From these follows the time of a block of 8 and of 32 calls, as
a ratio within each round. The load of the machine is recorded.
"""

import os
import statistics
from collections.abc import Callable

import torch
from torch import Tensor, nn

import ddlib as dd
from benchmarks.head import GPT2
from benchmarks.measuring import command_line, report, seconds
from ddlib.contrib.caches import Reuse, ReusingBlocks, UncachedBlocks
from ddlib.samplers.runtime.context import BlockContexts
from ddlib.samplers.runtime.model import Model
from ddlib_models import DiT
from ddlib_models.dit.presets import small
from ddlib_models.hf.causal_lm import CausalLM

BLOCK = 32
LENGTHS = (256, 512, 1024)
CALLS = (8, 32)
SMOLLM2 = {
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
TINY = SMOLLM2 | {
    "vocab_size": 64,
    "hidden_size": 18,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
}


def networks(tiny: bool) -> dict[str, Callable[[], nn.Module]]:
    """Return the networks by name."""
    words = 64 if tiny else GPT2.words
    size = dict(dim=16, depth=2, heads=2) if tiny else small()
    config = TINY if tiny else SMOLLM2

    def dit() -> nn.Module:
        model = DiT(words + 1, words, **size)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.02)
        return model

    rows = int(config["vocab_size"])  # type: ignore[call-overload]
    return {"DiT 12 x 768": dit, "SmolLM2-135M": lambda: CausalLM(rows + 1, rows, dict(config))}


def ways(model: nn.Module, length: int, block: int) -> dict[str, Callable[[], Tensor]]:
    """Return a call of the middle block, without a cache and with both, as the first of a block and
    as a later one.
    """
    words = model.vocab_size
    process = dd.presets.mdlm(words)
    wrapper = Model(process, model)
    start = length // block // 2 * block
    x = torch.randint(words, (1, length))
    mask = process.num_states - 1
    here = torch.full((1, block), mask)
    behind = torch.full((1, length - start - block), mask)
    times = torch.ones_like(behind, dtype=torch.float64)
    everywhere = torch.ones_like(here, dtype=torch.bool)

    def place(contexts: BlockContexts) -> Model:
        return wrapper.within(contexts.at(x[:, :start], behind, behind, times))

    def compute_logits(network: Model) -> Tensor:
        (outputs,) = network.at(here, torch.full((1,), 0.5), everywhere)
        return outputs.token_logits(torch.zeros(block, dtype=torch.int64))

    plain = place(UncachedBlocks(wrapper, block))
    calls = {"without": lambda: compute_logits(plain)}
    for name in ("prefix", "dual"):
        blocks = ReusingBlocks(wrapper, block, Reuse(suffix=name == "dual"))
        later = place(blocks)
        compute_logits(later)
        calls[f"{name}, first"] = lambda blocks=blocks: compute_logits(place(blocks))
        calls[f"{name}, later"] = lambda later=later: compute_logits(later)
    return calls


@torch.no_grad()
def measure(
    name: str, model: nn.Module, length: int, block: int, repeats: int
) -> dict[str, object]:
    """Return the seconds of each call, and how many times faster a block is with a cache."""
    calls_of = ways(model, length, block)
    plain = calls_of["without"]()
    for way, call in calls_of.items():  # all are at the states that the caches are of
        torch.testing.assert_close(
            call(), plain, atol=1e-3, rtol=1e-3, msg=f"{way}: another result, not timed"
        )
    timings = seconds(calls_of, repeats)
    faster = {
        f"{cache}, {calls} calls": statistics.median(
            calls * plain / (first + (calls - 1) * later)
            for plain, first, later in zip(
                timings["without"],
                timings[f"{cache}, first"],
                timings[f"{cache}, later"],
                strict=True,
            )
        )
        for cache in ("prefix", "dual")
        for calls in CALLS
    }
    middle = {way: statistics.median(values) for way, values in timings.items()}
    return {
        "network": name,
        "length": length,
        "times_faster": faster,
        "seconds": middle,
        "measured": timings,
        "load": list(os.getloadavg()),
    }


def main() -> None:
    """Run the command."""
    options = command_line(__doc__).parse_args()
    torch.set_num_threads(1)
    lengths, block = ((16, 32), 4) if options.tiny else (LENGTHS, BLOCK)
    runs = []
    for name, make in networks(options.tiny).items():
        torch.manual_seed(0)
        model = make().eval()
        for length in lengths:
            runs.append(measure(name, model, length, block, options.repeats))
            print(
                name,
                length,
                {way: round(value, 3) for way, value in runs[-1]["times_faster"].items()},
            )  # type: ignore[attr-defined]
    if not options.tiny:
        report("window_cache", runs)


if __name__ == "__main__":
    main()
