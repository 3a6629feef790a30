"""Decoding of a hub network block by block: our sampler against the loop of Fast-dLLM.

    python -m benchmarks.hub_decoding
    python -m benchmarks.hub_decoding --device cuda --sequences 4

``ours`` is ``Confidence("probability", threshold=0.9)`` with ``Blocks(32)`` and ``Cache("dual")``.
``fast_dllm`` is the decoding with a dual cache of arXiv 2505.22618, written by hand on the same
network: in a block, keys and values of the rest from one pass over the whole sequence; in each step
all logits of the block, a softmax in float64, and all masked positions whose largest probability is
at least 0.9, or the largest one. Greedy, so both decode the same tokens, which is asserted before
they are timed.

Random weights of the Llama of SmolLM2-135M: the time does not depend on them, the number of calls
does. Their output layer is multiplied by a number, so that a call decodes several tokens.
"""

import json
import statistics
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import ddlib as dd
from benchmarks.measuring import command_line, medians, report, require_gpu, seconds
from benchmarks.window_cache import SMOLLM2, TINY
from ddlib.contrib import Cache
from ddlib.paces import Blocks
from ddlib.samplers import Confidence
from ddlib_models.hf.causal_lm import CausalLM


class Text(NamedTuple):
    """Network, sequences and decoding."""

    architecture: dict[str, Any]
    sequences: int = 1
    prompt: int = 32
    length: int = 256
    block: int = 32
    threshold: float = 0.9
    sharpness: float = 100.0
    """Factor of the output layer of the random weights."""
    device: str = "cpu"


TEXT = Text(SMOLLM2)
TINY_TEXT = Text(TINY, 2, 4, 16, 4)


class Counted(nn.Module):
    """A network that counts the positions that it evaluates.

    Args:
        model: the network.
    """

    own_times = True

    def __init__(self, model: CausalLM) -> None:
        super().__init__()
        self.model = model
        self.vocab_size = model.vocab_size
        self.positions = 0

    def forward(self, z: Tensor, t: Tensor) -> Tensor:
        """Compute the logits at all positions."""
        self.positions += z.numel()
        return self.model(z, t)

    def prefill_around(self, z: Tensor, t: Tensor, start: int, end: int) -> Any:
        """Compute keys and values around a block."""
        self.positions += z.numel()
        return self.model.prefill_around(z, t, start, end)

    def extend(self, z: Tensor, t: Tensor, cache: Any) -> Tensor:
        """Compute the logits of a block."""
        self.positions += z.numel()
        return self.model.extend(z, t, cache)


def network(text: Text) -> Counted:
    """Build the network with random weights."""
    torch.manual_seed(0)
    words = int(text.architecture["vocab_size"])
    model = CausalLM(words + 1, words, dict(text.architecture)).eval()
    with torch.no_grad():
        model.output_weights()[0].mul_(text.sharpness)
    return Counted(model.to(text.device)).eval()


def ours(model: Counted, prompt: Tensor, text: Text) -> Tensor:
    """Decode by ddlib's sampler."""
    return dd.sample(
        dd.presets.mdlm(model.vocab_size).to(text.device),
        model,
        (text.sequences, text.length),
        Confidence("probability", threshold=text.threshold),
        steps=text.block,
        prompt=prompt,
        temperature=0.0,
        pace=Blocks(text.block),
        controls=[Cache("dual")],
    )


@torch.no_grad()
def fast_dllm(model: Counted, prompt: Tensor, text: Text) -> Tensor:
    """Decode by a loop over blocks, and over steps in a block."""
    mask = model.vocab_size
    z = torch.full((text.sequences, text.length), mask, device=text.device)
    z[:, : prompt.shape[1]] = prompt
    for start in range(0, text.length, text.block):
        here = slice(start, start + text.block)
        if not (z[:, here] == mask).any():
            continue
        t = (z == mask).float()
        cache = model.prefill_around(z, t, start, start + text.block)
        while (hidden := z[:, here] == mask).any():
            probs = model.extend(z[:, here], hidden.float(), cache).double().softmax(-1)
            confidence, tokens = probs.max(-1)
            confidence = torch.where(hidden, confidence, -torch.inf)
            best = confidence == confidence.max(-1, keepdim=True).values
            chosen = hidden & (best | (confidence >= text.threshold))
            z[:, here] = torch.where(chosen, tokens, z[:, here])
    return z


def measure(text: Text, repeats: int) -> dict[str, object]:
    """Return tokens per second of both, and how many times faster ours is."""
    model = network(text)
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(model.vocab_size, (text.sequences, text.prompt), generator=generator)
    prompt = prompt.to(text.device)
    ways = {"ours": ours, "fast_dllm": fast_dllm}
    tokens = {}
    positions = {}
    for name, way in ways.items():
        model.positions = 0
        tokens[name] = way(model, prompt, text)
        positions[name] = model.positions
    same = (tokens["ours"] == tokens["fast_dllm"]).double().mean().item()
    if same < 1 and text.device == "cpu":
        raise AssertionError(f"{1 - same:.1%} of the tokens are others: not timed")
    calls = {name: partial(way, model, prompt, text) for name, way in ways.items()}
    timings = seconds(calls, repeats, text.device)
    faster = [
        theirs / here for theirs, here in zip(timings["fast_dllm"], timings["ours"], strict=True)
    ]
    drawn = text.sequences * (text.length - text.prompt)
    return {
        "ratios": {"fast_dllm time": statistics.median(faster)},
        "tokens_per_second": {name: drawn / value for name, value in medians(timings).items()},
        "positions": positions,
        "same_tokens": same,
        "measured": timings,
        "text": text._asdict(),
    }


def main() -> None:
    """Run the command."""
    parser = command_line(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--sequences", type=int, default=1)
    options = parser.parse_args()
    if options.device == "cuda":
        require_gpu(parser)
    torch.set_num_threads(1)
    text = TINY_TEXT if options.tiny else TEXT._replace(sequences=options.sequences)
    result = measure(text._replace(device=options.device), options.repeats)
    print(json.dumps(result, indent=1))
    if not options.tiny:
        suffix = "_gpu" if options.device == "cuda" else ""
        report(f"hub_decoding{suffix}", [result], options.device)


if __name__ == "__main__":
    main()
