"""Training step end to end: the same DiT with the fused losses and with the paper's formula on all
logits.

    python -m benchmarks.training  # 12 x 768, 8 x 512 tokens: many minutes on a CPU
    python -m benchmarks.training --length 64               # the same network on fewer tokens
    python -m benchmarks.training --device cuda --sequences 32

Noising, network, loss, gradients, clipping and AdamW; 50,257 tokens. On a CPU float32 and one
thread, on a GPU bfloat16 products under autocast. Each method trains a separate network: with
logits of tokens, 64 clusters, or with child logits, a cluster for about every square root of the
tokens. The loss of the first step is asserted equal to the unfused formula.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import ddlib as dd
from benchmarks.head import CLIP, GPT2, TINY, Sizes, many_parents, papers_hdlm, parents
from benchmarks.measuring import REPEATS, command_line, medians, over_ours, require_equal, seconds
from ddlib.parameterization.logits import Parameterization
from ddlib_models import DiT, sizes


class Step(NamedTuple):
    """Batch of a step, network, noise, and device."""

    vocabulary: Sizes = GPT2
    network: Mapping[str, int] = sizes.small()
    sequences: int = 8
    length: int = 512
    noise: str = "hdlm"
    device: str = "cpu"


STEP = Step()
TINY_STEP = Step(TINY, dict(dim=16, depth=2, heads=2), 4, 8)
LAPTOP = Step(network=dict(dim=128, depth=4, heads=2), sequences=16, length=128)


class NoisyBatch(NamedTuple):
    """Input of a loss."""

    process: dd.processes.Hierarchical
    model: DiT
    meaning: Parameterization
    x: Tensor
    z: Tensor
    t: Tensor


Loss = Callable[[NoisyBatch], Tensor]


def fused_loss(batch: NoisyBatch) -> Tensor:
    """Compute the loss from the features, with only the required logits."""
    process, model, meaning, *noisy = batch
    weight, bias = dd.Hidden.layer(model, meaning)
    output = dd.Hidden(model.features(batch.z, batch.t), weight, bias)
    return dd.training_loss(
        process, output, *noisy, weighting=dd.weightings.Clip(CLIP), parameterization=meaning
    )


def unfused_loss(batch: NoisyBatch) -> Tensor:
    """Compute the loss from all logits, by ddlib's formula."""
    process, model, meaning, *noisy = batch
    logits = model(batch.z, batch.t).float()
    return dd.training_loss(
        process, logits, *noisy, weighting=dd.weightings.Clip(CLIP), parameterization=meaning
    )


def papers_loss(batch: NoisyBatch) -> Tensor:
    """Compute the loss from all logits, by the paper's formula."""
    weight = batch.process.loss_weight(batch.x, batch.z, batch.t).clamp(max=CLIP).float()
    logits = batch.model(batch.z, batch.t).float()
    return papers_hdlm(batch.process, logits, batch.x, batch.z, weight)


class Method(NamedTuple):
    """A loss, its unfused formula, and whether it takes child logits."""

    loss: Loss
    written_out: Loss
    children: bool = False


WORDS = Method(fused_loss, unfused_loss)
CHILDREN = Method(fused_loss, unfused_loss, True)
PAPERS = Method(papers_loss, unfused_loss)


class Trainer:
    """A network, its optimizer and the fixed batch that it trains on."""

    def __init__(self, method: Method, step: Step) -> None:
        torch.manual_seed(0)
        words = step.vocabulary.words
        self.loss = method.loss
        self.number = 0
        self.device = step.device
        clusters = many_parents(words) if method.children else parents(step.vocabulary)
        process = dd.presets.hdlm(clusters) if step.noise == "hdlm" else dd.presets.mdlm(words)
        self.process = process.to(step.device)
        tree = dict(tree=[clusters]) if method.children else {}
        self.model = DiT(process.num_states, words, **step.network, **tree).to(step.device)
        nn.init.normal_(
            self.model.head.weight, std=0.02
        )  # at zero all losses would agree, right or wrong
        self.meaning: Parameterization = dd.Children.of(self.model) if method.children else "cavity"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.x = torch.randint(words, (step.sequences, step.length)).to(step.device)
        self.index = torch.arange(step.sequences, device=step.device)

    def value(self, loss: Loss) -> Tensor:
        """Compute a loss of the next step's batch."""
        noise = dd.KeyedGenerator(0, self.number, self.index)
        t = dd.sample_times(len(self.x), generator=noise)
        noisy = NoisyBatch(
            self.process, self.model, self.meaning, self.x, self.process.sample(self.x, t, noise), t
        )
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            return loss(noisy)

    def step(self) -> Tensor:
        """Take one step; return its loss, which stays on the device."""
        loss = self.value(self.loss)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.number += 1
        return loss.detach()


