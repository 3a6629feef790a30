"""Mean reward of samples as a training objective (theory section 22)."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

import ddlib as dd
from ddlib import registry
from ddlib.processes import ForwardProcess
from recipes.config import Recipe, at_least
from recipes.data import Batch
from recipes.engine.network import Network
from recipes.engine.objectives.base import Objective, Setting
from recipes.engine.objectives.noising import NoisyBatch

_STREAM = 2**60
"""Added to the index of an example: samples have another noise than training on text."""

_LOGGED = ("rows", "reward", "entropy", "kl")
"""Sums over the rows of a step: their number, rewards, -log p of the path, and divergences."""


@dataclass(frozen=True, kw_only=True)
class Sampled(NoisyBatch):
    """Samples of the network with their path; ``z`` and ``t`` are those before the first step."""

    path: dd.samplers.Trajectory
    rewards: Float[Tensor, " B"]


@dataclass(kw_only=True, repr=False)
class Reward(Objective):
    """Gradient of the mean reward of the network's samples, from their exact probabilities.

    In each step the network draws ``group`` samples for each prompt, which is the beginning of a
    training sequence. The loss that is logged is minus the mean reward. Validation measures the
    bound of the text, as in pretraining.

    Args:
        reward: function ``package.module:function`` from tokens (B, L) int64 to rewards (B,). It is
            imported when training begins, and not where a trained run is read.
        group: samples of one prompt, at least 2.
        prompt: tokens at the beginning of a training sequence that are the prompt; 0 for none.
        sampler: sampler of which a path has a probability.
        sampling_steps: steps of a sample.
        temperature: of the samples, in processes with levels.
        beta: weight of the divergence from the weights at the start of the run.
        normalize: divide by the deviation of the rewards of a group, which is biased.
        parameterization: meaning of the network's output.
    """

    reward: str
    group: int = 8
    prompt: int = 0
    sampler: Any = None
    sampling_steps: int = 16
    temperature: float = 1.0
    beta: float = 0.0
    normalize: bool = False
    parameterization: str = "cavity"
    unit = "per sample"

    def __post_init__(self) -> None:
        plain = {"kind": "ancestral"} if self.sampler is None else self.sampler
        self.sampler = dd.build("samplers", plain, None, "loss.sampler")
        if ":" not in self.reward:
            raise ValueError(f"reward={self.reward!r}: must be package.module:function")
        if not self.sampler.guarantees.independent_draws:
            raise ValueError(
                f"sampler={self.sampler!r}: must be one of which a path has a probability, such as "
                "ancestral, first_hitting, confidence or remask"
            )
        at_least(2, group=self.group)
        at_least(1, sampling_steps=self.sampling_steps)
        at_least(0, prompt=self.prompt, beta=self.beta, temperature=self.temperature)
        self._sums = torch.zeros(0)

    def check(self, recipe: Recipe) -> None:
        if recipe.data.packed:
            raise ValueError(
                "loss.kind=reward: not with data.packed, whose rows hold several texts"
            )
        if recipe.hardware.shard:
            raise ValueError(
                "loss.kind=reward: not with hardware.shard, as processes sample with different "
                "numbers of calls"
            )
        if self.beta and recipe.start in ("random", "text"):
            raise ValueError(
                f"loss.beta={self.beta:g}: not with start={recipe.start!r}: the reference is the "
                "weights at the start of the run; start from a trained run, or omit loss.beta"
            )
        if self.prompt >= recipe.data.length:
            raise ValueError(
                f"loss.prompt={self.prompt}: must be below data.length={recipe.data.length}"
            )

    def check_process(self, process: ForwardProcess) -> None:
        try:
            self.sampler.check(process)
        except TypeError as error:
            raise ValueError(f"loss.sampler: {error}") from error

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        if setting.data.train.has_given:
            raise ValueError(
                f"data.folder={setting.data.folder}: has given tokens, which loss.kind=reward does "
                "not read: its prompts are the first loss.prompt tokens"
            )
        if setting.micro % self.group:
            raise ValueError(
                f"loss.group={self.group}: must divide the {setting.micro} rows of a micro-batch "
                "(batch, hardware.micro_batch and the number of processes)"
            )
        try:
            self.function = registry.find("objectives", self.reward)
        except ValueError as error:
            raise ValueError(f"loss.reward: {error}") from error
        self.reference = copy.deepcopy(setting.network).eval().requires_grad_(False)

    def prepare(self, batches: list[Batch], step: int) -> list[NoisyBatch]:
        self._sums = torch.zeros(len(_LOGGED), dtype=torch.float64, device=batches[0].x.device)
        network = self.setting.network
        network.eval()  # samples are without dropout
        samples = [self.draw(batch, step) for batch in batches]
        network.train()
        return [*samples]

    def draw(self, batch: Batch, step: int) -> Sampled:
        """Draw the samples of a micro-batch and evaluate their rewards."""
        setting = self.setting
        prompts = batch.x[:: self.group, : self.prompt].repeat_interleave(self.group, 0)
        tokens, path = dd.sample(
            setting.process,
            setting.network.denoiser,
            tuple(batch.x.shape),
            self.sampler,
            self.sampling_steps,
            prompts if self.prompt else None,
            temperature=self.temperature,
            parameterization=setting.network.parameterization,
            pace=setting.pace,
            generator=dd.KeyedGenerator(setting.recipe.seed, step, batch.index + _STREAM),
            record=True,
        )
        first = path.steps[0]
        rows = torch.ones(len(tokens), device=tokens.device)
        return Sampled(
            x=tokens,
            z=first.context.states(first.z),
            t=rows,
            measure=rows,
            mask=torch.ones_like(tokens, dtype=torch.bool),
            path=path,
            rewards=self.rewards(tokens),
        )

    def loss(self, noisy: NoisyBatch, network: Network, scale: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(noisy, Sampled)
        path = noisy.path
        process = self.setting.process
        meaning = network.parameterization
        network.eval()  # the distributions that were drawn from are those without dropout
        terms = dd.log_prob(
            process, network.denoiser, path, per_draw=True, parameterization=meaning
        )
        kl = None
        if self.beta:
            kl = dd.path_kl(
                process,
                network.denoiser,
                self.reference.denoiser,
                path,
                parameterization=meaning,
            )
        network.train()
        loss = dd.reward_loss(
            terms,
            path,
            noisy.rewards,
            group=self.group,
            clip=None,  # each sample has one step, so all ratios are 1
            beta=self.beta,
            kl=kl,
            normalize=self.normalize,
        )
        self._note(terms.detach(), noisy, kl)
        # the engine divides by the number of tokens, and the loss is a mean over rows
        rows, length = noisy.x.shape
        minus = -noisy.rewards[:, None].expand(rows, length)
        return scale * rows * length * loss, minus

    def _note(self, terms: Float[Tensor, "N B L"], noisy: Sampled, kl: Tensor | None) -> None:
        """Add what is logged, summed over rows."""
        rows = len(noisy.rewards)
        divergence = 0.0 if kl is None else kl.detach().sum()
        parts = [rows, noisy.rewards.sum(), -terms.sum(), divergence]
        self._sums += torch.stack(
            [torch.as_tensor(part, dtype=torch.float64, device=terms.device) for part in parts]
        )

    def numbers_to_log(self) -> dict[str, float]:
        rows, *sums = self.setting.world.sum(self._sums).tolist()
        means = [value / rows for value in sums]
        return dict(zip(_LOGGED[1:], means, strict=True))

    def tensors(self) -> dict[str, Any]:
        """Return the reference."""
        return {"reference": self.reference.state_dict()} if self.beta else {}

    def load(self, state: dict[str, Any]) -> None:
        self.reference.load_state_dict(state["reference"])

    def rewards(self, tokens: Int[Tensor, "B L"]) -> Float[Tensor, "B"]:
        """Evaluate the reward function and check its values.

        Raises:
            ValueError: values of another kind, number or that are not finite; the message names
                the function and the sample.
        """
        try:
            values = self.function(tokens)
        except Exception as error:
            raise ValueError(
                f"loss.reward={self.reward}: raised {type(error).__name__}: {error}, for tokens of "
                f"shape {tuple(tokens.shape)}, the first of which are {tokens[0].tolist()}. The "
                "last checkpoint is from before"
            ) from error
        if not isinstance(values, Tensor) or values.shape != tokens.shape[:1]:
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(
                f"loss.reward={self.reward}: returned {got}, must be a tensor of "
                f"{len(tokens)} rewards, one for each row of tokens"
            )
        values = values.to(tokens.device, torch.float64)
        bad = (~values.isfinite()).nonzero()
        if len(bad):
            row = int(bad[0])
            raise ValueError(
                f"loss.reward={self.reward}: the reward of a sample is {float(values[row])}, must "
                f"be finite; its tokens are {tokens[row].tolist()}"
            )
        return values

    def about(self, padded: bool = True) -> str:
        return f"minus the mean of {self.reward}"
