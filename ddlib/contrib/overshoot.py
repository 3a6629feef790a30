"""Ancestral sampling past the next time, followed by forward noising back to it."""

from collections.abc import Sequence
from typing import Self

from ddlib.processes import LevelProcess
from ddlib.processes.broadcasting import gather_columns
from ddlib.samplers.ancestral import Ancestral
from ddlib.samplers.base import Guarantees, Sampler, SamplingContext, State, at
from ddlib.samplers.reverse_step import shift
from ddlib.utils.categorical import draw
from ddlib.utils.random import rand
from ddlib.utils.validation import check_flag, check_number


class Overshoot(Sampler):
    r"""Reverse step past the next time s, to :math:`u = (1 - amount)\, s`, then a forward step from
    u to s.

    ``amount = 0`` is ``Ancestral``, to the bit. With 1 every step draws the whole sequence and
    noises it again. Every process keeps its distribution at every time of the grid. In a process
    with levels only the net change of the level counts (theory section 8): a position that ends
    lower descends in one draw, one that ends higher ascends without the network, and one that
    returns to its level keeps its state. A small overshoot remasks tokens mostly to their own
    clusters, a large one to the mask.

    Args:
        amount: in [0, 1].
        force_transition: keep a token inside its cluster as it descends, even where xi < 1 would
            let it leave.

    Raises:
        TypeError, ValueError: amount outside [0, 1].
    """

    def __init__(self, amount: float = 0.1, force_transition: bool = False) -> None:
        self.amount = check_number("amount", amount, 0, 1, "in [0, 1]")
        self.force_transition = check_flag("force_transition", force_transition)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(0.5), cls(1.0)]  # large enough for errors to be detected

    @property
    def guarantees(self) -> Guarantees:
        return Guarantees(
            consistent_joint=self.amount == 0,
            supports_joint_draws=True,
            movable_positions=True,
            forces_transitions=self.force_transition,
        )

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        z = state.z
        t = at(run, k)
        s = at(run, k + 1)
        u = (1 - self.amount) * s
        process = run.process
        ancestral = Ancestral(self.force_transition)
        if self.amount == 0:
            return ancestral.step(run, state, k)
        if not isinstance(process, LevelProcess):
            return State(
                process.sample_forward(ancestral.back(run, z, t, u), u, s, run.generator), s
            )
        reached = process.sample_level(z, t, u, run.generator)
        probs = gather_columns(process.level_transition(u, s).mT, reached)
        target = draw(probs, rand(z.shape, run.generator, z.device))
        return State(shift(run, z, t, target, self.force_transition), s)
