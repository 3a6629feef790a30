"""Transition matrix between two levels: one parent per child plus a rank-one background."""

from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Real
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ddlib.hierarchies.kernels import Kernel, information
from ddlib.utils.validation import check_count, check_shape, due, require, visible


class Map(Kernel):
    r"""A row-stochastic matrix :math:`K = k\,\mathrm{onehot}(parents) + 1 s^T`, never materialised
    in the hot path.

    ``k`` is ``keep`` and ``s`` is ``spread``, so that ``keep + sum(spread) = 1``. Products of such
    matrices have the same form, so several levels cost no more than one. With ``spread=None`` the
    map is plain: every child has one parent.

    Args:
        parents: (children,) int64, the parent of each child, surjective onto ``0..num_parents-1``.
        num_parents: number of parents.
        keep: weight of the one-hot part; may be negative when the right parent is less likely than
            the others.
        spread: (num_parents,) probability mass that every child gives to each parent, all positive,
            or None.

    Raises:
        ValueError: parents outside [0, num_parents).
    """

    spread: Tensor | None

    def __init__(
        self,
        parents: Int64[Tensor, "children"],
        num_parents: int,
        keep: float = 1.0,
        spread: Float64[Tensor, "num_parents"] | None = None,
    ) -> None:
        super().__init__()
        check_shape("parents", parents, (None,), "(children,)")
        if due(parents):
            low, high = (int(v) for v in torch.aminmax(parents))
            require(
                low >= 0 and high < num_parents,
                f"parents holds {low if low < 0 else high}, must be in [0, {num_parents})",
            )
        self.num_parents = num_parents
        self.keep = keep
        self.parents = parents.clone()  # a later change of the argument must not change the map
        self.spread = None if spread is None else spread.clone()

        self.num_children = len(parents)

    @property
    def plain(self) -> bool:
        return self.spread is None

    @property
    def one_pass(self) -> bool:
        return True

    @property
    def parents_of_all(self) -> Bool[Tensor, "parents"]:
        every = self.spread is not None or self.num_parents == 1
        return torch.full((self.num_parents,), every, device=self.parents.device)

    @property
    def xi(self) -> str:
        """Probability of the right parent, formatted for printing.

        A range if it differs between children.
        """
        if self.spread is None:
            return "1"
        if self.spread.is_meta:
            return "meta"
        right = self.keep + self.spread
        low = float(right.min())
        high = float(right.max())
        return f"{low:.4g}" if high - low < 1e-9 else f"{low:.3g} to {high:.3g}"

    def entry(
        self, child: Int64[Tensor, "*n"], parent: Int64[Tensor, "*n"]
    ) -> Float64[Tensor, "*n"]:
        """Return K(parent | child), elementwise."""
        hit = (self.parents[child] == parent).to(torch.float64)
        return hit if self.spread is None else self.keep * hit + self.spread[parent]

    def column(self, parent: Int64[Tensor, "*n"]) -> Float64[Tensor, "*n children"]:
        """Return K(parent | child) for every child."""
        hit = (self.parents == parent[..., None]).to(torch.float64)
        return hit if self.spread is None else self.keep * hit + self.spread[parent][..., None]

    def row(self, child: Int64[Tensor, "*n"]) -> Float64[Tensor, "*n parents"]:
        """Return K(parent | child) for every parent."""
        every_parent = torch.arange(self.num_parents, device=self.parents.device)
        hit = (self.parents[child][..., None] == every_parent).to(torch.float64)
        return hit if self.spread is None else self.keep * hit + self.spread

    def push(self, probs: Float[Tensor, "*n children"]) -> Float[Tensor, "*n parents"]:
        """Return the distribution of the parent if the child has the (normalised) distribution
        ``probs``.
        """
        index = self.parents.expand_as(probs)
        mass = probs.new_zeros(*probs.shape[:-1], self.num_parents).scatter_add(-1, index, probs)
        if self.spread is None:
            return mass
        spread = self.spread.to(probs.dtype)
        # not keep * mass + spread: keep may be negative, and a sum of nonnegative terms does not
        # cancel
        return (self.keep + spread) * mass + spread * (1 - mass).clamp_min(0)

    def log_push(self, log_probs: Float[Tensor, "*n children"]) -> Float[Tensor, "*n parents"]:
        """Compute ``push`` in the log domain: finite wherever the mass is positive, however
        small.
        """
        if self.num_parents == 1:
            return torch.zeros_like(log_probs[..., :1])  # the only parent has probability 1
        if self.spread is None:
            return _segment_logsumexp(log_probs, self.parents, self.num_parents)
        return self.push(log_probs.exp()).log()  # positive, because of the spread

    def log_mass(
        self, log_probs: Float[Tensor, "*n children"], parent: Int64[Tensor, "*n"]
    ) -> Float[Tensor, "*n"]:
        return self.log_push(log_probs).gather(-1, parent[..., None]).squeeze(-1)

    def log_shares(self, logits: Float[Tensor, "*n children"]) -> Float[Tensor, "*n children"]:
        """Log-softmax among the children of each parent; -inf where all of them have -inf.

        The spread is ignored.
        """
        total = _segment_logsumexp(logits, self.parents, self.num_parents).index_select(
            -1, self.parents
        )
        return torch.where(total > -torch.inf, logits - total, -torch.inf)

    def sample(self, child: Int64[Tensor, "*n"], u: Float64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
        """Draw a parent for each child from the uniforms ``u`` in [0, 1), by inversion."""
        right = self.parents[child]
        if self.spread is None:
            return right
        cumulative = self.spread.cumsum(0)
        width = self.spread[right]
        stay = self.keep + width
        target = (u - stay) / (1 - stay) * (cumulative[-1] - width)
        # skip the right parent's slice
        target = torch.where(target < cumulative[right] - width, target, target + width)
        stray = torch.searchsorted(cumulative, target.clamp(min=0).contiguous(), right=True)
        return torch.where(u < stay, right, stray.clamp_max(self.num_parents - 1))

    def after(self, matrix: Float64[Tensor, "below children"]) -> Kernel:
        if self.num_parents == 1:
            return Map(torch.zeros(len(matrix), dtype=torch.int64, device=matrix.device), 1)
        return super().after(matrix)

    def compose(self, upper: Kernel) -> Kernel:
        """Return the product of this map and ``upper``, the kernel of the next edge.

        The product of two maps is a map.
        """
        if not isinstance(upper, Map):
            return upper.after(self.matrix())
        spread = None
        if self.spread is not None or upper.spread is not None:
            spread = torch.zeros(upper.num_parents, dtype=torch.float64, device=self.parents.device)
            if self.spread is not None:
                spread = spread.index_add(0, upper.parents, upper.keep * self.spread)
            if upper.spread is not None:
                spread = spread + upper.spread
        return Map(upper.parents[self.parents], upper.num_parents, self.keep * upper.keep, spread)

    def restrict(
        self, children: Int64[Tensor, "kept"], parents: Int64[Tensor, "kept_parents"]
    ) -> "Map":
        """Return the map between subsets of children and parents.

        A uniform spread is redistributed over the remaining parents, so that the right parent keeps
        its probability.

        Args:
            children: children to keep.
            parents: parents to keep, sorted; at least the parents of these children.
        """
        index = torch.searchsorted(parents, self.parents[children])
        if self.spread is None:
            return Map(index, len(parents))
        mass = self.spread[parents]
        if self.keep == 0:  # every row is the spread
            return Map(
                torch.arange(len(children), device=mass.device) % len(parents),
                len(parents),
                0.0,
                mass / mass.sum(),
            )
        right = self.keep + float(mass[0])
        even = bool((self.spread == self.spread[0]).all())
        if even:
            stray = (1 - right) / (len(parents) - 1)
            return Map(index, len(parents), right - stray, torch.full_like(mass, stray))
        return Map(index, len(parents), self.keep, mass / mass.sum() * (1 - self.keep))


def parent_map(parents: Any, xi: float = 1.0, *, name: str = "parents") -> Map:
    """Build the map of an edge: the right parent with probability ``xi``, every other one with
    (1-xi)/(N-1).

    Args:
        parents: (children,) integers, 0-based cluster indices; every cluster up to the largest has
            a child.
        xi: in (0, 1]; 1 is a plain hierarchy.
        name: name of ``parents`` in error messages.

    Raises:
        TypeError: parents not integers.
        ValueError: parents empty, negative, not surjective, or not fewer than the children; xi
            outside (0, 1], or below 1 with a single cluster.
    """
    try:
        vector = torch.as_tensor(parents)
    except ValueError as error:
        raise ValueError(f"{name} must be one cluster index per child: {error}") from None
    except (TypeError, RuntimeError) as error:
        raise TypeError(
            f"{name} must be integers, the cluster index of every child: {error}"
        ) from None
    if vector.dtype == torch.bool or vector.is_floating_point() or vector.is_complex():
        raise TypeError(
            f"{name} has dtype {vector.dtype}, must be integers: the cluster index of every child"
        )
    vector = vector.detach().clone().to(torch.int64)
    nested = f"; did you mean {name}[0]?" if vector.ndim > 1 and len(vector) == 1 else ""
    require(
        vector.ndim == 1 and vector.numel() > 0,
        f"{name} has shape {tuple(vector.shape)}, must be (children,)" + nested,
    )
    low = int(vector.min())
    num_parents = int(vector.max()) + 1
    require(low >= 0, f"{name} holds {low}, cluster indices must be >= 0")
    require(
        num_parents < len(vector) or len(vector) == 1,
        f"{name} maps {len(vector)} children to {num_parents} clusters, must have fewer clusters "
        "than children",
    )
    sizes = torch.bincount(vector, minlength=num_parents)
    empty = (sizes == 0).nonzero().flatten().tolist()
    require(
        not empty,
        f"{name} is not surjective: cluster {empty[:5]} has no child, every cluster must have one",
    )
    if isinstance(xi, bool) or not isinstance(xi, Real):
        raise TypeError(f"xi of {name} is {xi!r}, must be a number in (0, 1]")
    require(0 < xi <= 1, f"xi of {name} is {xi}, must be in (0, 1]")
    if xi == 1:
        return Map(vector, num_parents)
    require(
        num_parents > 1,
        f"xi of {name} is {xi} with a single cluster, must be 1: a wrong cluster does not exist",
    )
    stray = (1 - xi) / (num_parents - 1)
    return Map(
        vector, num_parents, xi - stray, torch.full((num_parents,), stray, dtype=torch.float64)
    )


def parent_vectors(parents: Any) -> dict[str, Any]:
    """Return the vector of each edge, lowest first, keyed by its name in error messages.

    A vector that is not in a list is taken as the only one.

    Raises:
        TypeError: a number, a mapping, a set or a string, or a list of strings.
    """
    if (
        _number(parents)
        or isinstance(parents, Mapping | Set | str | bytes)
        or not isinstance(parents, Iterable)
    ):
        raise TypeError(
            f"parents is a {type(parents).__name__}, must be a list of one vector per edge, or a "
            "single vector: the "
            "cluster index of every child, in the order of the children"
        )
    if getattr(parents, "ndim", None) == 1:
        return {"parents": parents}
    vectors = list(parents)
    for i, vector in enumerate(vectors):
        if isinstance(vector, str | bytes):
            raise TypeError(
                f"parents[{i}] is {vector!r}, must be an integer, the cluster index of a child"
            )
    if vectors and all(map(_number, vectors)):
        return {"parents": vectors}
    return {f"parents[{i}]": vector for i, vector in enumerate(vectors)}


def _number(value: Any) -> bool:
    return isinstance(value, Real) or getattr(value, "ndim", None) == 0


def _segment_logsumexp(
    values: Float[Tensor, "*n children"], segment: Int64[Tensor, "children"], count: int
) -> Float[Tensor, "*n parents"]:
    index = segment.expand_as(values)
    shape = (*values.shape[:-1], count)
    zeros = values.new_zeros(shape)
    # on an accelerator the check would wait for the device
    if values.device.type == "cpu" and visible(values) and values.numel():
        highest = values.detach().amax(-1, keepdim=True)
        total = zeros.scatter_add(-1, index, (values - highest).exp())
        # 1 / total times a weight of the bound, up to 1e17 near t = 0 or 1, must not overflow
        if (
            bool(highest.isfinite().all())
            and float(total.detach().min()) > torch.finfo(values.dtype).tiny ** 0.5
        ):
            return total.log() + highest
    with torch.no_grad():
        peak = values.new_full(shape, -torch.inf).scatter_reduce(-1, index, values, "amax")
        peak = torch.where(peak.isfinite(), peak, 0.0)
    total = zeros.scatter_add(-1, index, (values - peak[..., segment]).exp())
    # a cluster without mass has log-mass -inf and gradient 0 instead of NaN
    return torch.where(
        total > 0, total.clamp_min(torch.finfo(values.dtype).tiny).log() + peak, -torch.inf
    )


def to_masks(children: int, masks: int = 1) -> Map:
    """Build the map of the last edge: to the mask, or to one of several masks that is drawn
    uniformly.

    Args:
        children: number of states of the level below.
        masks: number of masks K, at least 1; which of them is drawn says nothing about the token.

    Raises:
        TypeError, ValueError: masks no integer of at least 1.
    """
    check_count("masks", masks)
    if masks == 1:
        return Map(torch.zeros(children, dtype=torch.int64), 1)
    spread = torch.full((masks,), 1 / masks, dtype=torch.float64)
    return Map(torch.arange(children) % masks, masks, 0.0, spread)


def chain(maps: Sequence[Kernel]) -> Kernel:
    """Return the product of the kernels of adjacent edges, lowest first."""
    product = maps[0]
    for upper in maps[1:]:
        product = product.compose(upper)
    return product


def check_top(route: Kernel) -> None:
    """Raise ValueError unless the states of the last level say nothing about the token."""
    if (
        route.num_parents == 1
        or route.parents.is_meta
        or (isinstance(route, Map) and route.keep == 0)
    ):
        return
    nats = information(route, torch.arange(route.num_children, device=route.device))
    require(
        nats < 1e-12,
        f"maps[-1] leads to {route.num_parents} states with {nats:.3g} nats of information about "
        "the token, must "
        "lead to the mask",
    )
