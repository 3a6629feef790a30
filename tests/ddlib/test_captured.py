"""Functions that are recorded once for each shape: results, memory, and what is read once.

Without a GPU a recording calls the function again and copies the results to the same memory.
"""

import pytest
import torch

from ddlib.contrib import Captured


def test_results_are_those_of_the_function():
    def function(x, y):
        return {"sum": x + y, "parts": [x * y, (x - y,)]}

    captured = Captured(function)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(3)
        y = torch.randn(1)
        results = captured(x, y)
        assert torch.equal(results["sum"], x + y)
        assert torch.equal(results["parts"][0], x * y)
        assert torch.equal(results["parts"][1][0], x - y)
    assert captured.number == 1


def test_every_combination_of_shapes_types_and_devices_has_its_recording():
    captured = Captured(lambda x, y: x + y)
    for x, y in (
        (torch.ones(3), torch.ones(1)),
        (torch.ones(3), torch.ones(3)),
        (torch.ones(1), torch.ones(3)),
        (torch.ones(3).double(), torch.ones(1)),
        (torch.ones(3), torch.ones(1)),
    ):
        assert torch.equal(captured(x, y), x + y)
    assert captured.number == 4


def test_results_of_the_next_call_replace_those_of_the_last():
    """As in the memory of a graph: who keeps a result must copy it."""
    captured = Captured(lambda x: x * 2)
    first = captured(torch.ones(2))
    second = captured(torch.zeros(2))
    assert first.data_ptr() == second.data_ptr()
    assert torch.equal(first, torch.zeros(2))


def test_inputs_are_copied():
    """A recording reads its own memory: an input that is changed in place after it changes
    nothing.
    """
    seen = []

    def function(x):
        seen.append(x.data_ptr())
        return x + 1

    captured = Captured(function)
    x = torch.zeros(2)
    captured(x)
    captured(torch.ones(2))
    assert len(set(seen)) == 1
    assert seen[0] != x.data_ptr()


def test_weights_that_are_changed_in_place_are_read_again():
    weight = torch.ones(2)
    captured = Captured(lambda x: x * weight)
    assert torch.equal(captured(torch.ones(2)), torch.ones(2))
    weight.mul_(3)
    assert torch.equal(captured(torch.ones(2)), torch.full((2,), 3.0))


def test_an_error_of_the_function_is_raised_and_leaves_no_result():
    def fail(x):
        raise ValueError("no result")

    with pytest.raises(ValueError, match="no result"):
        Captured(fail)(torch.ones(1))
