"""Predictor-corrector sampling: any sampler with corrections after its steps."""

from collections.abc import Sequence
from typing import Self

import torch

from ddlib.processes import ForwardProcess
from ddlib.samplers.ancestral import Ancestral
from ddlib.samplers.base import Guarantees, Sampler, SamplingContext, State
from ddlib.samplers.correctors.base import Corrector
from ddlib.samplers.correctors.edge_balance import EdgeBalance
from ddlib.samplers.correctors.forward_backward import ForwardBackward
from ddlib.samplers.correctors.gibbs import Gibbs
from ddlib.samplers.correctors.self_correction import SelfCorrection
from ddlib.samplers.wrapper import Wrapper
from ddlib.typing import Tokens
from ddlib.utils.validation import check_count, check_interval


class Corrected(Wrapper):
    """Predictor-corrector sampler: steps of a sampler, each followed by corrections at the time
    that it reaches.

    A corrector keeps the distribution at a time and reduces errors of earlier steps, such as tokens
    that were drawn at once and do not match. Song et al. (2021), for discrete states Campbell et
    al. (2022).

    Args:
        predictor: a sampler with states at the times of the grid, unlike ``FirstHitting``.
        corrector: the corrector to apply after its steps.
        steps: number of corrections after each step, at least 1.
        interval: two times; corrections follow steps that end between them, bounds included, and
            not at t = 0.

    Raises:
        TypeError: not a sampler, not a corrector, a predictor that is not ``on_time_grid``; when
            sampling, a process that the corrector does not support.
        ValueError: steps below 1, an interval outside [0, 1] or of length 0.
    """

    def __init__(
        self,
        predictor: Sampler,
        corrector: Corrector,
        steps: int = 1,
        interval: Sequence[float] = (0.0, 1.0),
    ) -> None:
        if not isinstance(predictor, Sampler):
            raise TypeError(
                f"predictor is {predictor!r}, must be a ddlib.samplers.Sampler object such as "
                "Ancestral()"
            )
        if not isinstance(corrector, Corrector):
            raise TypeError(
                f"corrector is {corrector!r}, must be a ddlib.samplers.Corrector object such as "
                "Gibbs()"
            )
        if not predictor.guarantees.on_time_grid:
            raise TypeError(
                f"predictor is {predictor!r}, must be one whose states are at the times of the "
                "grid (on_time_grid): a "
                "step of an event-based sampler has no time for a corrector, use Ancestral, which "
                "draws from the same "
                "distribution; Particles take a Corrected as their sampler"
            )
        self.predictor = predictor
        self.corrector = corrector
        self.steps = check_count("steps", steps)
        self.interval = check_interval(interval)

    @property
    def guarantees(self) -> Guarantees:
        """What predictor and corrector have in common; their calls add up."""
        first = self.predictor.guarantees
        then = self.corrector.guarantees
        return Guarantees(
            exact_marginals=first.exact_marginals and then.exact_marginals,
            consistent_joint=first.consistent_joint and then.consistent_joint,
            supports_stopping=first.supports_stopping and then.supports_stopping,
            supports_joint_draws=first.supports_joint_draws and then.supports_joint_draws,
            supports_fields=first.supports_fields and then.supports_fields,
            forces_transitions=first.forces_transitions or then.forces_transitions,
            movable_positions=first.movable_positions,
            max_model_calls=first.max_model_calls + self.steps * then.max_model_calls,
            max_finalize_calls=first.max_finalize_calls + then.max_finalize_calls,
        )

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [  # large enough for errors to be detected
            cls(Ancestral(), ForwardBackward(3.0)),
            cls(Ancestral(), EdgeBalance(3.0)),
            cls(Ancestral(), Gibbs(), 2, (0.0, 0.6)),
            cls(Ancestral(), SelfCorrection(steps=4)),
        ]

    @property
    def inner(self) -> Sampler:
        return self.predictor

    def check(self, process: ForwardProcess) -> None:
        """Raise TypeError unless predictor and corrector support the process."""
        super().check(process)
        self.corrector.check(process)

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        before = state
        (low, high) = self.interval
        state = self.predictor.step(run, before, k)
        # not the time of the grid where the predictor maps it, as Remask(rule="loop") does
        s = float(state.t[0] if run.path is None else run.times[k + 1])
        if s == 0 or not low <= s <= high:
            return state
        z = torch.where(run.free, state.z, before.z)  # restores the prompt
        for _ in range(self.steps):
            z = torch.where(
                run.free, self.corrector.correct(run, z, state.t, before.t - state.t), z
            )
        return state._replace(z=z)

    def finalize(self, run: SamplingContext, state: State) -> Tokens:
        """Return the tokens of the predictor after the final correction."""
        tokens = torch.where(run.free, self.predictor.finalize(run, state), state.z)
        return self.corrector.end(run, tokens)
