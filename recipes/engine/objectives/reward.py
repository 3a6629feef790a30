"""Mean reward of samples as a training objective (theory section 22)."""

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

import ddlib as dd
from ddlib import registry
from ddlib.processes import ForwardProcess
from ddlib.rewards import LARGEST_REWARD
from ddlib.typing import Steps, implements
from recipes.config import Recipe, at_least
from recipes.data import Batch
from recipes.engine.network import Network
from recipes.engine.objectives.base import Objective, Setting
from recipes.engine.objectives.noising import NoisyBatch

_STREAM = 2**60
"""Added to the index of an example: samples have another noise than training on text."""

_LOGGED = ("rows", "reward", "spread", "entropy", "kl")
"""Sums over the rows of a step: their number, rewards, differences of the largest and the smallest
reward of their groups, -log p of the path, and divergences.
"""

_CLIPPED = ("draws", "clipped")
"""Sums over the draws of a step: their number, and those whose ratio is clipped."""

_PATIENCE = 20
"""Steps with equal rewards in every group after which the user is warned."""


@dataclass(frozen=True, kw_only=True)
class Sampled(NoisyBatch):
    """Samples of the network with their path; ``z`` and ``t`` are those before the first step."""

    path: dd.samplers.Trajectory
    rewards: Float[Tensor, " B"]


