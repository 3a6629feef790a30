"""Values that an own metric of samples returns, in evaluation.json."""

import json

import numpy as np
import pytest
import torch

from recipes.evaluation.samples import plain_numbers


def test_numbers_of_arrays_are_written_as_numbers():
    given = {
        "a": np.float32(0.5),
        "b": torch.tensor(2),
        "c": np.array([3.0]),
        "d": 4,
        "e": {"part": 0.5},
    }
    plain = plain_numbers("Steps", given)
    assert json.loads(json.dumps(plain)) == {"a": 0.5, "b": 2, "c": 3.0, "d": 4, "e": {"part": 0.5}}


def test_a_value_that_is_no_number_is_refused_by_name():
    with pytest.raises(TypeError, match="measure of Steps returned 'largest' of type ndarray"):
        plain_numbers("Steps", {"largest": np.zeros(2)})
