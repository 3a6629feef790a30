"""A training step end to end: the same DiT with our fused loss and with the paper's formula on all logits.

    python benchmarks/training.py                                     # 12 x 768, 8 x 512 tokens: half an hour
    python benchmarks/training.py --sequences 8 --length 64           # minutes

Noising, network, loss, gradients, clipping and AdamW; 50,257 words, 64 clusters, float32, one thread. Each method
trains a network of its own from the same start; the losses of the first step are asserted equal.
"""

import argparse
from collections.abc import Callable

import torch
from head import CLIP, CLUSTERS, WORDS, papers_hdlm
from measuring import medians, report, seconds
from torch import Tensor

import ddlib as dd
from ddlib_models import DiT, sizes

PROCESS = dd.presets.hdlm(dd.hierarchies.random_parents(WORDS, CLUSTERS)[0])
Loss = Callable[[DiT, Tensor, Tensor, Tensor], Tensor]


def fused(model: DiT, x: Tensor, z: Tensor, t: Tensor) -> Tensor:
    """From the features, by what the mathematics asks for."""
    weight, bias = model.head.words()
    return dd.linear_training_loss(PROCESS, model.features(z, t), weight, x, z, t, bias, weight_clip=(0.0, CLIP))


def full(model: DiT, x: Tensor, z: Tensor, t: Tensor) -> Tensor:
    """From all logits, by the paper's formula."""
    return papers_hdlm(PROCESS, model(z, t), x, z, PROCESS.loss_weight(x, z, t).clamp(max=CLIP).float())


class Trainer:
    """A network, its optimizer and the batch that it sees again and again."""

    def __init__(self, loss: Loss, sequences: int, length: int) -> None:
        torch.manual_seed(0)
        self.model, self.loss, self.number = DiT(PROCESS.num_states, WORDS, **sizes.small()), loss, 0
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.x = torch.randint(WORDS, (sequences, length))
        self.index = torch.arange(sequences)

    def step(self) -> float:
        """One step; its loss."""
        noise = dd.KeyedGenerator(0, self.number, self.index)
        t = dd.sample_times(len(self.x), generator=noise)
        z = PROCESS.sample(self.x, t, noise)
        loss = self.loss(self.model, self.x, z, t)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.number += 1
        return loss.item()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    trainers = {
        name: Trainer(loss, options.sequences, options.length) for name, loss in dict(ours=fused, papers=full).items()
    }
    losses = {name: trainer.step() for name, trainer in trainers.items()}
    if abs(losses["ours"] - losses["papers"]) > 1e-4 * losses["papers"]:
        raise AssertionError(f"the losses differ: {losses}")
    taken = seconds({name: trainer.step for name, trainer in trainers.items()}, options.repeats)
    middle, tokens = medians(taken), options.sequences * options.length
    name = f"training step, {options.sequences} x {options.length} tokens"
    speed = {method: tokens / value for method, value in middle.items()}
    row = {"cpu_seconds": taken, "tokens_per_cpu_second": speed, "times_faster": middle["papers"] / middle["ours"]}
    report("training", {name: row})


if __name__ == "__main__":
    main()