def measure(
    step: Step = STEP, repeats: int = REPEATS, methods: Mapping[str, Method] | None = None
) -> dict[str, Any]:
    """Return the seconds of a step by each method, and the speedup in tokens per second of child
    logits, ``ours``.
    """
    methods = methods or dict(ours=CHILDREN, words=WORDS) | (
        {"papers": PAPERS} if step.noise == "hdlm" else {}
    )
    trainers = {name: Trainer(method, step) for name, method in methods.items()}
    first = {}
    for name, trainer in trainers.items():
        with torch.no_grad():
            wanted = float(trainer.value(methods[name].written_out))
        first[name] = float(trainer.step())
        require_equal({"ours": wanted, name: first[name]}, 1e-4 if step.device == "cpu" else 1e-2)
    timings = seconds(
        {name: trainer.step for name, trainer in trainers.items()}, repeats, step.device
    )
    middle = medians(timings)
    ratios = over_ours(middle, "time")
    if "papers" in middle:
        ratios["papers over words"] = middle["papers"] / middle["words"]
    tokens = {name: step.sequences * step.length / value for name, value in middle.items()}
    return {"ratios": ratios, "seconds": timings, "tokens_per_second": tokens, "losses": first}


def laptop(noise: str, step: Step = LAPTOP, repeats: int = REPEATS) -> dict[str, Any]:
    """Measure a small network under the whole vocabulary: child logits beside logits of tokens."""
    return measure(step._replace(noise=noise), repeats, dict(ours=CHILDREN, words=WORDS))


class Along(Trainer):
    """The same on rows that descend along the order of a sampler."""

    def __init__(self, order: dd.samplers.Sampler, step: Step) -> None:
        super().__init__(WORDS, step)
        self.rows = dd.contrib.TrainingRows(self.process, order, self.x, per_step=step.length // 8)

    def value(self, loss: Loss) -> Tensor:
        """Compute the loss of the current states, and descend."""
        rows = self.rows
        (weight, bias) = dd.Hidden.layer(self.model, self.meaning)
        hidden = self.model.features(rows.z, rows.t)
        output = dd.Hidden(hidden, weight, bias, observe=rows.observe)
        value = dd.training_loss(
            self.process, output, rows.x, rows.z, rows.draw(), **rows.loss_options()
        )
        finished = rows.step(hidden.detach(), self.model)
        rows.replace(finished, self.x[finished])
        return value


ORDERS = {
    "left to right": dd.samplers.LeftToRight(),
    "probability": dd.samplers.Confidence("probability"),
    "margin": dd.samplers.Confidence("margin"),
}


def along(words: int = 4096, step: Step = LAPTOP, repeats: int = REPEATS) -> dict[str, Any]:
    """Measure steps along orders beside steps at random masks, in shares of the latter.

    Left to right computes no scores; it has the same number of open positions as the others.
    """
    step = step._replace(noise="mdlm", vocabulary=step.vocabulary._replace(words=words))
    steps = {
        "ours": Trainer(WORDS, step),
        **{name: Along(order, step) for name, order in ORDERS.items()},
    }
    for trainer in steps.values():
        trainer.step()
    timings = seconds(
        {name: trainer.step for name, trainer in steps.items()}, 8 * repeats
    )  # a sequence has 8 steps
    return {"ratios": over_ours(medians(timings), "time"), "seconds": timings}


def main() -> None:
    """Run the command."""
    parser = command_line(__doc__)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    step = TINY_STEP if options.tiny else Step(sequences=options.sequences, length=options.length)
    print(json.dumps(measure(step._replace(device=options.device), options.repeats), indent=1))


if __name__ == "__main__":
    main()
