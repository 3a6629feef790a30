"""The reduced checkpoints, and how each family is imported."""

import torch
from official_states import REDUCED, Case, parents, state

from ddlib_models import DiT, official

MDLM, GIDD, TRAINING, HDLM = (
    REDUCED[name] for name in ("mdlm", "gidd of the hub", "gidd in training", "hdlm")
)
IMPORTERS = {
    "mdlm": lambda source, case, **options: official.mdlm(source, mask_id=case.mask, **options),
    "gidd": lambda source, case, **options: official.gidd(
        source, tokens=case.tokens, mask_id=case.mask, **options
    ),
    "hdlm": lambda source, case, **options: official.hdlm(
        source, parents(case), mask_id=case.mask, **options
    )[0],
}


def load(case: Case, tensors=None, **options) -> DiT:
    return IMPORTERS[case.family](state(case) if tensors is None else tensors, case, **options)


def assert_same(model: DiT, other: DiT) -> None:
    mine = model.state_dict()
    theirs = other.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
