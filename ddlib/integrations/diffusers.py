"""Scheduler for the ``diffusers`` library: its pipelines evaluate the network, a ``Sampler`` takes
each step.

Requires ``pip install "ddlib[diffusers]"``; no other module of ddlib imports this one.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ddlib.config import registry
from ddlib.config.building import build
from ddlib.parameterization.logits import Parameterization
from ddlib.processes import ForwardProcess, identity
from ddlib.samplers import Sampler, SamplingContext, State
from ddlib.samplers.controls.truncation import Truncation
from ddlib.samplers.runtime.model import Model
from ddlib.samplers.sampling import plan
from ddlib.typing import Logits, Sharpen, Times, Tokens
from ddlib.utils.random import Generator
from ddlib.utils.validation import (
    check_count,
    check_logits,
    check_shape,
    check_tokens,
    due,
    require,
)

try:
    from diffusers import SchedulerMixin
    from diffusers.configuration_utils import ConfigMixin, register_to_config
    from diffusers.utils.outputs import BaseOutput
except ImportError as error:
    raise ModuleNotFoundError(
        'a scheduler of diffusers requires diffusers: pip install "ddlib[diffusers]"'
    ) from error


@dataclass
class SamplerSchedulerOutput(BaseOutput):
    """Output of ``SamplerScheduler.step``."""

    prev_sample: Tensor
    """(B, L) states at the next time; tokens after the last step."""
    pred_logits: Tensor
    """The unchanged output of the network, for self-conditioning."""


class SamplerScheduler(SchedulerMixin, ConfigMixin):
    """Sampler and process with the interface of diffusers' schedulers of discrete states.

    A step uses one network evaluation, at the current states and time of the sampler; the
    constructor checks that the sampler needs no more. The tokens are those of ``dd.sample`` with
    the same noise. ``timesteps`` counts network evaluations from 0 up, as in
    ``DiscreteDDIMScheduler``; ``time_of`` returns the network's time in [0, 1]. If the process is
    not exact at t = 0, the last evaluation draws the tokens, so ``num_inference_steps`` is one more
    than ``steps`` of ``dd.sample``.

    Args:
        process: plain values, as in a recipe: ``{"kind": "masked", "vocab_size": 100, "schedule":
            "cosine"}``; or an object, which cannot be saved.
        sampler: likewise.
        num_inference_steps: number of network evaluations, until changed by ``set_timesteps``.
        temperature: as in ``dd.sample``, like the next three.
        top_p: see there.
        top_k: see there.
        min_p: see there.
        parameterization: meaning of the network's output, as in ``nelbo``.

    Raises:
        TypeError: a sampler that needs more than one network evaluation per step, or one at other
            states or times.
        ValueError: values that describe no process or sampler; a sampler that does not support the
            process.
    """

    order = 1
    init_noise_sigma = 1.0

    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(
        self,
        *,  # when loading, diffusers would treat positional arguments as defaults
        process: Mapping[str, Any] | str | ForwardProcess,
        sampler: Mapping[str, Any] | str | Sampler = "ancestral",
        num_inference_steps: int = 32,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int | None = None,
        min_p: float = 0.0,
        parameterization: Parameterization = "cavity",
    ) -> None:
        self.process: ForwardProcess = build("processes", process)
        self.sampler: Sampler = build("samplers", sampler)
        self._truncation = Truncation(temperature, top_p, top_k, min_p)
        self._parameterization: Parameterization = parameterization
        if self.sampler.guarantees.max_model_calls > 1:
            raise TypeError(
                f"{self.sampler!r} calls the network {self.sampler.guarantees.max_model_calls} "
                "times per "
                "step, must call it "
                "once: a scheduler of diffusers receives one output per step"
            )
        try:
            plan(self.process, _Answer(self), (1, 4), self.sampler)
            self._try()
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"{self.sampler!r} with {self.process!r} cannot be a scheduler: {error}"
            ) from error
        self.set_timesteps(num_inference_steps)

    @classmethod
    def from_config(
        cls, config: Any = None, return_unused_kwargs: bool = False, **changes: Any
    ) -> Any:
        """Create a scheduler from saved values.

        Parts are imported only from the modules listed in ``trust``.

        Raises:
            PermissionError: a part from a module that is not trusted.
        """
        with registry.trusting(changes.pop("trust", ())):
            return super().from_config(config, return_unused_kwargs, **changes)

    def save_config(
        self, save_directory: str | os.PathLike[Any], push_to_hub: bool = False, **options: Any
    ) -> None:
        """Write the values that ``from_pretrained`` reads.

        Raises:
            TypeError: the process or the sampler was given as an object.
        """
        for name in ("process", "sampler"):
            if not isinstance(value := self.config[name], (Mapping, str)):
                raise TypeError(
                    f"{name} was given as the object {value!r}, must be plain values to be saved"
                )
        super().save_config(save_directory, push_to_hub, **options)

    def set_timesteps(
        self, num_inference_steps: int, device: torch.device | str | None = None
    ) -> None:
        """Reset the scheduler, with the given number of network evaluations.

        Raises:
            ValueError: fewer than 1, or fewer than 2 if the process is not exact at t = 0.
        """
        least = 1 if self.process.exact_ends else 2
        self.num_inference_steps = check_count("num_inference_steps", num_inference_steps, least)
        self.timesteps = torch.arange(num_inference_steps, device=device)
        self.times = torch.linspace(
            1, 0, num_inference_steps + 2 - least, dtype=torch.float64, device=device
        )
        """(steps + 1,) the grid, from noise to tokens."""
        self._state: State | None = None
        self._next = 0

    def time_of(self, timestep: int | Tensor) -> Tensor:
        """Return the time in [0, 1] to pass to the network before a step: (B,), one per row, or ()
        for all rows.

        Args:
            timestep: an element of ``timesteps``.
        """
        k = self._index(timestep)
        return self._state.t if self._state is not None and 0 < k == self._next else self.times[k]

    def scale_model_input(self, sample: Tokens, timestep: int | Tensor | None = None) -> Tokens:
        """Return the sample unchanged: states are not scaled."""
        return sample

    def init_sample(self, shape: tuple[int, int], generator: Generator = None) -> Tokens:
        """Draw the initial states, (B, L), as ``dd.sample`` does."""
        free = torch.ones(shape, dtype=torch.bool, device=self.process.device)
        self._state = self.sampler.init(self._context(free, generator))
        self._next = 0
        return self._state.z

    def step(
        self,
        model_output: Logits,
        timestep: int | Tensor,
        sample: Tokens,
        *,
        prompt_mask: Tensor | None = None,
        temperature: float | None = None,
        generator: Generator = None,
        return_dict: bool = True,
    ) -> SamplerSchedulerOutput | tuple[Tensor, Tensor]:
        """Compute the states at the next time from those at the current time.

        Args:
            model_output: (B, L, V) logits over tokens, at ``sample`` and ``time_of(timestep)``.
            timestep: an element of ``timesteps``. If it follows the previous one, the sampler
                continues; otherwise it starts there, e.g. from a sequence that ``add_noise``
                returned.
            sample: (B, L) states.
            prompt_mask: (L,) or (B, L), True where ``sample`` is kept.
            temperature: replaces the temperature of the scheduler.
            generator: source of randomness.
            return_dict: whether to return an object rather than a tuple of its fields.

        Raises:
            TypeError, ValueError: an invalid timestep, states out of range, invalid logits as in
                ``nelbo``, a mask of another shape or type.
        """
        k = self._index(timestep)
        process = self.process
        check_tokens("sample", sample, process.num_states, "states")
        try:
            check_logits(model_output, sample.shape, process.vocab_size)
        except (TypeError, ValueError) as error:
            raise type(error)(f"model_output: {error}") from error
        free = torch.ones_like(sample, dtype=torch.bool)
        if prompt_mask is not None:
            if prompt_mask.dtype != torch.bool:
                raise TypeError(
                    f"prompt_mask has dtype {prompt_mask.dtype}, must be torch.bool, True at given "
                    "tokens"
                )
            shape = (
                sample.shape[2 - prompt_mask.ndim :] if prompt_mask.ndim in (1, 2) else sample.shape
            )
            check_shape(
                "prompt_mask", prompt_mask, shape, f"(L,) or (B, L) = {tuple(sample.shape)}"
            )
            free = (~prompt_mask).expand(sample.shape)
        z = self._step(model_output, k, sample, free, temperature, generator)
        return SamplerSchedulerOutput(z, model_output) if return_dict else (z, model_output)

    def add_noise(
        self,
        original_samples: Tokens,
        noise: Generator = None,
        timesteps: int | Tensor = 0,
        generator: Generator = None,
    ) -> Tokens:
        """Draw the noisy states of sequences at the times of given steps, (B, L).

        Args:
            original_samples: (B, L) tokens.
            noise: source of randomness; other schedulers take a tensor here.
            timesteps: one element of ``timesteps``, or (B,) of them.
            generator: alias of ``noise``.

        Raises:
            TypeError, ValueError: tokens out of range, invalid timesteps, a tensor as noise.
        """
        check_tokens("original_samples", original_samples, self.process.vocab_size)
        if isinstance(noise, Tensor):
            raise TypeError(
                f"noise is a tensor of shape {tuple(noise.shape)}, must be a generator: the states "
                "are drawn at random"
            )
        require(
            noise is None or generator is None,
            "noise and generator are both given, only one may be given",
        )
        steps = torch.as_tensor(timesteps).flatten().tolist()
        require(
            len(steps) in (1, len(original_samples)),
            f"timesteps has {len(steps)} entries, must have 1 or (B,) = ({len(original_samples)},)",
        )
        t = self.times.to(original_samples.device)[[self._index(step) for step in steps]]
        return self.process.sample(
            original_samples,
            t.expand(len(original_samples)),
            noise if generator is None else generator,
        )

    def _index(self, timestep: int | Tensor) -> int:
        index = (
            timestep.item() if isinstance(timestep, Tensor) and timestep.numel() == 1 else timestep
        )
        if (
            isinstance(index, bool)
            or not isinstance(index, int)
            or not 0 <= index < self.num_inference_steps
        ):
            raise ValueError(
                f"timestep is {timestep!r}, must be one of the timesteps "
                f"0..{self.num_inference_steps - 1}"
            )
        return index

    def _context(
        self,
        free: Tensor,
        generator: Generator,
        answer: "_Answer | None" = None,
        sharpen: Sharpen = identity,
    ) -> SamplingContext:
        network = Model(self.process, answer or _Answer(self), self._parameterization)
        times = self.times.to(free.device)
        return SamplingContext(self.process, network, sharpen, times, free, generator)

    def _step(
        self,
        logits: Logits,
        k: int,
        sample: Tokens,
        free: Tensor,
        temperature: float | None,
        generator: Generator,
    ) -> Tokens:
        truncation = self._truncation
        if temperature is not None:
            truncation = Truncation(
                temperature, truncation.top_p, truncation.top_k, truncation.min_p
            )
        answer = _Answer(self, logits, sample)
        run = self._context(free, generator, answer, truncation.sharpen(1.0))
        if self._state is None or k != self._next or self._state.z.shape != sample.shape:
            # the given generator is used for the steps only
            separate = torch.Generator(sample.device).manual_seed(0)
            begun = self.sampler.init(replace(run, generator=separate))
            self._state = begun._replace(t=run.times[k].expand(len(sample)))
        state = self._state._replace(z=sample)
        answer.t = state.t
        if k < run.steps:
            state = self.sampler.step(
                replace(run, sharpen=truncation.sharpen(float(run.times[k]))), state, k
            )
            state = state._replace(z=torch.where(free, state.z, sample))
        self._state = state
        self._next = k + 1
        if k < self.num_inference_steps - 1:
            return state.z
        tokens = self.sampler.finalize(replace(run, sharpen=truncation.sharpen(0.0)), state)
        return torch.where(free, tokens, sample)

    def _try(self) -> None:
        """Draw a few tokens with constant logits, so that an unsupported sampler raises in the
        constructor.
        """
        V = self.process.vocab_size
        generator = torch.Generator(self.process.device).manual_seed(0)
        self.set_timesteps(4, self.process.device)
        z = self.init_sample((2, 4), generator)
        for k in range(4):
            z = self._step(
                torch.zeros(2, 4, V, device=z.device),
                k,
                z,
                torch.ones_like(z, dtype=torch.bool),
                1.0,
                generator,
            )


class _Answer:
    """Denoiser that returns given logits, and raises for other states or times."""

    def __init__(
        self, scheduler: SamplerScheduler, logits: Logits | None = None, z: Tokens | None = None
    ) -> None:
        self.scheduler = scheduler
        self.logits = logits
        self.z = z
        self.t: Times | None = None

    def __call__(self, z: Tokens, t: Times) -> Logits:
        unchanged = (
            self.logits is not None
            and self.z is not None
            and self.t is not None
            and z.shape == self.z.shape
        )
        if unchanged and due(z):
            unchanged = torch.equal(z, self.z) and torch.equal(t, self.t.to(t.dtype))  # type: ignore[arg-type, union-attr]
        if not unchanged or self.logits is None:
            raise TypeError(
                f"{self.scheduler.sampler!r} evaluates the network at other states or another time "
                "than the current "
                "ones: a scheduler receives one output per step; use dd.sample"
            )
        return self.logits
