"""Training step of MDLM by its paper's formula, compiled: the peer of ddlib's step.

The same DiT, AdamW, clipping and average of the weights, one fixed batch on the device, masks at
antithetic times, logits of all tokens at all positions. The output layer is padded to a multiple of
128 rows, which GPUs multiply faster. The blocks are compiled one by one, and so is the output layer
with the loss; or the whole network as one graph.
"""

from functools import partial

import torch
from torch import Tensor

from benchmarks.training import WORDS, Step, Trainer

DECAY = 0.9999
FIRST_TIME = 1e-3


def formula(log_p: Tensor, x: Tensor, masked: Tensor, t: Tensor) -> Tensor:
    """Compute MDLM's loss with the linear schedule: -log p(x) / t at masks, in nats per token."""
    nats = -log_p.gather(-1, x[..., None]).squeeze(-1)
    return (nats * masked / t[:, None]).mean()


class Peer(Trainer):
    """Network, optimizer and batch of this step.

    Args:
        step: sizes and device.
        whole: compile the whole network as one graph.
        backend: of torch.compile.
    """

    def __init__(self, step: Step, whole: bool = False, backend: str = "inductor") -> None:
        super().__init__(WORDS, step._replace(noise="mdlm"))
        self.averages = [parameter.detach().clone() for parameter in self.model.parameters()]
        if not whole:
            for block in self.model.blocks:
                block.compile(backend=backend)
        compiled = partial(torch.compile, dynamic=False, backend=backend)
        self.from_states = compiled(self.on_states) if whole else self.on_states
        self.from_hidden = self.on_hidden if whole else compiled(self.on_hidden)

    def value(self, loss: object = None) -> Tensor:
        """Compute the loss of a new draw of masks."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            return self.from_states(*self.draw_noise())

    def draw_noise(self) -> tuple[Tensor, Tensor, Tensor]:
        """Draw masks at antithetic times.

        Returns:
            states, masks and times.
        """
        t = (self.index + torch.rand(1, device=self.x.device)) / len(self.x)
        t = FIRST_TIME + (1 - FIRST_TIME) * t
        masked = torch.rand(self.x.shape, device=self.x.device) < t[:, None]
        return torch.where(masked, self.process.num_states - 1, self.x), masked, t

    def on_states(self, z: Tensor, masked: Tensor, t: Tensor) -> Tensor:
        """Compute the loss from the states."""
        return self.from_hidden(self.model.features(z, t), masked, t)

    def on_hidden(self, hidden: Tensor, masked: Tensor, t: Tensor) -> Tensor:
        """Compute the loss from the features of the network."""
        return formula(self.model.head(hidden).float().log_softmax(-1), self.x, masked, t)

    def step(self) -> Tensor:
        """Take one step; return its loss, which stays on the device."""
        value = super().step()
        with torch.no_grad():
            torch._foreach_lerp_(self.averages, [*self.model.parameters()], 1 - DECAY)
        return value
