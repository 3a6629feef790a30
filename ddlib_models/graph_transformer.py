"""Transformer of graphs: features of nodes and of pairs, equivariant under permutations."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ddlib_models.dit.adaptive_norm import LayerNorm, modulate
from ddlib_models.dit.layers import GELU, Modulation, TimeEmbedding
from ddlib_models.io.pretrained import Pretrained
from ddlib_models.validation import check_least


class Slots:
    """Places of the nodes and pairs of graphs of at most M nodes, whose first n are present.

    Args:
        size: (B,) number n of nodes of each graph.
        slots: M.
    """

    def __init__(self, size: Int[Tensor, " B"], slots: int) -> None:
        first, second = torch.triu_indices(slots, slots, 1, device=size.device)
        self.first = first
        self.second = second
        pairs = len(first)
        # pairs are one behind the last one on the diagonal
        self.pair = torch.full((slots, slots), pairs, device=size.device)
        number = torch.arange(pairs, device=size.device)
        self.pair[first, second] = number
        self.pair[second, first] = number
        self.size = size
        self.nodes = torch.arange(slots, device=size.device) < size[:, None]
        self.pairs = self.nodes[:, first] & self.nodes[:, second]

    def matrix(self, pairs: Float[Tensor, "B P E"]) -> Float[Tensor, "B M M E"]:
        """Return the symmetric matrices of values of pairs: 0 on the diagonal and where a node is
        absent.
        """
        present = torch.where(self.pairs[..., None], pairs, 0.0)
        return F.pad(present, (0, 0, 0, 1))[:, self.pair]


class GraphBlock(nn.Module):
    r"""Updates of nodes and of pairs, gated by the time; the gates start at zero.

    A node attends to all nodes, by scores with a term of the pair, and takes values of nodes and of
    pairs. A pair takes the sum and the product of vectors of its nodes, and walks of length two
    over the values :math:`F, G` of all pairs,

    .. math:: (F G + G F)_{ij} / \sqrt{n},

    by which a network of several blocks counts cycles (Maron et al. 2019, arXiv 1905.11136).

    Args:
        dim: width D of a node.
        pair_dim: width E of a pair.
        heads: number of attention heads.
        cond_dim: width of the condition.
    """

    def __init__(self, dim: int, pair_dim: int, heads: int, cond_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.node_modulation = Modulation(dim, 6, cond_dim)
        self.pair_modulation = Modulation(pair_dim, 6, cond_dim)
        self.node_norms = nn.ModuleList(LayerNorm(dim) for _ in range(2))
        self.pair_norms = nn.ModuleList(LayerNorm(pair_dim) for _ in range(2))
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.scores = nn.Linear(pair_dim, heads)
        self.messages = nn.Linear(dim + heads * pair_dim, dim)
        self.ends = nn.Linear(dim, 2 * pair_dim)
        self.walks = nn.Linear(pair_dim, 2 * pair_dim)
        self.update = nn.Linear(3 * pair_dim, pair_dim)
        self.node_mlp = nn.Sequential(nn.Linear(dim, 4 * dim), GELU(), nn.Linear(4 * dim, dim))
        self.pair_mlp = nn.Sequential(
            nn.Linear(pair_dim, 4 * pair_dim), GELU(), nn.Linear(4 * pair_dim, pair_dim)
        )

    def forward(
        self,
        nodes: Float[Tensor, "B M D"],
        pairs: Float[Tensor, "B P E"],
        node_condition: Float[Tensor, "*batch C"],
        pair_condition: Float[Tensor, "*batch C"],
        slots: Slots,
    ) -> tuple[Float[Tensor, "B M D"], Float[Tensor, "B P E"]]:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.node_modulation(node_condition)
        x = modulate(self.node_norms[0](nodes), shift1, scale1)
        shift3, scale3, gate3, shift4, scale4, gate4 = self.pair_modulation(pair_condition)
        e = modulate(self.pair_norms[0](pairs), shift3, scale3)
        nodes = nodes + gate1 * self._attend(x, slots.matrix(e), slots)
        pairs = pairs + gate3 * self._of_pairs(x, e, slots)
        nodes = nodes + gate2 * self.node_mlp(modulate(self.node_norms[1](nodes), shift2, scale2))
        pairs = pairs + gate4 * self.pair_mlp(modulate(self.pair_norms[1](pairs), shift4, scale4))
        return nodes, pairs

    def _attend(
        self, x: Float[Tensor, "B M D"], matrix: Float[Tensor, "B M M E"], slots: Slots
    ) -> Float[Tensor, "B M D"]:
        q, k, v = rearrange(self.qkv(x), "b m (three h k) -> three b h m k", three=3, h=self.heads)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        scores = scores + rearrange(self.scores(matrix), "b i j h -> b h i j")
        attention = scores.masked_fill(~slots.nodes[:, None, None], -torch.inf).softmax(-1)
        of_nodes = rearrange(attention @ v, "b h m k -> b m (h k)")
        of_pairs = torch.einsum("bhij,bije->bihe", attention, matrix).flatten(2)
        return self.messages(torch.cat([of_nodes, of_pairs], -1))

    def _of_pairs(
        self, x: Float[Tensor, "B M D"], e: Float[Tensor, "B P E"], slots: Slots
    ) -> Float[Tensor, "B P E"]:
        to_add, to_multiply = self.ends(x).chunk(2, -1)
        total = to_add[:, slots.first] + to_add[:, slots.second]
        product = to_multiply[:, slots.first] * to_multiply[:, slots.second]
        left, right = slots.matrix(self.walks(e)).chunk(2, -1)
        walks = torch.einsum("bike,bkje->bije", left, right)
        there, back = walks[:, slots.first, slots.second], walks[:, slots.second, slots.first]
        scale = slots.size.to(e.dtype).rsqrt()[:, None, None]
        return self.update(torch.cat([total, product, (there + back) * scale], -1))


class GraphTransformer(Pretrained, nn.Module):
    """Transformer of graphs whose nodes and pairs of nodes have types (DiGress, Vignac et al. 2023,
    arXiv 2209.14734), for a ``ddlib.processes.Product`` of three fields.

    A graph of n <= M nodes is the number n, then M nodes, then the pairs i < j in the order (0, 1),
    (0, 2), ..., (M - 2, M - 1): 1 + M (M + 1) / 2 positions. The first n nodes are present. The id
    of the number is n - 1. Absent nodes, and pairs of them, have id 0 with probability 1 under the
    network: they add nothing to a bound. The number itself must be given (``given=``, ``prompt=``):
    its logits are zeros. A pair without an edge has a type too.

    A permutation of the nodes permutes the logits, and the number of slots M changes none of them.

    Example:
        >>> fields = [(4, 3), (3, 2), (2, 2)]  # at most 3 nodes, masked types, uniform edges
        >>> model = GraphTransformer(fields, dim=16, pair_dim=8, depth=1, heads=2)
        >>> model(torch.tensor([[1, 6, 5, 4, 8, 7, 7]]), torch.rand(1)).shape
        torch.Size([1, 7, 3])

    Args:
        fields: (number of states, number of tokens) of the number of nodes, of nodes and of pairs:
            ``product.sizes``.
        dim: width of a node; a multiple of ``heads``.
        pair_dim: width of a pair.
        depth: number of blocks.
        heads: number of attention heads.
        cond_dim: width of the condition of time and number of nodes.
        time_conditioned: if False, ``t`` is ignored.

    Raises:
        ValueError: another number of fields, a field that is not two numbers, at least as many
            states as tokens; a width or a number below 1; ``dim`` not a multiple of ``heads``.
    """

    own_times = True  # ddlib.typing.OwnTimes

    def __init__(
        self,
        fields: Sequence[Sequence[int]],
        dim: int,
        pair_dim: int,
        depth: int,
        heads: int,
        cond_dim: int = 128,
        time_conditioned: bool = True,
    ) -> None:
        super().__init__()
        sizes = [tuple(field) for field in fields]
        if len(sizes) != 3 or any(len(s) != 2 or not 1 <= s[1] <= s[0] for s in sizes):
            raise ValueError(
                f"fields is {fields!r}: must be the numbers of states and of tokens of the number "
                "of nodes, of nodes and of pairs, at least as many states as tokens"
            )
        widths = {"dim": dim, "pair_dim": pair_dim, "depth": depth, "heads": heads}
        check_least(1, **widths, cond_dim=cond_dim)
        if dim % heads:
            raise ValueError(f"dim={dim}, heads={heads}: dim must be a multiple of heads")
        (states_of_size, self.slots), (node_states, node_types), (pair_states, pair_types) = sizes
        self.num_states = states_of_size + node_states + pair_states
        self.vocab_size = max(self.slots, node_types, pair_types)
        self._starts = (states_of_size, states_of_size + node_states)
        self.nodes = nn.Embedding(node_states, dim)
        self.pairs = nn.Embedding(pair_states, pair_dim)
        self.time = TimeEmbedding(cond_dim) if time_conditioned else None
        self.size = nn.Linear(1, cond_dim)
        self.blocks = nn.ModuleList(
            GraphBlock(dim, pair_dim, heads, cond_dim) for _ in range(depth)
        )
        self.node_norm = LayerNorm(dim)
        self.pair_norm = LayerNorm(pair_dim)
        self.node_head = nn.Linear(dim, node_types)
        self.pair_head = nn.Linear(pair_dim, pair_types)
        for head in (self.node_head, self.pair_head):
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)

    def forward(self, z: Int[Tensor, "B L"], t: Float[Tensor, "*batch"]) -> Float[Tensor, "B L V"]:
        """Compute logits over the tokens of each position's field.

        Args:
            z: states of the product.
            t: times, (B,), or (B, L), one for each position.

        Raises:
            ValueError: another length than that of graphs of M slots.
        """
        count = self.slots
        length = 1 + count * (count + 1) // 2
        if z.shape[1] != length:
            raise ValueError(
                f"z has {z.shape[1]} positions: must have {length}, the number of nodes, "
                f"{count} nodes and their pairs"
            )
        # a number that is not given may be in a state of noise: all nodes are then present
        slots = Slots((z[:, 0] + 1).clamp(max=count), count)
        nodes = self.nodes(z[:, 1 : count + 1] - self._starts[0])
        pairs = self.pairs(z[:, count + 1 :] - self._starts[1])
        size = self.size(slots.size.to(nodes.dtype).log()[:, None])
        of_nodes = of_pairs = F.silu(size)
        if self.time is not None and t.ndim == 1:
            of_nodes = of_pairs = self.time(t, size)
        elif self.time is not None:
            of_nodes, of_pairs = self.time(t, size[:, None])[:, 1:].split(
                [count, length - count - 1], 1
            )
        for block in self.blocks:
            nodes, pairs = block(nodes, pairs, of_nodes, of_pairs, slots)
        node_logits = _fix_absent(self.node_head(self.node_norm(nodes)), ~slots.nodes)
        pair_logits = _fix_absent(self.pair_head(self.pair_norm(pairs)), ~slots.pairs)
        logits = [node_logits.new_zeros(len(z), 1, self.vocab_size)]
        for each in (node_logits, pair_logits):
            logits.append(F.pad(each, (0, self.vocab_size - each.shape[-1])))
        return torch.cat(logits, 1)


def _fix_absent(logits: Float[Tensor, "B n V"], absent: Bool[Tensor, "B n"]) -> Tensor:
    """Return the logits, with probability 1 of id 0 at absent nodes and pairs."""
    other = torch.arange(logits.shape[-1], device=logits.device) > 0
    fixed = torch.where(other, -torch.inf, 0.0).to(logits.dtype)
    return torch.where(absent[..., None], fixed, logits)
