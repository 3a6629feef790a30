"""Joint network calls of unlike drawings: each has the tokens that it has alone."""

import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest
import torch
from zoo.networks import KINDS, Halves
from zoo.processes import LEVELS

import ddlib as dd
from ddlib.contrib import Batcher, sample_together
from ddlib.samplers import Ancestral, Confidence, Remask

PROCESS = LEVELS["levels-xi"]


def drawn(plan, **options):
    """Tokens of a plan without company."""
    return sample_together([plan], **options)[0]


def unlike(network, rows=6):
    """Plans that differ in length, rows, steps, seeds, sampler, temperature and prompt."""
    samplers = [Ancestral(), Confidence(), Remask(0.5)]
    return [
        dd.plan(
            PROCESS,
            network,
            (1 + k % 2, 4 + 3 * (k % 3)),
            samplers[k % len(samplers)],
            2 + k,
            torch.tensor([1] * (k % 3)),
            generator=list(range(k, k + 1 + k % 2)),
            temperature=0.5 * k,
        )
        for k in range(rows)
    ]


@pytest.mark.parametrize("rows", [1, 3, 16, (1, 4, 16)])
def test_unlike_calls_draw_what_each_draws_alone(rows):
    network = Halves(PROCESS)
    plans = unlike(network)
    together = sample_together(plans, rows)
    for plan, tokens in zip(plans, together, strict=True):
        assert torch.equal(tokens, drawn(plan, rows=rows))
        assert torch.equal(tokens, plan.run())
    for plan, tokens in zip(plans[::-1], sample_together(plans[::-1], rows), strict=True):
        assert torch.equal(tokens, drawn(plan, rows=rows))


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"shifted"}))
def test_every_kind_of_network_is_joined(kind):
    """Whole, split, sparse, with memory, by blocks and guided; in company as alone to the bit."""
    process = LEVELS["levels"]
    network = KINDS[kind](process)
    pace = dd.paces.Blocks(1) if "blocks" in kind else None
    controls = [dd.controls.Memory()] if getattr(network, "takes_memory", False) else []
    plans = [
        dd.plan(
            process,
            network,
            (2, length),
            steps=3,
            generator=[length, 0],
            temperature=heat,
            pace=pace,
            controls=controls,
        )
        for length, heat in ((4, 1.0), (6, 0.5), (4, 0.5))
    ]
    for plan, tokens in zip(plans, sample_together(plans, rows=4), strict=True):
        assert torch.equal(tokens, drawn(plan, rows=4))
        assert torch.equal(tokens, plan.run())


class Recorded:
    """A network in which all positions depend on each other, and the shapes of its calls."""

    takes_padding = True
    own_times = True

    def __init__(self, process, fails=()):
        self.inner = Halves(process)
        self.fails = fails
        self.shapes = []

    def __call__(self, z, t, *, present=None):
        self.shapes.append(tuple(z.shape))
        for state in self.fails:
            if bool((z == state).any()):
                raise ArithmeticError("a state that breaks the network")
        present = torch.ones_like(z, dtype=torch.bool) if present is None else present
        vectors = self.inner.table[0][z] * present[..., None]
        times = t if t.ndim == 2 else t[:, None].expand(z.shape)
        # sums over positions in float64 of integers, exact in any order
        vectors = (vectors * 1024).round() / 1024
        mean = vectors.sum(1, keepdim=True) / present.sum(1)[:, None, None]
        hidden = (self.inner.table[1][z] + mean) * (1 + times[..., None].double())
        return (hidden[..., None, :] * self.inner.weight).sum(-1) + self.inner.bias


def test_sequences_are_padded_to_few_shapes_and_padding_is_masked():
    network = Recorded(PROCESS)
    plans = unlike(network)
    tokens = sample_together(plans, 8, lengths=(4, 8, 12))
    assert set(network.shapes) <= {(8, 4), (8, 8), (8, 12)}
    joint = len(network.shapes)
    network.shapes.clear()
    for plan, row in zip(plans, tokens, strict=True):
        assert torch.equal(row, plan.run())
        assert torch.equal(row, drawn(plan, rows=8, lengths=(16,)))
    assert joint < len(network.shapes) / 2
    long = dd.plan(PROCESS, network, (1, 20), steps=2, generator=[0])
    network.shapes.clear()
    assert torch.equal(drawn(long, rows=2, lengths=(8,)), long.run())
    assert network.shapes[0] == (2, 20)


class Unpadded(Recorded):
    """The same without the argument for padding."""

    takes_padding = False

    def __call__(self, z, t):
        return super().__call__(z, t)


def test_a_network_without_padding_has_calls_of_the_exact_lengths():
    network = Unpadded(PROCESS)
    plans = unlike(network)
    tokens = sample_together(plans, 4, lengths=(16,))
    assert set(network.shapes) == {(4, 4), (4, 7), (4, 10)}
    assert all(torch.equal(row, plan.run()) for plan, row in zip(plans, tokens, strict=True))


