"""Sampler that alternates reverse and forward steps."""

from ddlib.samplers import Sampler, SamplingContext, State
from ddlib.utils.validation import check_number


class Restart(Sampler):
    r"""Sampler whose steps overshoot to an earlier time and return by adding noise, which redraws
    some tokens.

    A step from t to s draws z_u from the posterior at :math:`u = \max(s - overshoot\,(t - s), 0)`,
    and then z_s from the forward transition :math:`q_{s|u}(\cdot|z_u)`. The posterior maps the
    distribution of z_t to that of z_u, and the transition maps it to that of z_s: a step is exact
    where ancestral sampling is, with one call of the network. Xu et al., "Restart sampling for
    improving generative processes" (2023); for masks, Wang et al., "Remasking discrete diffusion
    models with inference-time scaling" (2025).

    Supports every process; forward steps use ``sample_forward``.

    Args:
        overshoot: distance from s to u in units of the step t - s; 0 is ancestral sampling.

    Raises:
        ValueError: overshoot not in [0, 100].
    """

    def __init__(self, overshoot: float = 1.0) -> None:
        self.overshoot = check_number("overshoot", overshoot, 0, 100, "in [0, 100]")

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        t = run.times[k].double()
        s = run.times[k + 1].double()
        u = (s - self.overshoot * (t - s)).clamp_min(0)
        now, early, goal = (time.expand(len(state.z)) for time in (t, u, s))
        logits = run.predict(state.z, now)
        z = run.process.sample_given_level(
            logits, state.z, now, early, None, run.generator, sharpen=run.sharpen
        )
        return State(run.process.sample_forward(z, early, goal, run.generator), goal)
