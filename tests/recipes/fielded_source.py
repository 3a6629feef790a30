"""A source of sequences with several alphabets, for runs of tests."""

from dataclasses import dataclass

import numpy as np

from recipes.data.fielded import Fielded
from recipes.data.fields import Field

BLUR = {"kind": "hierarchical", "hierarchy": {"kind": "blur", "size": 6, "widths": [1.0]}}
FIELDS = (
    Field(name="age", symbols=tuple("012345"), process=BLUR | {"schedule": "linear"}),
    Field(name="city", symbols=("Rome", "Oslo", "Paris"), process="mdlm"),
    Field(name="member", symbols=("no", "yes"), process={"kind": "uniform", "schedule": "linear"}),
)
POSITIONS = ("age", "city", "member", "city")


@dataclass
class Rows:
    """Rows of three fields, in four positions."""

    count: int = 300

    def load(self):
        random = np.random.default_rng(0)
        age = random.integers(6, size=self.count)
        home = (age + random.integers(2, size=self.count)) % 3
        work = random.integers(3, size=self.count)
        ids = np.stack([age, home, age % 2, work], 1)
        return Fielded.of(ids, FIELDS, POSITIONS)

    def identity(self):
        return {"count": str(self.count)}
