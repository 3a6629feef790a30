"""Preferences between pairs of answers as a training objective (theory section 22)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import softplus

import ddlib as dd
from ddlib.typing import Denoiser
from recipes.config import Recipe, at_least, at_once, check_times, time_density
from recipes.config.times import OPTIMAL
from recipes.data import Batch
from recipes.data.agreement import Vocabulary, check_same_tokens
from recipes.engine.network import Network
from recipes.engine.objectives.base import Objective, Setting
from recipes.engine.objectives.noising import NoisyBatch

_LOGGED = ("pairs", "accuracy", "margin", "chosen")
"""Sums over the pairs of a step: their number, 1 where the chosen answer has the larger implied
reward and 1/2 where both have the same, the difference of the two, that of the chosen answer."""


@dataclass(frozen=True, kw_only=True)
class Paired(NoisyBatch):
    """Pairs of answers: the chosen ones, and behind them the rejected ones; without noise."""

    free: Bool[Tensor, "B L"]
    """True at tokens that are not given."""
    counted: Bool[Tensor, "B L"]
    """True at tokens that count, padding among them if it counts."""
    index: Int[Tensor, " n"]
    """Position of each pair in the global order."""


@dataclass(kw_only=True, repr=False)
class Preference(Objective):
    r"""Preferences between pairs of answers to one prompt (DPO, Rafailov et al., 2023).

    .. math:: -\log \sigma(\beta (\log \rho_w - \log \rho_l))

    log rho is estimated by the difference of the bounds of a frozen reference and of the network at
    the same times and noise, ``dd.bound_log_ratio``, which the two answers of a pair share. The
    prompt is given: it is not noised, and not in the ratio. ``batch`` counts pairs. Exact
    probabilities of paths have no place here: the answers of a file were not drawn by the network,
    and paths that are drawn given an answer estimate its bound too, by a call of the network for
    each step. Validation measures the bound of the text, as in pretraining.

    Args:
        pairs: file of a JSON object per line with prompt, chosen and rejected, or prepared folder;
            see ``recipes.data.read_pairs``. It is read when training begins.
        reference: folder of the run whose weights are the reference; None for the weights at the
            start of this run.
        beta: strength of the preference, above 0: a smaller one lets the network move further from
            the reference.
        draws: number of draws of time and noise per answer in each step. The loss is not linear in
            the ratio, so that its noise is a bias, which more draws reduce.
        times: density of the times, as in pretraining.
        count_padding: whether padding behind an answer is part of it, as in pretraining.
        parameterization: meaning of the network's output.
    """

    pairs: str
    reference: str | None = None
    beta: float = 0.1
    draws: int = 1
    times: str = OPTIMAL
    count_padding: bool = True
    parameterization: str = "cavity"
    unit = "per pair"

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise ValueError(f"beta={self.beta}: must be above 0")
        at_least(1, draws=self.draws)
        check_times("times", self.times)
        self._sums = torch.zeros(0)

    def check(self, recipe: Recipe) -> None:
        if recipe.data.packed:
            raise ValueError(
                "loss.kind=preference: not with data.packed, a row holds one answer of a pair"
            )
        if self.reference is not None:
            return
        if not recipe.starts_trained:
            raise ValueError(
                f"loss.reference=None: not with start={recipe.start!r}: the reference is the "
                "weights at the start of the run; start from a trained run, or set loss.reference"
            )
        if recipe.hardware.shard:
            raise ValueError(
                "loss.reference=None: not with hardware.shard, which divides the weights; must be "
                "the folder of a run"
            )

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        from recipes.data import lookup, read_pairs  # they import grain, which help does without

        recipe = setting.recipe
        data = setting.data
        length = recipe.data.length
        try:
            pairs = read_pairs(Path(self.pairs), data, length)
        except (OSError, ValueError) as error:
            raise ValueError(f"loss.{error}") from error
        self.digest = torch.frombuffer(bytearray(pairs.digest), dtype=torch.uint8)
        self._find = [
            lookup(answers, length=length, pad_id=data.fill_id, seed=recipe.seed)
            for answers in (pairs.chosen, pairs.rejected)
        ]
        self.base = self._reference()
        self.density = time_density(self.times, setting.process, length, pace=setting.pace)
        networks = (setting.network, self.base)
        self.at_once = all(at_once(setting.pace, one.model) for one in networks)

    def _reference(self) -> Network:
        """Return a copy of the weights, or those of the folder of a run, checked."""
        setting = self.setting
        if self.reference is None:
            return setting.network.frozen()
        from recipes.model_io import open_saved  # help does without it

        place = f"loss.reference={self.reference!r}"
        try:
            saved = open_saved(self.reference, setting.world.device)
        except (OSError, ValueError) as error:
            raise ValueError(f"{place}: {error}") from error
        check_same_tokens(
            place,
            setting.data.vocabulary,
            Vocabulary(self.reference, saved.tokenizer.get_vocab()),
            "The reference must have the tokenizer of the run",
        )
        process = setting.process
        try:
            process.set_extra_state(saved.process.get_extra_state())
        except ValueError as error:
            raise ValueError(
                f"{place}: its process is {saved.process!r}, must be {process!r}, that of the run: "
                f"{error}"
            ) from error
        network = Network(saved.model, saved.token_parameterization, setting.network.half)
        self.sha256 = torch.frombuffer(bytearray.fromhex(saved.sha256), dtype=torch.uint8)
        return network.eval().requires_grad_(False)

    def prepare(self, batches: list[Batch], step: int) -> list[NoisyBatch]:
        device = batches[0].x.device
        self._sums = torch.zeros(len(_LOGGED), dtype=torch.float64, device=device)
        return [self.pair(batch.index) for batch in batches]

    def pair(self, index: Int[Tensor, " n"]) -> Paired:
        """Return the pairs at some positions of the global order."""
        parts = [find(index.tolist()).to(index.device) for find in self._find]
        x, mask, free = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("x", "mask", "free")
        )
        zeros = torch.zeros(len(x), device=x.device)
        counts = self.count_padding and self.setting.padded
        return Paired(
            x=x,
            z=x,
            t=zeros,
            measure=zeros,
            mask=torch.ones_like(mask),
            free=free,
            counted=torch.ones_like(mask) if counts else mask,
            index=index,
        )

    def loss(self, noisy: NoisyBatch, network: Network, scale: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(noisy, Paired)
        network.eval()  # equal networks have equal bounds only without dropout
        ratios = [self.ratio(noisy, network, half) for half in (0, 1)]
        network.train()
        total = dd.preference_loss(*ratios, beta=self.beta)
        chosen, rejected = (self.beta * ratio.detach() for ratio in ratios)
        self._note(chosen, rejected)
        # the engine divides by the number of tokens, and the loss is a mean over pairs
        rows, length = noisy.x.shape
        values = softplus(rejected - chosen).repeat(2)[:, None].expand(rows, length)
        return scale * rows * length * total, values

    def ratio(self, noisy: Paired, network: Network, half: int) -> Float[Tensor, " n"]:
        """Estimate the log-ratio of the chosen answers (0) or of the rejected ones (1)."""
        setting = self.setting
        x, counted, free = (part.chunk(2)[half] for part in (noisy.x, noisy.counted, noisy.free))
        return dd.bound_log_ratio(
            setting.process,
            _stated(network),
            _stated(self.base),
            x,
            draws=self.draws,
            seed=setting.recipe.seed,
            index=noisy.index,
            mask=counted,
            given=~free,
            density=self.density,
            pace=setting.pace,
            at_once=self.at_once,
        )

    def _note(self, chosen: Float[Tensor, " n"], rejected: Float[Tensor, " n"]) -> None:
        """Add what is logged, summed over pairs."""
        margin = chosen - rejected
        right = (1 + margin.sign()) / 2
        self._sums += torch.stack([torch.ones_like(margin), right, margin, chosen]).sum(1)

    def numbers_to_log(self) -> dict[str, float]:
        pairs, *sums = self.setting.world.sum(self._sums).tolist()
        means = [value / pairs for value in sums]
        return dict(zip(_LOGGED[1:], means, strict=True))

    def tensors(self) -> dict[str, Any]:
        """Return the reference, or the hash of its file, and the digest of the pairs."""
        state: dict[str, Any] = {"pairs": self.digest.clone()}
        if self.reference is None:
            return state | {"reference": self.base.state_dict()}
        return state | {"sha256": self.sha256.clone()}

    def load(self, state: dict[str, Any]) -> None:
        if not torch.equal(state["pairs"].cpu(), self.digest):
            raise ValueError(
                f"loss.pairs={self.pairs}: holds other pairs than when the checkpoint was written; "
                "begin a new run, with --start FOLDER for its weights"
            )
        if self.reference is None:
            self.base.load_state_dict(state["reference"])
        elif not torch.equal(state["sha256"].cpu(), self.sha256):
            raise ValueError(
                f"loss.reference={self.reference!r}: holds other weights than when the checkpoint "
                "was written; begin a new run, with --start FOLDER for its weights"
            )

    def about(self, padded: bool = True) -> str:
        padding = f", padding {'counted' if self.count_padding else 'left out'}" if padded else ""
        return f"preferences of {self.pairs}, beta {self.beta:g}{padding}"


def _stated(network: Network) -> Denoiser:
    """Return the network as a denoiser that states the meaning of its output."""
    denoiser = network.denoiser
    denoiser.parameterization = network.parameterization  # type: ignore[attr-defined]
    return denoiser
