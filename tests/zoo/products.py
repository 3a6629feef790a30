"""Products of processes, and the parts that their positions have."""

import torch

import ddlib as dd
from ddlib.hierarchies import Blur, Tree
from ddlib.processes import GIDD, Hierarchical, Masked, PerWord, Product, RateMatrix, Uniform
from ddlib.schedules import Cosine, Linear

F64 = torch.float64
XI = Hierarchical(Tree([[0, 0, 1, 1]], xi=0.8, speed=[2.0, 1.0]), Cosine())
"""A tree over four tokens with xi < 1."""
BLUR = Hierarchical(Blur(5, [1.0]), Linear())
FIELDS = torch.tensor([0, 1, 2, 3, 0, 3, 2])
FOUR = Product(
    {"masks": Masked(6, Linear()), "tree": XI, "blur": BLUR, "uniform": Uniform(3, Linear())},
    FIELDS,
)
"""Masks, a tree with xi < 1, a blur and uniform noise."""
RATES = RateMatrix(dd.presets.hdlm([0, 0, 1, 1], xi=0.8).rate_matrix(0.0), Linear(), 4)
ODD = Product(
    {"per word": PerWord(Linear(), [0.5, 1.0, 2.0]), "rates": RATES, "gidd": GIDD(5, 0.3)},
    ["rates", "gidd", "per word", "gidd"],
)
"""Processes without levels, one of them without a closed form."""
MASKS = Product(
    {"small": Masked(3, Linear()), "large": Masked(8, Linear()), "other": Masked(5, Linear())},
    [0, 1, 2, 1, 0],
)
"""Masks that differ in the number of tokens alone."""
LEVELS = Product(
    {
        "masks": Masked(4, Linear()),
        "tree": XI,
        "deep": dd.presets.hdlm_levels([[0, 0, 1, 1, 2], [0, 1, 1]], xi=[0.9, 0.7]),
    },
    [2, 0, 1, 2, 1],
)
"""Processes with levels, of different depths and schedules."""
TREES = Product(
    {
        "masks": Masked(3, Linear()),
        "tree": dd.presets.hdlm([0, 0, 1, 1], gamma=2.0),
        "deep": dd.presets.hdlm_levels([[0, 0, 1, 1, 2], [0, 1, 1]]),
    },
    [2, 0, 1, 2, 1],
)
"""Processes whose tokens stay in their clusters."""
PRODUCTS = {"four": FOUR, "odd": ODD, "masks": MASKS, "levels": LEVELS, "trees": TREES}


def parts(product):
    """Number, positions and process of each field, and its first state."""
    fields = product.fields_of((1, len(product.arguments()["fields"])))[0]
    for k, component in enumerate(product.components):
        yield k, (fields == k).nonzero()[:, 0], component.process, component.first_state


def tokens(product, rows, seed=0):
    """Tokens of each field, (rows, L)."""
    generator = torch.Generator().manual_seed(seed)
    fields = product.arguments()["fields"]
    sizes = torch.tensor([each.process.vocab_size for each in product.components])[fields]
    u = torch.rand(rows, len(fields), generator=generator, dtype=F64)
    return (u * sizes).to(torch.int64)


def scores(product, *shape, seed=0, fill=1e30):
    """Logits with another number beyond the alphabet of each position."""
    generator = torch.Generator().manual_seed(seed)
    fields = product.arguments()["fields"]
    logits = torch.randn(*shape, len(fields), product.vocab_size, dtype=F64, generator=generator)
    sizes = torch.tensor([each.process.vocab_size for each in product.components])[fields]
    beyond = torch.arange(product.vocab_size) >= sizes[:, None]
    return logits.masked_fill(beyond, fill)
