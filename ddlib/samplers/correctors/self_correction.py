"""Self-correction of final tokens, as in GIDD."""

from collections.abc import Sequence
from typing import Self

import torch

from ddlib.processes import ForwardProcess
from ddlib.samplers.base import Guarantees, SamplingContext
from ddlib.samplers.correctors.base import Corrector
from ddlib.typing import Times, Tokens
from ddlib.utils.categorical import draw_logits
from ddlib.utils.random import rand
from ddlib.utils.validation import check_count, check_number


class SelfCorrection(Corrector):
    """Fixed-point iteration that replaces one token per step by a likelier one, after von Rütte et
    al. (2025, GIDD).

    It acts once, on the final tokens. Each step draws a candidate for every position, and the most
    probable of the candidates that differ from the present tokens replaces one. A sequence is
    finished if no candidate differs, or if the share of tokens that are the argmax of the model
    output has not grown for ``patience`` steps.

    The result does not have the distribution of the model: it is closer to the modes, so measure
    the entropy besides the quality. ``Gibbs`` keeps the distribution. The model output is taken as
    the cavity distribution, with the temperature given here; temperature and truncation of
    ``sample`` do not apply. It requires a process whose tokens can be wrong, such as GIDD and
    uniform noise.

    Args:
        steps: maximal number of steps, each with a network call on the unfinished sequences.
        time: in (0, 1), the time input of the network.
        temperature: temperature of the candidates, above 0.
        patience: number of steps without an increase.

    Raises:
        TypeError, ValueError: an argument out of range; when sampling, a process whose tokens are
            never wrong.
    """

    def __init__(
        self, steps: int = 128, time: float = 0.01, temperature: float = 0.1, patience: int = 32
    ) -> None:
        self.steps = check_count("steps", steps)
        self.time = check_number("time", time, 1e-9, 1 - 1e-9, "in (0, 1)")
        self.temperature = check_number("temperature", temperature, 1e-9, 1e6, "above 0")
        self.patience = check_count("patience", patience)

    @property
    def guarantees(self) -> Guarantees:
        return Guarantees(
            exact_marginals=False,
            consistent_joint=False,
            max_model_calls=0,
            max_finalize_calls=self.steps,
        )

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(steps=4)]

    def check(self, process: ForwardProcess) -> None:
        for component in process.components:
            tokens = torch.arange(component.process.vocab_size, device=process.device)[None]
            if bool(component.process.reachable_from_all_tokens(tokens).all()):
                continue
            raise TypeError(
                f"{type(self).__name__} needs a process whose tokens may be replaced by others, "
                f"those of {component!r} "
                "are never wrong in the forward process, so its network predicts nothing at them; "
                "use Remask or Psi, "
                "which mask them again"
            )

    def correct(self, run: SamplingContext, z: Tokens, t: Times, h: Times) -> Tokens:
        """Return the states unchanged."""
        return z

    def end(self, run: SamplingContext, tokens: Tokens) -> Tokens:
        t = torch.full((len(tokens),), self.time, dtype=torch.float64, device=tokens.device)
        active = run.free.any(1)
        best = torch.full_like(t, -1.0)
        idle = torch.zeros_like(active, dtype=torch.int64)
        for _ in range(self.steps):
            if not bool(active.any()):
                break
            u = rand(tokens.shape, run.generator, tokens.device)
            where = run.free & active[:, None]
            candidate = tokens.clone()
            score = torch.full_like(u, -torch.inf)
            is_argmax = torch.zeros_like(u)
            for part in run.network.at(tokens, t, where):
                logits = part.token_logits(torch.zeros_like(part.z))[:, 0].to(torch.float64)
                log_probs = (logits / self.temperature).log_softmax(-1)
                drawn = draw_logits(log_probs, u[part.b, part.i])
                log_prob = log_probs.gather(1, drawn[:, None])[:, 0]
                candidate[part.b, part.i] = part.as_states(drawn)
                score[part.b, part.i] = torch.where(drawn != part.z, log_prob, -torch.inf)
                is_argmax[part.b, part.i] = (logits.argmax(-1) == part.z).to(u)
            share = is_argmax.sum(1) / run.free.sum(1).clamp_min(1)
            idle = torch.where(share > best, 0, idle + 1)
            best = best.maximum(share)
            highest, position = score.max(1, keepdim=True)
            active = active & (idle < self.patience) & (highest[:, 0] > -torch.inf)
            corrected = tokens.scatter(1, position, candidate.gather(1, position))
            tokens = torch.where(active[:, None], corrected, tokens)
        return tokens
