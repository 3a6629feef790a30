"""The class that every process is, in four parts: what it must answer, what follows, which times, what samplers ask."""

from ddlib.processes.broadcasting import (
    beside,
    columns_at,
    each_time,
    elapsed,
    interior,
    into,
    products_at,
    rows_at,
    scalar,
    span,
    taken,
    through,
)
from ddlib.processes.sampled import Sampled, unchanged
from ddlib.utils.renamed import Renamed

__all__ = [
    "ForwardProcess", "beside", "columns_at", "each_time", "elapsed", "interior", "into", "products_at", "reduction",
    "rows_at", "scalar", "span", "taken", "through", "unchanged",
]  # fmt: skip


class ForwardProcess(Sampled, own_times=True):
    r"""A continuous-time Markov chain :math:`q_t(z|x)` that noises each position on its own.

    Its methods are in four groups, one file each:

    - ``contract.py``: what a leaf must answer, ``marginal``, ``rate_matrix`` and ``transition``; and what the process
      is, such as ``vocab_size``, ``levels``, ``hierarchy`` and ``modes``.
    - ``follows.py``: what follows from these three for small state spaces: draws, likelihoods, the posterior, the
      reverse rates, the prior, the weight of the bound. Leaves with structure override what they can do without dense
      tensors, and offer ``weighted_divergence`` when the bound has a closed form.
    - ``timed.py``: which times are worth drawing, ``time_density``.
    - ``sampled.py``: what samplers ask, ``sample_level``, ``sample_given_level``, ``ascend`` and their like.

    Precision follows the arguments; functions of time alone are computed in float64.

    Args:
        vocab_size: number of words V; states 0..V-1 are the words.
        num_states: number of states S >= V.
    """

    land, jump, climb = Renamed("sample_given_level"), Renamed("sample_level"), Renamed("ascend")
    leaving, leave, advance = Renamed("exit_rate"), Renamed("sample_exit"), Renamed("sample_forward")
    descent, descends = Renamed("descendant_logits"), Renamed("subtree_logits_suffice")
    from_anywhere, word_likelihood = Renamed("reachable_from_all_tokens"), Renamed("token_likelihood")
    most_lift, draw_path = Renamed("max_remask_prob"), Renamed("sample_jump_times")
    cases, balance, reduced = Renamed("equivalence_classes"), Renamed("importance_weight"), Renamed("small_copy")


def reduction(process: ForwardProcess, vocab_size: int) -> ForwardProcess:
    """``process.small_copy(vocab_size)``, as plain values name it."""
    return process.small_copy(vocab_size)
