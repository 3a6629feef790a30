"""Product of processes: another alphabet, and other noise, at each position."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, cast

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import pad

from ddlib.config.part import record_maker
from ddlib.hierarchies import Tree
from ddlib.processes.base import ForwardProcess, identity
from ddlib.processes.broadcasting import quotient, unsqueeze_times
from ddlib.processes.hierarchical import Hierarchical
from ddlib.processes.level_process import LevelProcess
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
from ddlib.utils.validation import require


class Product(Fielded):
    r"""Sequence whose positions belong to fields, each with its own alphabet and its own noise.

    .. math:: q_t(z|x) = \prod_l q^{f(l)}_t(z_l | x_l)

    Columns of a table, nodes and edges of a graph, a sequence beside its structure. Posterior and
    reverse rates are those of each position's process, the bound is their sum over positions, and
    with the optimal network it is the joint entropy (theory section 23).

    ``x`` holds the ids of each position's own alphabet, 0..V_f - 1. ``z`` holds the states of its
    process plus an offset, so that no two fields share a state: a clean token is the state
    ``tokens_as_states(x)``. Logits are (B, L, V) with V the largest alphabet; entries beyond the
    alphabet of a position, any finite numbers or -inf, are ignored. ``num_states`` is the number of
    states of all fields together.

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
        result: Tensor = self._by_field.evaluate("marginal", field, x, t, spread=self._spread)
        return result

    def predictive(self, p: TokenProbs, t: Times) -> StateProbs:
        field = self.fields_of(p.shape[:2])
        result: Tensor = self._by_field.evaluate("predictive", field, p, t, spread=self._spread)
        return result

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
            own = place.put(own, drawn, field.shape)
        return z.scatter(1, which, self._from_group(own, field))

    def _weight_and_mean(
        self, x: Tokens, z: Tokens, t: Times
    ) -> tuple[Float64[Tensor, "B L"], Float64[Tensor, "B L"]]:
        result: tuple[Tensor, Tensor] = self._at("_weight_and_mean", z, x, z, t)
        return result

    def sample_forward(self, z: Tokens, s: Times, t: Times, generator: Generator = None) -> Tokens:
        self.check_forwards(z, s, t)
        own = self._at("sample_forward", z, z, s, t, generator, draws=True)
        return self._from_group(own, self._field_of_state[z])

    def likelihood(self, z: Tokens, x: Tokens, t: Times) -> PerToken:
        result: Tensor = self._at("likelihood", z, z, x, t)
        return result

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
        result: Tensor = self._by_field.evaluate(
            "posterior", field, p, self._own(z), t, s, spread=self._spread
        )
        return result

    def reverse_rate(self, p: TokenProbs, z: Tokens, t: Times) -> StateProbs:
        self.check_inputs(z=z, t=t, p=p)
        field = self._field_of_state[z]
        result: Tensor = self._by_field.evaluate(
            "reverse_rate", field, p, self._own(z), t, spread=self._spread
        )
        return result

    def prior(self) -> Tensor:
        """Distribution of z_1 at a uniformly drawn position, (S,) float64."""
        return self._typical(self._one())

    def _typical(self, t: Tensor) -> Tensor:
        fields = zip(self._shares(), self.every, strict=True)
        return torch.cat([share * each._typical(t) for share, each in fields])

    def _shares(self) -> Float64[Tensor, "N"]:
        """Share of the positions of each field."""
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
            own = place.put(own, process.sample_prior(part, generator, device), shape)
        return own + self._starts[field]

    def prior_kl(self, x: Tokens, t: Times | None = None) -> PerToken:
        time = self._one().expand(len(x)) if t is None else t
        result: Tensor = self._by_field.evaluate("prior_kl", self.fields_of(x.shape), x, time)
        return result

    # ---- terms of the bound

    def integrand(self, logits: Logits, x: Tokens, z: Tokens, t: Times) -> PerToken:
        result: Tensor = self._at("integrand", z, logits, x, z, t)
        return result

    def weighted_divergence(
        self, logits: Logits, x: Tokens, z: Tokens, t: Times
    ) -> tuple[PerToken, PerToken]:
        result: tuple[Tensor, Tensor] = self._at("weighted_divergence", z, logits, x, z, t)
        return result

    def integrand_parts(
        self, logits: Logits, x: Tokens, z: Tokens, t: Times
    ) -> tuple[PerToken, PerToken]:
        result: tuple[Tensor, Tensor] = self._at("integrand_parts", z, logits, x, z, t)
        return result

    def hard_weighted_divergence(
        self, logits: Logits, x: Tokens, z: Tokens, t: Times
    ) -> tuple[PerToken, PerToken]:
        result: tuple[Tensor, Tensor] = self._at("hard_weighted_divergence", z, logits, x, z, t)
        return result

    def edges_weighted_divergence(
        self,
        logits: Logits,
        x: Tokens,
        z: Tokens,
        t: Times,
        edge_weights: Sequence[float] | None = None,
    ) -> tuple[PerToken, PerToken]:
        depths = {len(each.levels) for each in self.every}
        require(
            edge_weights is None or len(depths) == 1,
            f"mode is {edge_weights!r}, must be 'edges': the fields of {self!r} have other numbers "
            "of edges",
        )
        result: tuple[Tensor, Tensor] = self._at(
            "edges_weighted_divergence", z, logits, x, z, t, edge_weights=edge_weights
        )
        return result

    def loss_weight(self, x: Tokens, z: Tokens, t: Times) -> PerToken:
        result: Tensor = self._at("loss_weight", z, x, z, t)
        return result

    def step_divergence(self, logits: Logits, x: Tokens, z: Tokens, t: Times, s: Times) -> PerToken:
        result: Tensor = self._at("step_divergence", z, logits, x, z, t, s)
        return result

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
        mean = self._shares() @ means
        return mean, self._shares() @ (squares - means**2) + mean**2

    # ---- draws of samplers

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
        result: Tensor = self._at("exit_rate", z, z, t, logits, sharpen)
        return result

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
        result: Tensor = self._at("reachable_from_all_tokens", z, z)
        return result

    def replaceable(self, z: Tokens) -> Bool[Tensor, "B L"]:
        result: Tensor = self._at("replaceable", z, z)
        return result

    def __new__(cls, processes: Mapping[str, ForwardProcess], fields: Fields | None = None) -> Self:
        """Return a ``LevelProduct`` where every field has levels."""
        kind: type[Product] = cls
        if cls is Product and isinstance(processes, Mapping) and _have_levels(processes):
            kind = LevelProduct
        return object.__new__(kind)  # type: ignore[return-value] # a subclass

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


