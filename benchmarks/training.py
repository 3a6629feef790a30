"""A training step end to end: the same DiT with our fused loss and with the paper's formula on all logits.

    python -m benchmarks.training                           # 12 x 768, 8 x 512 tokens: many minutes on a CPU
    python -m benchmarks.training --length 64               # the same network on fewer tokens
    python -m benchmarks.training --device cuda --sequences 32

Noising, network, loss, gradients, clipping and AdamW; 50,257 words, 64 clusters. On a CPU float32 and one thread, on a
GPU bfloat16 products under autocast. Each method trains a network of its own from the same start; the losses of the
first step are asserted equal.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

import ddlib as dd
from benchmarks.head import CLIP, GPT2, TINY, Sizes, papers_hdlm, parents
from benchmarks.measuring import REPEATS, command_line, medians, over_ours, require_equal, seconds
from ddlib_models import DiT, sizes

Process = dd.processes.Hierarchical
Loss = Callable[[Process, DiT, Tensor, Tensor, Tensor], Tensor]


class Step(NamedTuple):
    """The batch of a step, its network, and where it runs."""

    vocabulary: Sizes = GPT2
    network: Mapping[str, int] = sizes.small()
    sequences: int = 8
    length: int = 512
    device: str = "cpu"


STEP, TINY_STEP = Step(), Step(TINY, dict(dim=16, depth=2, heads=2), 4, 8)


def fused(process: Process, model: DiT, x: Tensor, z: Tensor, t: Tensor) -> Tensor:
    """From the features, by what the mathematics asks for."""
    weight, bias = model.head.words()
    return dd.linear_training_loss(process, model.features(z, t), weight, x, z, t, bias, weight_clip=(0.0, CLIP))


def full(process: Process, model: DiT, x: Tensor, z: Tensor, t: Tensor) -> Tensor:
    """From all logits, by the paper's formula."""
    weight = process.loss_weight(x, z, t).clamp(max=CLIP).float()
    return papers_hdlm(process, model(z, t).float(), x, z, weight)


class Trainer:
    """A network, its optimizer and the batch that it sees again and again."""

    def __init__(self, loss: Loss, given: Step) -> None:
        torch.manual_seed(0)
        self.loss, self.number, self.device = loss, 0, given.device
        self.process = dd.presets.hdlm(parents(given.vocabulary)).to(given.device)
        self.model = DiT(self.process.num_states, given.vocabulary.words, **given.network).to(given.device)
        torch.nn.init.normal_(self.model.head.weight, std=0.02)  # at zero all losses would agree, right or wrong
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.x = torch.randint(given.vocabulary.words, (given.sequences, given.length)).to(given.device)
        self.index = torch.arange(given.sequences, device=given.device)

    def step(self) -> Tensor:
        """One step; its loss, which stays on the device."""
        noise = dd.KeyedGenerator(0, self.number, self.index)
        t = dd.sample_times(len(self.x), generator=noise)
        z = self.process.sample(self.x, t, noise)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            loss = self.loss(self.process, self.model, self.x, z, t)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.number += 1
        return loss.detach()


def measure(given: Step = STEP, repeats: int = REPEATS, losses: Mapping[str, Loss] | None = None) -> dict[str, Any]:
    """Seconds of a step by each loss, ours among them, and how many times more tokens a second ours takes."""
    trainers = {name: Trainer(loss, given) for name, loss in (losses or dict(ours=fused, papers=full)).items()}
    first = {name: float(trainer.step()) for name, trainer in trainers.items()}
    require_equal(first, 1e-4 if given.device == "cpu" else 1e-2)
    taken = seconds({name: trainer.step for name, trainer in trainers.items()}, repeats, given.device)
    tokens = {name: given.sequences * given.length / value for name, value in medians(taken).items()}
    ratios = over_ours(medians(taken), "time")
    return {"ratios": ratios, "seconds": taken, "tokens_per_second": tokens, "losses": first}


def main() -> None:
    """The command."""
    parser = command_line(__doc__)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    given = TINY_STEP if options.tiny else Step(sequences=options.sequences, length=options.length)
    print(json.dumps(measure(given._replace(device=options.device), options.repeats), indent=1))


if __name__ == "__main__":
    main()