@dataclass(kw_only=True, repr=False)
class Reward(Objective):
    """Gradient of the mean reward of the network's samples, from their exact probabilities.

    The network draws ``group`` samples for each prompt, which is the beginning of a training
    sequence, and takes ``updates_per_rollout`` steps on them. The first step has the gradient of
    the mean reward. In the others each draw has the ratio of its probability to that when it was
    drawn, clipped (PPO, Schulman et al., 2017): it is biased, and saves samples. The loss that is
    logged is minus the mean reward. Validation measures the bound of the text, as in pretraining.

    Args:
        reward: function ``package.module:function`` from tokens (B, L) int64 to rewards (B,), or
            from texts. It is imported when training begins, and not where a trained run is read.
        reads: "tokens", or "text": the function then takes a list of B texts, decoded by the
            tokenizer of the data without special tokens, each with its prompt.
        group: samples of one prompt, at least 2.
        prompt: tokens at the beginning of a training sequence that are the prompt; 0 for none.
        sampler: sampler of which a path has a probability.
        sampling_steps: steps of a sample.
        temperature: of the samples, in processes with levels.
        beta: weight of the divergence from the weights at the start of the run.
        normalize: divide by the deviation of the rewards of a group, which is biased.
        updates_per_rollout: steps of the optimizer on the same samples.
        clip: by how much the ratio of a draw may leave 1 before its gradient ends, in (0, 1); None
            for no limit. With one update all ratios are 1.
        parameterization: meaning of the network's output.
    """

    reward: str
    reads: Literal["tokens", "text"] = "tokens"
    group: int = 8
    prompt: int = 0
    sampler: Any = None
    sampling_steps: int = 16
    temperature: float = 1.0
    beta: float = 0.0
    normalize: bool = False
    updates_per_rollout: int = 1
    clip: float | None = 0.2
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
        at_least(1, updates_per_rollout=self.updates_per_rollout)
        if self.clip is not None and not 0 < self.clip < 1:
            raise ValueError(f"clip={self.clip}: must lie in (0, 1), or be None")
        at_least(0, prompt=self.prompt, beta=self.beta)
        if not 0 < self.temperature < math.inf:
            raise ValueError(
                f"temperature={self.temperature}: must be positive, draws without randomness have "
                "no gradient"
            )
        self._sums = torch.zeros(0)
        self._clipped = torch.zeros(0)
        self._rollout: int | None = None
        self._step = 0
        self._equal = 0

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
        if self.beta and not recipe.starts_trained:
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
        if self.beta:
            self.reference = setting.network.frozen()
        self.behaviour = setting.network
        if self.updates_per_rollout > 1:
            self.behaviour = setting.network.frozen()
            self._samples: list[Sampled] = []
            from recipes.data import lookup  # imports grain, which help does without

            data = setting.data
            self._find = lookup(
                data.train,
                length=setting.recipe.data.length,
                pad_id=data.fill_id,
                seed=setting.recipe.seed,
            )

    def prepare(self, batches: list[Batch], step: int) -> list[NoisyBatch]:
        device = batches[0].x.device
        self._step = step + 1
        self._sums = torch.zeros(len(_LOGGED), dtype=torch.float64, device=device)
        self._clipped = torch.zeros(len(_CLIPPED), dtype=torch.float64, device=device)
        if self.updates_per_rollout == 1:
            return [*self.roll_out(batches, step)]
        rollout, update = divmod(step, self.updates_per_rollout)
        if update == 0:
            self.behaviour.load_state_dict(self.setting.network.state_dict())
        if implements(self.behaviour.model, Steps):
            self.behaviour.model.at_step(step - update)
        if self._rollout != rollout:
            # after a restart within a rollout its samples are drawn again, by the same weights
            self._rollout = rollout
            earlier = (step - rollout) * self.setting.recipe.batch
            indices = [(batch.index - earlier).tolist() for batch in batches]
            self._samples = self.roll_out(
                [self._find(index).to(device) for index in indices], rollout
            )
        return [*self._samples]

    def roll_out(self, batches: list[Batch], rollout: int) -> list[Sampled]:
        """Draw the samples of a rollout with the weights of the behaviour."""
        network = self.behaviour
        training = network.training
        network.eval()  # samples are without dropout
        samples = [self.draw(batch, rollout) for batch in batches]
        network.train(training)
        return samples

    def draw(self, batch: Batch, rollout: int) -> Sampled:
        """Draw the samples of a micro-batch and evaluate their rewards."""
        setting = self.setting
        network = self.behaviour
        prompts = batch.x[:: self.group, : self.prompt].repeat_interleave(self.group, 0)
        tokens, path = dd.sample(
            setting.process,
            network.denoiser,
            tuple(batch.x.shape),
            self.sampler,
            self.sampling_steps,
            prompts if self.prompt else None,
            temperature=self.temperature,
            parameterization=network.parameterization,
            pace=setting.pace,
            generator=dd.KeyedGenerator(setting.recipe.seed, rollout, batch.index + _STREAM),
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
            # all ratios are 1 where each sample has one step
            clip=None if self.updates_per_rollout == 1 else self.clip,
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
        groups = noisy.rewards.view(-1, self.group)
        spread = self.group * (groups.amax(1) - groups.amin(1)).sum()
        parts = [rows, noisy.rewards.sum(), spread, -terms.sum(), divergence]
        self._sums += torch.stack(
            [torch.as_tensor(part, dtype=torch.float64, device=terms.device) for part in parts]
        )
        if self.updates_per_rollout > 1:
            ratio = (terms - noisy.path.log_probs).exp()
            limit = torch.inf if self.clip is None else self.clip
            clipped = (ratio - 1).abs() > limit
            self._clipped += torch.stack([noisy.path.drawn.sum(), clipped.sum()])

    def numbers_to_log(self) -> dict[str, float]:
        rows, *sums = self.setting.world.sum(self._sums).tolist()
        means = [value / rows for value in sums]
        numbers = dict(zip(_LOGGED[1:], means, strict=True))
        # beyond the patience it only grows, so that the user is warned once
        self._equal = 0 if numbers["spread"] and self._equal < _PATIENCE else self._equal + 1
        if self._equal == _PATIENCE and self.setting.world.first:
            warnings.warn(
                f"step {self._step}: the rewards of each group were equal in the last {_PATIENCE} "
                f"steps, now {numbers['reward']:g} in the mean, so they have no gradient; check "
                f"loss.reward={self.reward}, or raise loss.group",
                stacklevel=2,
            )
        if self.updates_per_rollout > 1:
            draws, clipped = self.setting.world.sum(self._clipped).tolist()
            numbers["clipped"] = clipped / max(draws, 1)
        return numbers

    def tensors(self) -> dict[str, Any]:
        """Return the reference, and the weights that drew the samples of the present rollout."""
        networks = {}
        if self.beta:
            networks["reference"] = self.reference.state_dict()
        if self.updates_per_rollout > 1:
            networks["behaviour"] = self.behaviour.state_dict()
        return networks

    def load(self, state: dict[str, Any]) -> None:
        for name, values in state.items():
            getattr(self, name).load_state_dict(values)

    def rewards(self, tokens: Int[Tensor, "B L"]) -> Float[Tensor, "B"]:
        """Evaluate the reward function and check its values.

        Raises:
            ValueError: values of another kind or number, that are not finite or too large; the
                message names the function and the sample.
        """
        samples: Tensor | list[str] = tokens.clone()  # a reward may write into its input
        if self.reads == "text":
            samples = self.setting.data.tokenizer.decode_batch(tokens.tolist())
        try:
            values = self.function(samples)
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
        bad = (~(values.abs() <= LARGEST_REWARD)).nonzero()
        if len(bad):
            row = int(bad[0])
            raise ValueError(
                f"loss.reward={self.reward}: the reward of a sample is {float(values[row])}, must "
                f"be in [-{LARGEST_REWARD:g}, {LARGEST_REWARD:g}]; its tokens are "
                f"{tokens[row].tolist()}"
            )
        return values

    def about(self, padded: bool = True) -> str:
        updates = self.updates_per_rollout
        several = f", {updates} updates for each rollout" if updates > 1 else ""
        return f"minus the mean of {self.reward}{several}"
