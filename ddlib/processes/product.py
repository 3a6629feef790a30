"""Product of processes: another alphabet, and other noise, at each position."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from jaxtyping import Bool, Float64
from torch import Tensor
from torch.nn.functional import pad

from ddlib.hierarchies import Tree
from ddlib.processes.base import ForwardProcess, identity
from ddlib.processes.broadcasting import unsqueeze_times
from ddlib.processes.hierarchical import Hierarchical
from ddlib.processes.masked import Masked
from ddlib.processes.places import Among
from ddlib.processes.product_fields import Fielded, Fields
from ddlib.processes.uniform import Uniform
from ddlib.schedules import Linear, Schedule
from ddlib.typing import (
    Logits,
    PerToken,
    Sharpen,
    StateMatrix,
    StateProbs,
    Times,
    TokenProbs,
    Tokens,
)
from ddlib.utils.categorical import draw
from ddlib.utils.random import Generator, rand


class Product(Fielded):
    r"""Sequence whose positions belong to fields, each with its own alphabet and its own noise.

    .. math:: q_t(z|x) = \prod_l q^{f(l)}_t(z_l | x_l)

    Columns of a table, nodes and edges of a graph, a sequence beside its structure. Posterior and
    reverse rates are those of each position's process, the bound is their sum over positions, and
    with the optimal network it is the joint entropy (theory section 23).

    ``x`` holds the ids of each position's own alphabet, 0..V_f - 1. ``z`` holds the states of its
    process plus an offset, so that no two fields share a state: a clean token is the state
    ``tokens_as_states(x)``. Logits are (B, L, V) with V the largest alphabet; entries beyond the
    alphabet of a position, any finite numbers or -inf, are ignored. Or they are (B, L, N), those of
    the tokens of all fields, one after the other: of an output layer for each field.
    ``num_states`` is the number of states of all fields together.

    All fields share the times: one per sequence, or one per position by a pace. Equal processes,
    and masks that differ in V alone, are evaluated by one call.

    Args:
        processes: the process of each field by name, at least one; a product in it stands for its
            fields, by the names ``name.field``, in the order of its positions.
        fields: field of each position, (L,), or (B, L) for the sequences of one batch, as the
            number of the field or its name. None for a single field at sequences of any length.

    Raises:
        TypeError: fields of another type, or a process of another kind.
        ValueError: no field; a field without positions, a position without a field.

    Example:
        >>> import ddlib as dd
        >>> fields = {"age": dd.presets.mdlm(5), "sex": dd.processes.Uniform(2, Linear())}
        >>> row = Product(fields, ["age", "sex", "age"])
        >>> row.tokens_as_states(torch.tensor([[4, 1, 0]]))
        tensor([[4, 7, 0]])
    """

    # ---- forwards: draws and probabilities

    def rate_matrix(self, t: float | Tensor) -> StateMatrix:
        return torch.block_diag(*(each.rate_matrix(t) for each in self.every))

    def transition(self, s: float | Tensor, t: float | Tensor) -> StateMatrix:
        return torch.block_diag(*(each.transition(s, t) for each in self.every))

    def marginal(self, x: Tokens, t: Times) -> StateProbs:
        self.check_inputs(x=x, t=t)
        field = self.fields_of(x.shape)
        return self._of_fields("marginal", field, x, t, spread=self._spread)

    def predictive(self, p: TokenProbs, t: Times) -> StateProbs:
        field = self.fields_of(p.shape[:2])
        return self._of_fields("predictive", field, p, t, spread=self._spread)

    def sample(
        self, x: Tokens, t: Times, generator: Generator = None, levels: str = "independent"
    ) -> Tokens:
        """Draw z_t ~ q_t(.|x), each group of fields by one call."""
        self.check_inputs(x=x, t=t)
        field = self.fields_of(x.shape)
        several = len(self._leaders) > 1
        options: dict[str, Any] = {} if levels == "independent" or several else {"levels": levels}
        own = self._by_group.evaluate("sample", field, x, t, generator, draws=True, **options)
        z = self._from_group(own, field)
        if levels != "independent":
            self.check_levels(levels)
        return z if levels == "independent" or not several else self._balance(x, z, t, generator)

    def _balance(self, x: Tokens, z: Tokens, t: Times, generator: Generator) -> Tokens:
        """Draw a position in proportion to its mean weight, and its state anew, as a sequence of
        this position alone draws it.
        """
        mean = self._weight_and_mean(x, z, t)[0]
        which = draw(mean, rand((len(x),), generator, x.device))[:, None]
        field = self.fields_of(x.shape).gather(1, which)
        x_there = x.gather(1, which)
        t_there = unsqueeze_times(t).expand(x.shape).gather(1, which)[:, 0]
        own = torch.zeros_like(x_there)
        for k, process in enumerate(self._leaders):
            place = Among(self._group_of_field[field] == k)
            drawn = process.sample(place.take(x_there), t_there, generator, "balanced")
            place.write(own, drawn)
        return z.scatter(1, which, self._from_group(own, field))

    def _weight_and_mean(
        self, x: Tokens, z: Tokens, t: Times
    ) -> tuple[Float64[Tensor, "B L"], Float64[Tensor, "B L"]]:
        return self._pair("_weight_and_mean", z, x, z, t)

    def sample_forward(self, z: Tokens, s: Times, t: Times, generator: Generator = None) -> Tokens:
        self.check_inputs(z=z, t=t, s=s)
        own = self._at("sample_forward", z, z, s, t, generator, draws=True)
        return self._from_group(own, self._field_of_state[z])

    def likelihood(self, z: Tokens, x: Tokens, t: Times) -> PerToken:
        return self._at("likelihood", z, z, x, t)

    def token_likelihood(self, z: Tokens, t: Times) -> TokenProbs:
        return self._of_tokens("token_likelihood", z, t)

    def token_evidence(self, z: Tokens, t: Times) -> TokenProbs:
        return self._of_tokens("token_evidence", z, t)

    def _of_tokens(self, name: str, z: Tokens, t: Times) -> TokenProbs:
        """Evaluate a function of states and times, and of every token; 0 beyond the alphabet."""
        width = self.vocab_size
        values = self._at(name, z, z, t, spread=lambda k, v: pad(v, (0, width - v.shape[-1])))
        return torch.where(self._no_token[self._field_of_state[z]], 0.0, values)

    # ---- backwards: posterior, reverse rates, prior

    def posterior(self, p: TokenProbs, z: Tokens, t: Times, s: Times) -> StateProbs:
        self.check_inputs(z=z, t=t, s=s, p=p)
        field = self._field_of_state[z]
        return self._of_fields("posterior", field, p, self._own(z), t, s, spread=self._spread)

    def reverse_rate(self, p: TokenProbs, z: Tokens, t: Times) -> StateProbs:
        self.check_inputs(z=z, t=t, p=p)
        field = self._field_of_state[z]
        return self._of_fields("reverse_rate", field, p, self._own(z), t, spread=self._spread)

    def prior(self) -> Tensor:
        """Distribution of z_1 at a uniformly drawn position, (S,) float64."""
        return self._typical(self._one())

    def _typical(self, t: Tensor) -> Tensor:
        fields = zip(self.component_shares, self.every, strict=True)
        return torch.cat([share * each._typical(t) for share, each in fields])

    @property
    def component_shares(self) -> Float64[Tensor, "N"]:
        counts = torch.bincount(self._fields.flatten(), minlength=len(self.processes))
        return counts.to(torch.float64) / counts.sum()

    def sample_prior(
        self,
        shape: Sequence[int],
        generator: Generator = None,
        device: torch.device | str | None = None,
    ) -> Tokens:
        field = self.fields_of(shape)
        own = torch.zeros(tuple(shape), dtype=torch.int64, device=device or self.device)
        for _, process, place in self._by_field.places(field, draws=True):
            part = place.take(field).shape
            place.write(own, process.sample_prior(part, generator, device))
        return own + self._starts[field]

    def prior_kl(self, x: Tokens, t: Times | None = None) -> PerToken:
        time = self._end_or(t, x)
        return self._of_fields("prior_kl", self.fields_of(x.shape), x, time)

    # ---- terms of the bound

    def integrand(self, logits: Logits, x: Tokens, z: Tokens, t: Times) -> PerToken:
        return self._at("integrand", z, logits, x, z, t)

    def weighted_divergence(
        self, logits: Logits, x: Tokens, z: Tokens, t: Times
    ) -> tuple[PerToken, PerToken]:
        return self._pair("weighted_divergence", z, logits, x, z, t)

    def integrand_parts(
        self, logits: Logits, x: Tokens, z: Tokens, t: Times
    ) -> tuple[PerToken, PerToken]:
        return self._pair("integrand_parts", z, logits, x, z, t)

    def hard_weighted_divergence(
        self, logits: Logits, x: Tokens, z: Tokens, t: Times
    ) -> tuple[PerToken, PerToken]:
        return self._pair("hard_weighted_divergence", z, logits, x, z, t)

    def edges_weighted_divergence(
        self,
        logits: Logits,
        x: Tokens,
        z: Tokens,
        t: Times,
        edge_weights: Sequence[float] | None = None,
    ) -> tuple[PerToken, PerToken]:
        return self._pair(
            "edges_weighted_divergence", z, logits, x, z, t, edge_weights=edge_weights
        )

    def loss_weight(self, x: Tokens, z: Tokens, t: Times) -> PerToken:
        return self._at("loss_weight", z, x, z, t)

    def step_divergence(self, logits: Logits, x: Tokens, z: Tokens, t: Times, s: Times) -> PerToken:
        return self._at("step_divergence", z, logits, x, z, t, s)

    # ---- times

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        return tuple(schedule for each in self.every for schedule in each.schedules)

    @property
    def breaks(self) -> list[float]:
        return sorted({end for each in self.every for end in each.breaks})

    @torch.no_grad()
    def time_moments(
        self, t: Times, divergences: Sequence[float] | None = None
    ) -> tuple[Float64[Tensor, "B"], Float64[Tensor, "B"]]:
        """Mean and mean square of the integrand at one position, whose mean and variance are the
        means of those of all positions, as the variance of a sequence is the sum over positions.
        """
        moments = [each.time_moments(t, divergences) for each in self.every]
        means, squares = (torch.stack(values) for values in zip(*moments, strict=True))
        mean = self.component_shares @ means
        return mean, self.component_shares @ (squares - means**2) + mean**2

    # ---- draws of samplers

    def sharpen(self, logits: Logits, z: Tokens, t: Times, sharpen: Sharpen) -> Logits:
        """Compute cavity logits after ``sharpen``, each group of fields by its own rule."""
        width = self.vocab_size
        own = self._at(
            "sharpen",
            z,
            logits,
            z,
            t,
            sharpen,
            spread=lambda k, v: pad(v, (0, width - v.shape[-1]), value=-torch.inf),
        )
        return self.restrict_logits(own, z)

    @property
    def num_uniforms(self) -> int:
        return max(each.num_uniforms for each in self.every)

    def sample_posterior(
        self,
        logits: Logits,
        z: Tokens,
        t: Times,
        s: Times,
        noise: Sequence[Tensor],
        *,
        force: bool = False,
        sharpen: Sharpen = identity,
    ) -> Tokens:
        """Compute z_s from the result of ``draw_uniforms``, each group of fields by one call."""
        own = self._at(
            "sample_posterior", z, logits, z, t, s, list(noise), force=force, sharpen=sharpen
        )
        return self._from_group(own, self._field_of_state[z])

    def exit_rate(
        self, z: Tokens, t: Times, logits: Logits | None = None, sharpen: Sharpen = identity
    ) -> Float64[Tensor, "B L"]:
        """Rate at which the reverse chain leaves each state; processes with levels take no
        logits.
        """
        return self._at("exit_rate", z, z, t, logits, sharpen)

    def sample_exit(
        self,
        logits: Logits,
        z: Tokens,
        t: Times,
        moves: Bool[Tensor, "B L"],
        generator: Generator = None,
        *,
        force: bool = False,
        sharpen: Sharpen = identity,
    ) -> Tokens:
        own = self._at(
            "sample_exit",
            z,
            logits,
            z,
            t,
            moves,
            generator,
            draws=True,
            force=force,
            sharpen=sharpen,
        )
        return self._from_group(own, self._field_of_state[z])

    def reachable_from_all_tokens(self, z: Tokens) -> Bool[Tensor, "B L"]:
        return self._at("reachable_from_all_tokens", z, z)

    def replaceable(self, z: Tokens) -> Bool[Tensor, "B L"]:
        return self._at("replaceable", z, z)

    def __new__(cls, processes: Mapping[str, ForwardProcess], fields: Fields | None = None) -> Self:
        """Return an instance of the subclass for processes of this kind, if there is one."""
        kinds = [kind for kind in cls.__subclasses__() if kind._takes(processes)]
        return object.__new__(kinds[0] if kinds else cls)

    @classmethod
    def _takes(cls, processes: object) -> bool:
        """Return whether ``Product(processes)`` is of this subclass."""
        return False

    def __getnewargs__(self) -> tuple[Mapping[str, ForwardProcess]]:
        """Arguments of ``__new__`` for copies, whose attributes are set afterwards."""
        return ({},)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        tree = Hierarchical(Tree([[0, 0, 1]], xi=0.8), Linear())
        return [cls({"tokens": each}) for each in (Masked(4, Linear()), Uniform(3, Linear()), tree)]

    def __repr__(self) -> str:
        fields = ", ".join(
            f"{name!r}: {each!r}" for name, each in zip(self.names, self.every, strict=True)
        )
        return f"Product({{{fields}}}, fields of shape {tuple(self._fields.shape)})"
