"""An index of a keyed generator holds positions in a global order.

What does not is warned of, what does never is.
"""

import pytest
import torch
from zoo.calls import seeded

import ddlib as dd
from ddlib.utils.validation import UsageWarning

pytestmark = pytest.mark.usefixtures("as_users_call")

ORDERS = {
    "one process": lambda step: torch.arange(64) + 64 * step,
    "one of 512 ranks": lambda step: 7 + 512 * torch.arange(64) + 512 * 64 * step,
    "a rank's own part": lambda step: torch.arange(64) + 64 * (5 + 8 * step),
    "accumulated parts of a rank": lambda step: (
        torch.arange(16) + 512 * 16 * torch.arange(4)[:, None]
    ).flatten(),
    "any partition of a batch": lambda step: torch.randperm(64, generator=seeded(step))[:16],
    "a shuffled batch": lambda step: torch.randperm(64, generator=seeded(step)),
    "rows of one length": lambda step: torch.tensor([3, 17, 29, 30]) + 64 * step,
    "one row": lambda step: torch.tensor([10**9 + 17 * step]),
    "two rows": lambda step: torch.tensor([3, 10**6 + step]),
    "an empty batch's neighbour": lambda step: torch.arange(3) * 2**40,
}


@pytest.mark.parametrize("method", ["iid", "stratified", "antithetic"])
@pytest.mark.parametrize("index", ORDERS.values(), ids=ORDERS)
def test_no_position_in_an_order_is_warned_of(index, method):
    """Warnings are errors here."""
    for step in range(3):
        own = index(step)
        noise = dd.KeyedGenerator(0, step, own)
        dd.sample_times(len(own), method, noise)
        dd.sample_times(
            3 * len(own), method, noise.split(3)
        )  # copies have the position of their example


def numbers(size, count, step=0, again=False):
    """Numbers of examples that were drawn from a data set."""
    generator = seeded(step)
    if again:
        return torch.randint(size, (count,), generator=generator)
    return torch.randperm(size, generator=generator)[:count]


@pytest.mark.parametrize(
    ("size", "count"), [(1000, 64), (50_000, 64), (10**6, 512), (10**6, 4), (300, 16)]
)
def test_numbers_of_a_data_set_are_warned_of_once(size, count):
    def draw(step, method="stratified", **options):
        dd.sample_times(count, method, dd.KeyedGenerator(0, step, numbers(size, count), **options))

    draw(0, "iid")
    draw(0, scattered=True)
    with pytest.warns(
        UsageWarning, match=r"are \d+ apart.*position in the global order.*scattered=True"
    ) as found:
        for step in range(5):
            draw(step)
    assert len(found) == 1 and found[0].filename == __file__


@pytest.mark.parametrize("method", ["iid", "stratified", "antithetic"])
def test_a_number_that_occurs_twice_is_warned_of(method):
    index = torch.tensor([5, 9, 5, 1])
    with pytest.warns(UsageWarning, match="holds 5 twice: these rows have the same time and noise"):
        t = dd.sample_times(4, method, dd.KeyedGenerator(0, 0, index))
    if method != "antithetic":
        assert t[0] == t[2]
    dd.sample_times(4, method, dd.KeyedGenerator(0, 0, index, scattered=True))


@pytest.mark.statistical
def test_warned_combinations_lose_the_strata():
    """The error of a mean of 64 times: a tenth of that of independent times by position, all of it
    by data set.
    """

    def spread(index):
        means = [
            float(
                dd.sample_times(
                    64, generator=dd.KeyedGenerator(0, k, index(k), scattered=True)
                ).mean()
            )
            for k in range(60)
        ]
        return float(torch.tensor(means).std()) * (12 * 64) ** 0.5

    assert spread(ORDERS["one process"]) < 0.2
    assert 0.7 < spread(lambda step: numbers(50_000, 64, step)) < 1.4


@pytest.mark.parametrize("method", ["iid", "stratified", "antithetic"])
def test_every_draw_of_times_is_a_new_one_and_the_first_is_that_of_a_new_generator(method):
    noise, again = (dd.KeyedGenerator(3, 5, torch.arange(32)) for _ in range(2))
    first, second, third = (dd.sample_times(32, method, noise) for _ in range(3))
    assert torch.equal(first, dd.sample_times(32, method, again))
    again.rand((32, 7))
    if method != "iid":  # which other numbers were drawn between does not matter to slices
        assert torch.allclose(second, dd.sample_times(32, method, again), atol=1e-6)
    for a, b in ((first, second), (second, third), (first, third)):
        assert float((a - b).abs().max()) > 0.1
    if method == "stratified":
        for t in (first, second, third):
            assert sorted((t * 32).long().tolist()) == list(range(32))
    part = dd.KeyedGenerator(3, 5, torch.arange(8, 16))
    dd.sample_times(8, method, part)
    assert torch.equal(dd.sample_times(8, method, part), second[8:16])
