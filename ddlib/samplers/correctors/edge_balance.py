"""Corrector with balanced ascents and descents on each edge of a hierarchy."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from jaxtyping import Float64
from torch import Tensor

from ddlib.processes import LevelProcess
from ddlib.samplers.base import Guarantees, SamplingContext, level_process
from ddlib.samplers.correctors.base import Corrector
from ddlib.samplers.reverse_step import shift
from ddlib.typing import Times, Tokens
from ddlib.utils.validation import check_flag, check_number


class EdgeBalance(Corrector):
    r"""Ascents on each edge with probability :math:`\sigma_i`, balanced by as many descents.

    :math:`\sigma_i = \min(strength\, (1 - T_{ii}), most)`: ``strength`` times the probability that
    the forward process ascends in a step of the same length, with T its level transition, and at
    most ``max_remask_prob``. The distribution of levels is kept (theory section 8). For masks and
    small steps it is the corrector of discrete flow matching with :math:`B = strength` (Gat et al.,
    2024). The network runs on sequences in which a position descends. It requires a process with
    levels.

    Args:
        strength: in [0, 10]; 0 changes nothing.
        force_transition: as of the predictor, see ``Ancestral``.

    Raises:
        TypeError, ValueError: another strength; when sampling, a process without levels.
    """

    requires = LevelProcess
    instead = "use ForwardBackward or the sampler Psi"

    def __init__(self, strength: float = 1.0, force_transition: bool = False) -> None:
        self.strength = check_number("strength", strength, 0, 10, "in [0, 10]")
        self.force_transition = check_flag("force_transition", force_transition)

    @property
    def guarantees(self) -> Guarantees:
        return replace(
            super().guarantees,
            supports_joint_draws=True,
            forces_transitions=self.force_transition,
        )

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(3.0)]  # large enough for errors to be detected

    def correct(self, run: SamplingContext, z: Tokens, t: Times, h: Times) -> Tokens:
        process = level_process(run)
        target = process.sample_level(z, t, t, run.generator, self.sigma(process, t, h))
        return shift(run, z, t, target, self.force_transition)

    def sigma(self, process: LevelProcess, t: Times, h: Times) -> Float64[Tensor, "*n m"]:
        """Compute the probability to ascend each edge in a correction after a step of length ``h``,
        (B, n).
        """
        stay = process.level_transition(t, (t + h).clamp_max(1.0))
        most = process.max_remask_prob(t, t)
        return (
            (self.strength * (1 - stay.diagonal(dim1=-2, dim2=-1)[..., :-1]))
            .clamp_min(0)
            .minimum(most)
        )