def test_network_calls_are_shared_and_rows_that_are_done_leave():
    """As many calls as the longest drawing makes, and some while the others begin; with few rows
    late ones take the place of those that have ended.
    """
    network = Recorded(PROCESS)
    steps = [2, 9, 3, 5, 4]
    plans = [
        dd.plan(PROCESS, network, (1, 8), Confidence(), count, generator=[count]) for count in steps
    ]
    sample_together(plans, 8)
    assert len(network.shapes) <= max(plan.network_calls for plan in plans) + 2
    network.shapes.clear()
    sample_together(plans, 2)
    assert len(network.shapes) < sum(plan.network_calls for plan in plans) * 0.75


def test_a_drawing_with_more_rows_than_a_call_is_cut():
    network = Recorded(PROCESS)
    plan = dd.plan(PROCESS, network, (7, 8), steps=4, generator=list(range(7)))
    assert torch.equal(drawn(plan, rows=3), plan.run())
    assert {rows for rows, _ in network.shapes[: len(network.shapes) // 2]} == {3}


def plan_of(network, steps=3, seed=1, **options):
    return dd.plan(PROCESS, network, (1, 6), steps=steps, generator=[seed], **options)


def test_a_failing_call_raises_in_its_own_drawing():
    """What two drawings compute together fails because of one of them: the other goes on."""
    network = Recorded(PROCESS, fails=[2])
    forbidden = [dd.controls.Forbidden([2])]
    plans = [plan_of(network, prompt=torch.tensor([token]), controls=forbidden) for token in (1, 2)]
    with Batcher(network, 4) as batcher, ThreadPoolExecutor(2) as pool:
        fine, wrong = (pool.submit(batcher.join().run, plan) for plan in plans)
        with pytest.raises(ArithmeticError, match="breaks the network"):
            wrong.result()
        assert torch.equal(fine.result(), plans[0].run())
        assert torch.equal(batcher.join().run(plans[0]), fine.result())
    with pytest.raises(ArithmeticError, match="breaks the network"):
        sample_together(plans * 3, 4)


class Slow(Recorded):
    """A network whose calls wait until they may."""

    def __init__(self, process):
        super().__init__(process)
        self.begun = threading.Event()
        self.may = threading.Event()

    def __call__(self, z, t, **options):
        self.begun.set()
        self.may.wait()
        return super().__call__(z, t, **options)


def test_a_drawing_is_cancelled_in_its_call_and_between_calls():
    network = Slow(PROCESS)
    with Batcher(network, 4) as batcher, ThreadPoolExecutor(4) as pool:
        sessions = [batcher.join() for _ in range(3)]
        runs = [
            pool.submit(session.run, plan_of(network, steps=20, seed=seed))
            for seed, session in enumerate(sessions)
        ]
        network.begun.wait()
        sessions[0].cancel()
        waits = pool.submit(batcher.join().run, plan_of(network, seed=9))
        network.may.set()
        with pytest.raises(CancelledError, match="was cancelled"):
            runs[0].result()
        for seed in (1, 2):
            assert torch.equal(runs[seed].result(), plan_of(Recorded(PROCESS), 20, seed).run())
        assert torch.equal(waits.result(), plan_of(Recorded(PROCESS), seed=9).run())
        gone = batcher.join()
        gone.cancel()
        with pytest.raises(CancelledError):
            gone.run(plan_of(network))
        assert torch.equal(batcher.join().run(plan_of(network)), plan_of(Recorded(PROCESS)).run())


def test_closing_ends_all_drawings():
    network = Slow(PROCESS)
    with ThreadPoolExecutor(3) as pool:
        batcher = Batcher(network, 4)
        runs = [pool.submit(batcher.join().run, plan_of(network, seed=k)) for k in range(3)]
        network.begun.wait()
        closing = threading.Thread(target=batcher.close)
        closing.start()
        network.may.set()
        closing.join()
        for run in runs:
            with pytest.raises(CancelledError, match="closed"):
                run.result()
        with pytest.raises(CancelledError):
            batcher.join().run(plan_of(network))


def test_an_error_of_a_drawing_itself_frees_its_place():
    network = Recorded(PROCESS)

    def broken(k, t, z):
        raise KeyError("of the caller")

    with pytest.raises(KeyError, match="of the caller"):
        sample_together([plan_of(network), plan_of(network, on_step=broken)], 4)
    with Batcher(network, 4) as batcher:
        with pytest.raises(KeyError, match="of the caller"):
            batcher.join().run(plan_of(network, on_step=broken))
        assert torch.equal(batcher.join().run(plan_of(network)), plan_of(network).run())


def test_numbers_of_rows_and_lengths_are_checked():
    for rows, lengths, message in (
        ([], (), "rows is empty"),
        (0, (), "rows is 0"),
        (4, (8, 0), "lengths is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            Batcher(Halves(PROCESS), rows, lengths)
