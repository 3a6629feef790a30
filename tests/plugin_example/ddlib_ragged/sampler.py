"""Sampling with second thoughts."""

from ddlib.samplers import Sampler, SamplingContext, State
from ddlib.utils.validation import check_number


class Restart(Sampler):
    r"""Steps past its goal and noises back up to it, so that a token drawn too early is drawn again.

    From t to s it draws z_u from the posterior at :math:`u = s - overshoot\,(t - s)`, or 0, and then z_s from the
    forward transition :math:`q_{s|u}(\cdot|z_u)`. The posterior takes the distribution of z_t to that of z_u, the
    transition takes that to the distribution of z_s: the result is as exact as Ancestral's, and the network runs once
    a step. Xu et al., "Restart sampling for improving generative processes" (2023); on masks, Wang et al.,
    "Remasking discrete diffusion models with inference-time scaling" (2025).

    For every process: forwards it goes by ``sample_forward``.

    Args:
        overshoot: how far past its goal each step goes, in steps; 0 is ancestral sampling.

    Raises:
        ValueError: overshoot not in [0, 100].
    """

    def __init__(self, overshoot: float = 1.0) -> None:
        self.overshoot = check_number("overshoot", overshoot, 0, 100, "in [0, 100]")

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        t, s = run.times[k].double(), run.times[k + 1].double()
        u = (s - self.overshoot * (t - s)).clamp_min(0)
        now, early, goal = (time.expand(len(state.z)) for time in (t, u, s))
        logits = run.predict(state.z, now)
        z = run.process.sample_given_level(logits, state.z, now, early, None, run.generator, sharpen=run.sharpen)
        return State(run.process.sample_forward(z, early, goal, run.generator), goal)