class LevelProduct(Product, LevelProcess):
    """Product of processes with levels: positions jump at times that depend on no network.

    ``Product`` returns it, with the same arguments. Numbers of levels may differ: a field of fewer
    has its mask in a lower one.
    """

    def __init__(
        self, processes: Mapping[str, ForwardProcess], fields: Fields | None = None
    ) -> None:
        super().__init__(processes, fields)
        record_maker(self, Product)
        tops = [len(each.levels) - 1 for each in self.every]
        self._tops = torch.tensor(tops, device=self.device)

    @property
    def _chains(self) -> list[LevelProcess]:
        return [cast(LevelProcess, each) for each in self.every]

    def occupancies(self, t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n levels"]:
        """Share of the positions in each level, (..., levels), at times of any shape."""
        return self._mean([each.occupancies(t) for each in self._chains])

    def weights(self, t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n levels"]:
        """Mean loss weight of the positions in each level, (..., levels)."""
        fluxes = self._mean([each.occupancies(t) * each.weights(t) for each in self._chains])
        return quotient(fluxes, self.occupancies(t))

    def _mean(self, values: Sequence[Tensor]) -> Tensor:
        """Mean over positions of values (..., levels) of each field."""
        width = len(self.levels)
        fields = zip(self._shares(), values, strict=True)
        means = [share * pad(value, (0, width - value.shape[-1])) for share, value in fields]
        return torch.stack(means).sum(0)

    def expected_level(self, t: Float64[Tensor, "n"]) -> Float64[Tensor, "n"]:
        return self._shares() @ torch.stack([each.expected_level(t) for each in self._chains])

    def level_transition(self, s: Times, t: Times) -> Float64[Tensor, "*n levels levels"]:
        """Transition matrices of the levels of each position, (B, L, n + 1, n + 1); of a single
        group those of the sequence, (B, n + 1, n + 1).
        """
        width = len(self.levels)
        identity_matrix = torch.eye(width, dtype=torch.float64, device=self.device)

        def widen(matrix: Tensor) -> Tensor:
            size = matrix.shape[-1]
            result = identity_matrix.expand(*matrix.shape[:-2], width, width).clone()
            result[..., :size, :size] = matrix
            return result

        return self._at_positions(lambda each: widen(each.level_transition(s, t)), t)

    def max_remask_prob(self, t: Times, s: Times) -> Float64[Tensor, "*n levels"]:
        """Largest ``lift`` of each edge of each position, (B, L, n); of a single group (B, n)."""
        width = len(self.levels) - 1

        def widen(probs: Tensor) -> Tensor:
            return pad(probs, (0, width - probs.shape[-1]))

        return self._at_positions(lambda each: widen(each.max_remask_prob(t, s)), t)

    def _at_positions(self, function: Callable[[LevelProcess], Tensor], t: Times) -> Tensor:
        """Return a function of the times of a group for each position."""
        values = [function(cast(LevelProcess, each)) for each in self._leaders]
        if len(values) == 1:
            return values[0]
        rows = len(t)
        field = self.fields_of((rows, self._fields.shape[-1]))
        group = self._group_of_field[field]
        row = torch.arange(rows, device=t.device)[:, None]
        index = (group, row) if t.ndim == 1 else (group, row, torch.arange(t.shape[1])[None])
        return torch.stack(values)[index]

    def sample_level(
        self, z: Tokens, t: Times, s: Times, generator: Generator = None, lift: Tensor | None = None
    ) -> Tokens:
        own = self._state_in_group[z]
        result = torch.zeros_like(z)
        for _, each, at in self._by_group.places(self._field_of_state[z], draws=True):
            chance = None if lift is None else at.take(lift)[..., : len(each.levels) - 1]
            times = at.take(t), at.take(s)
            result = at.put(
                result, each.sample_level(at.take(own), *times, generator, chance), z.shape
            )
        return result

    def ascend(self, z: Tokens, level: Tokens, generator: Generator = None) -> Tokens:
        """Draw the ancestors of ``z``; those above the mask of a field are the mask."""
        field = self._field_of_state[z]
        below = level.minimum(self._tops[field])
        return self._from_group(self._at("ascend", z, z, below, generator, draws=True), field)

    def descend(
        self,
        logits: Float[Tensor, "*n V"],
        z: Int64[Tensor, "*n"],
        target: Int64[Tensor, "*n"],
        u: Float64[Tensor, "*n"],
        *,
        force: bool = False,
        sharpen: Sharpen = identity,
    ) -> Int64[Tensor, "*n"]:
        own = self._at("descend", z, logits, z, target, u, force=force, sharpen=sharpen)
        return self._from_group(own, self._field_of_state[z])

    def sample_jump_times(
        self, shape: Sequence[int], generator: Generator, device: torch.device
    ) -> tuple[Float64[Tensor, "B L n"], Tokens]:
        field = self.fields_of(shape)
        top = len(self.levels) - 1
        entries = torch.full((*shape, top), 2.0, dtype=torch.float64, device=device)
        own = torch.zeros(tuple(shape), dtype=torch.int64, device=device)
        for _, each, at in self._by_field.places(field, draws=True):
            times, states = each.sample_jump_times(at.take(field).shape, generator, device)
            never = pad(times, (0, top - times.shape[-1]), value=2.0)
            entries = at.put(entries, never, shape)
            own = at.put(own, states, shape)
        return entries, own + self._starts[field]

    def subtree_logits_suffice(self, level: int, target: int, force: bool = False) -> bool:
        deep = [each for each in self._chains if level < len(each.levels)]
        return all(each.subtree_logits_suffice(level, target, force) for each in deep)


def _have_levels(processes: Mapping[str, object]) -> bool:
    return bool(processes) and all(isinstance(each, LevelProcess) for each in processes.values())
