"""Products of processes: time of a loss beside that of one process, and memory from hidden states.

    python -m benchmarks.fields

Loss with gradients of 64 x 128 positions from logits, float32, one thread. ``three kinds``: masks,
uniform noise and a tree at a third of the positions each, over the mean of the three processes at
all positions; ``apart``: the sum of the three at a third of the positions each over that mean, the
least that a product of them can take. ``12 columns``: masks over different numbers of tokens, over
masks of the largest alphabet at all positions.

The memory is that of the loss from hidden states of 16 texts of 255 positions over 8,192 tokens,
each beside a label, with an output layer for each field: all logits over ``dd.Hidden``.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import ddlib as dd
from benchmarks.measuring import (
    REPEATS,
    command_line,
    in_its_own_process,
    medians,
    peak_megabytes,
    require_equal,
    seconds,
)
from ddlib.hierarchies import Tree
from ddlib.processes import ForwardProcess, Hierarchical, Masked, Product, Uniform
from ddlib.schedules import Linear

SEQUENCES = 64
LENGTH = 128
ALPHABETS = (32, 128, 512)
"""Numbers of tokens of each field."""
COLUMNS = 12
TEXT = 8192
WIDTH = 128
TEXTS = 16
POSITIONS = 256
Loss = Callable[[], Tensor]


def kinds(tokens: int) -> dict[str, ForwardProcess]:
    """Return the three processes."""
    tree = Tree([[token // 8 for token in range(tokens)]])
    return {
        "masks": Masked(tokens, Linear()),
        "uniform": Uniform(tokens, Linear()),
        "tree": Hierarchical(tree, Linear()),
    }


def loss_of(process: ForwardProcess, length: int) -> Loss:
    """Return a function that computes the loss of a batch, and its gradients."""
    generator = torch.Generator().manual_seed(0)
    sizes = [each.process.vocab_size for each in process.components]
    fields = torch.arange(length) % len(sizes)
    u = torch.rand(SEQUENCES, length, generator=generator)
    x = (u * torch.tensor(sizes)[fields]).long()
    t = torch.rand(SEQUENCES, generator=generator)
    z = process.sample(x, t, generator)
    logits = torch.randn(SEQUENCES, length, process.vocab_size, generator=generator)
    logits.requires_grad_()

    def compute() -> Tensor:
        logits.grad = None
        loss = dd.training_loss(process, logits, x, z, t)
        loss.backward()  # type: ignore[no-untyped-call] # torch
        return loss.detach()

    return compute


def product_of(processes: Mapping[str, ForwardProcess], length: int) -> Product:
    """Return the product of processes that take turns in a sequence."""
    return Product(processes, torch.arange(length) % len(processes))


def times(tokens: int, repeats: int, length: int) -> dict[str, Any]:
    """Return CPU seconds of every loss, and the ratios, for one number of tokens."""
    alone = kinds(tokens)
    columns = {str(k): Masked(tokens - k, Linear()) for k in range(COLUMNS)}
    losses = {name: loss_of(process, length) for name, process in alone.items()}
    losses |= {f"{name}, a third": loss_of(alone[name], length // 3) for name in alone}
    losses["three kinds"] = loss_of(product_of(alone, length), length)
    losses["12 columns"] = loss_of(product_of(columns, length), length)
    for loss in losses.values():
        loss()
    timings = seconds(losses, repeats)
    middle = medians(timings)
    mean = sum(middle[name] for name in alone) / len(alone)
    ratios = {
        "three kinds": middle["three kinds"] / mean,
        "apart": sum(middle[f"{name}, a third"] for name in alone) / mean,
        "12 columns": middle["12 columns"] / middle["masks"],
    }
    return {
        "ratios": {f"{name}, {tokens} tokens": value for name, value in ratios.items()},
        "cpu_seconds": {f"{name}, {tokens} tokens": value for name, value in timings.items()},
    }


def text_beside_label(tiny: bool) -> dict[str, Loss]:
    """Return the losses from hidden states and from all logits, with gradients."""
    tokens = 64 if tiny else TEXT
    length = 8 if tiny else POSITIONS
    processes = {"text": Masked(tokens, Linear()), "label": Uniform(10, Linear())}
    product = Product(processes, [0] * (length - 1) + [1])
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(10, (TEXTS, length), generator=generator)
    t = torch.rand(TEXTS, generator=generator)
    z = product.sample(x, t, generator)
    sizes = (TEXTS, length, WIDTH), (tokens + 10, WIDTH), (tokens + 10,)
    layer = [torch.randn(size, generator=generator).requires_grad_() for size in sizes]

    def compute(output: Callable[[], Any]) -> Tensor:
        loss = dd.training_loss(product, output(), x, z, t)
        torch.autograd.grad(loss, layer)
        return loss.detach()

    return {
        "hidden": lambda: compute(lambda: dd.Hidden(*layer)),
        "logits": lambda: compute(lambda: F.linear(*layer)),
    }


def memory(tiny: bool = False) -> dict[str, Any]:
    """Return peak megabytes of the losses from hidden states and from logits, and their ratio."""
    losses = text_beside_label(tiny)
    require_equal({"ours": float(losses["hidden"]()), "logits": float(losses["logits"]())})
    size = ("--tiny",) if tiny else ()
    megabytes = {
        name: float(in_its_own_process("fields", "--memory", name, *size)) for name in losses
    }
    return {
        "ratios": {"logits memory": megabytes["logits"] / megabytes["hidden"]},
        "megabytes": megabytes,
    }


def measure(repeats: int = REPEATS, tiny: bool = False) -> dict[str, Any]:
    """Return the results for every number of tokens, and the memory."""
    length = 2 * COLUMNS if tiny else LENGTH
    parts = [times(tokens, repeats, length) for tokens in (ALPHABETS[:1] if tiny else ALPHABETS)]
    peak = memory(tiny)
    return {
        "ratios": {
            name: value for part in (*parts, peak) for name, value in part["ratios"].items()
        },
        "cpu_seconds": {
            name: value for part in parts for name, value in part["cpu_seconds"].items()
        },
        "megabytes": peak["megabytes"],
    }


def main() -> None:
    """Run the command."""
    parser = command_line(__doc__)
    parser.add_argument("--memory", metavar="METHOD", help="print only the megabytes of one method")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory:
        print(peak_megabytes(text_beside_label(options.tiny)[options.memory]))
        return
    print(json.dumps(measure(options.repeats, options.tiny), indent=1))


if __name__ == "__main__":
    main()
