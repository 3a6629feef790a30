"""Editing in place: tokens that were drawn are replaced, as LLaDA2.1 decodes."""

import pytest
import torch
from cases import examples
from refusals import refuses
from zoo.calls import generate
from zoo.networks import KINDS, Halves
from zoo.processes import LEVELS

import ddlib as dd
from ddlib.paces import Blocks
from ddlib.processes import Masked
from ddlib.samplers import Confidence
from ddlib.schedules import Linear

V = 5
L = 8
MASK = V
PROCESS = Masked(V, Linear())
X = torch.zeros(1, L, dtype=torch.int64)


class Pairs:
    """A network whose logits are a sum over all states, the one at the position itself too.

    It records its inputs.

    With a large ``own`` it mostly repeats the tokens that it sees.
    """

    def __init__(self, seed=0, scale=1.6, own_times=False, own=4.0):
        noise = torch.Generator().manual_seed(seed)
        self.table = scale * torch.randn(32, 32, V + 1, V, generator=noise, dtype=torch.float64)
        for i in range(32):
            self.table[i, i, :V].diagonal().add_(own)
        self.inputs = []
        self.own_times = own_times

    def __call__(self, z, t):
        self.inputs.append(z.clone())
        place = torch.arange(z.shape[1])
        return self.table[place[:, None], place[None], z[:, None]].sum(2)


def published(network, z, threshold, edit, most=16):
    """One sequence as LLaDA2.1 decodes it at temperature 0, from its report and two public
    implementations.
    """
    prompt = z != MASK
    rounds = 0
    while True:
        masks = z == MASK
        if not masks.any():
            rounds += 1
            if rounds > most:
                return z
        probs, tokens = network(z[None], None)[0].softmax(-1).max(-1)
        fill = torch.zeros_like(masks)
        if masks.any():
            sure = torch.where(masks, probs, -1.0)
            fill = sure > threshold
            if not fill.any():
                fill[sure.argmax()] = True
        edits = (probs > edit) & (tokens != z) & ~masks & ~prompt
        if not (fill | edits).any():
            return z
        z = torch.where(fill | edits, tokens, z)


@pytest.mark.parametrize(("threshold", "edit"), [(0.9, 0.9), (0.7, 0.5), (0.3, 0.0), (0.95, 0.6)])
@pytest.mark.parametrize("own", [0.0, 4.0])
def test_decoding_is_the_published_loop_call_by_call(threshold, edit, own):
    start = torch.tensor([2, 0] + [MASK] * (L - 2))
    sampler = Confidence("probability", threshold=threshold, edit=edit)
    for seed in range(examples(5)):
        theirs = Pairs(seed, own=own)
        ours = Pairs(seed, own=own)
        want = published(theirs, start, threshold, edit)
        found = dd.sample(PROCESS, ours, (1, L), sampler, 40, start[None, :2], temperature=0.0)
        shown = torch.cat(ours.inputs)
        assert torch.equal(found[0], want) and torch.equal(shown, torch.cat(theirs.inputs))
        assert (shown[:, :2] == torch.tensor([2, 0])).all()  # the prompt stays


def rounds(own, **options):
    """The numbers of calls without masks, of several networks, and of tokens that were edited."""
    found = []
    edited = 0
    for seed in range(6):
        network = Pairs(seed, own=own)
        sampler = Confidence("probability", threshold=0.3, edit=0.0, **options)
        dd.sample(PROCESS, network, (1, L), sampler, 40, temperature=0.0)
        z = torch.cat(network.inputs)
        edited += int(((z[1:] != z[:-1]) & (z[:-1] != MASK)).sum())
        found.append(int((z != MASK).all(1).sum()))
    return found, edited


def test_editing_ends_where_nothing_changes_or_at_its_limit():
    assert rounds(4.0) == ([5, 5, 7, 7, 5, 2], 56)
    assert rounds(0.0)[0] == [16] * 6  # round in circles
    assert rounds(0.0, edit_steps=2)[0] == [2] * 6 and rounds(0.0, edit_steps=0)[0] == [0] * 6


def test_a_block_edits_only_its_own_tokens():
    network = Pairs(3, own_times=True)
    length = 12
    sampler = Confidence("probability", threshold=0.3, edit=0.0)
    found = dd.sample(PROCESS, network, (1, length), sampler, 30, pace=Blocks(4), temperature=0.0)
    inputs = torch.cat(network.inputs)
    want = torch.full((length,), MASK)
    for start in range(0, length, 4):
        here = slice(start, start + 4)

        def block(z, t, here=here, want=want):
            return Pairs(3)(
                torch.cat([want[None, : here.start], z, want[None, here.stop :]], 1), t
            )[:, here]

        want = want.clone()
        want[here] = published(block, want[here], 0.3, 0.0)
    assert torch.equal(found[0], want)
    done = (inputs[:, 4:] != MASK).any(1).nonzero()[0]
    assert (inputs[done:, :4] == want[:4]).all()


def test_a_row_is_the_same_alone_and_in_a_batch():
    sampler = Confidence("margin", threshold=0.6, edit=0.4)
    options = {"steps": 30, "temperature": 0.7}
    together = dd.sample(PROCESS, Pairs(1), (5, L), sampler, generator=[*range(5)], **options)
    for seed in range(5):
        alone = dd.sample(PROCESS, Pairs(1), (1, L), sampler, generator=[seed], **options)
        assert torch.equal(alone, together[seed : seed + 1])


def test_a_posterior_of_masks_edits_nothing():
    """There the token itself is certain."""
    ours, theirs = (
        generate(
            PROCESS,
            Pairs(2),
            Confidence("probability", threshold=0.5, edit=edit),
            (4, L),
            steps=20,
            parameterization="posterior",
        )
        for edit in (None, 0.0)
    )
    assert torch.equal(ours, theirs)


def test_tokens_of_a_tree_are_edited_too():
    process = LEVELS["hdlm-xi"]
    ours, plain = (
        generate(process, Halves(process), Confidence(edit=edit), (6, 6), steps=24)
        for edit in (0.3, None)
    )
    assert (ours < 6).all() and not torch.equal(ours, plain)


def test_a_short_string_gives_both_thresholds():
    sampler = dd.build("samplers", "confidence:score=probability,threshold=0.9,edit=0.9")
    assert (sampler.threshold, sampler.edit, sampler.edit_steps) == (0.9, 0.9, 16)
    assert dd.build("samplers", "confidence:threshold=0.9,edit=0.9").edit == 0.9
    assert (
        not sampler.guarantees.exact_marginals
        and not sampler.guarantees.consistent_joint
        and Confidence().guarantees.exact_marginals
    )


test_refused = refuses(r"""
    Confidence(edit=1.0) | ValueError | edit is 1.0, must be in \[0, 1\)
    Confidence(edit=-0.1) | ValueError | edit is -0.1, must be in \[0, 1\)
    Confidence(edit=0.5, edit_steps=-1) | ValueError | edit_steps is -1
    dd.contrib.TrainingRows.check(PROCESS, Confidence(edit=0.5)) | ValueError
        | keep drawn tokens: edit is only for
    dd.contrib.order_costs(PROCESS, Pairs(), X, Confidence(edit=0.5), 2) | ValueError
        | must keep drawn tokens
""")


@pytest.mark.parametrize("kind", ["guided", "guided, timed"])
def test_tokens_of_child_logits_are_replaced_from_the_first_step_on(kind):
    """No position holds a token in that step, so none is asked for its token logits."""
    process = LEVELS["hdlm"]
    tokens = generate(process, KINDS[kind](process), Confidence(edit=0.5))
    assert (tokens < process.vocab_size).all()
