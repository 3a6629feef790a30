"""Regression of the gap to masks in documents of the unseen texts on properties of the documents.

    python -m studies.weights.narrowing WORK

Exploratory, after the verdicts: the gap is narrower on Moby Dick than on the other texts, and the
command prints how much of that remains at equal properties, or at equal difficulty. WORK is the
folder of ``studies.weights.run prepare``; the likelihoods are those of the result file.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from recipes.data import Prepared, open_prepared
from recipes.embeddings.neighbours import stream
from studies.tables import table
from studies.weights.run import RESULTS

TEXTS = ("sealed", "moby_dick", "faq")
"""The first is the one that the others are compared with."""
MASKS = "masks"
TREES = ("HDLM-64, all edges", "random tree, all edges")
SPACES = "ĠĊ"
"""Letters that stand for a space and for the end of a line in the names of tokens."""


class Describer:
    """Properties of documents in the tokens of a training text.

    Args:
        data: the training text.
    """

    def __init__(self, data: Prepared) -> None:
        tokens = stream(data).numpy()
        self.counts = np.bincount(tokens, minlength=data.vocab_size) + 0.5
        self.pairs = np.zeros((data.vocab_size, data.vocab_size), dtype=np.int32)
        np.add.at(self.pairs, (tokens[:-1], tokens[1:]), 1)
        names = [data.tokenizer.id_to_token(index) for index in range(data.vocab_size)]
        bare = [name.strip(SPACES) for name in names]
        self.letters = np.array([any(sign.isalpha() for sign in name) for name in bare])
        self.begins = np.array([name.startswith("Ġ") for name in names])

    def describe(self, x: Int[np.ndarray, " L"]) -> list[float]:
        """Return the nats per token of a document under frequencies of tokens and of pairs, and the
        shares of unseen pairs, of pieces of words, of signs, and of distinct tokens.
        """
        unigram = self.counts[x] / self.counts.sum()
        seen = self.pairs[x[:-1], x[1:]]
        conditional = seen / np.maximum(self.pairs[x[:-1]].sum(-1), 1)
        bigram = 0.7 * conditional + 0.3 * unigram[1:]
        pieces = self.letters[x] & ~self.begins[x]
        return [
            -np.log(unigram).mean(),
            -np.log(bigram).mean(),
            (seen == 0).mean(),
            pieces.mean(),
            (~self.letters[x]).mean(),
            len(np.unique(x)) / len(x),
        ]


def per_token(
    compared: Mapping[str, Any], process: str, text: str, seeds: Sequence[int]
) -> Float[np.ndarray, " N"]:
    """Return the exact nats per token of the documents of a text, the mean of the seeds."""
    chains = [compared[f"{process}, {seed}"]["texts"][text]["chain"] for seed in seeds]
    return np.mean([np.divide(chain["nats"], chain["tokens"]) for chain in chains], axis=0)


def differences(
    values: Float[np.ndarray, " N"],
    text: Int[np.ndarray, " N"],
    properties: Float[np.ndarray, "N P"],
) -> list[str]:
    """Return by how much each text is above the first at equal properties, with the standard error
    over documents (White 1980, for unequal variances).
    """
    others = [text == number for number in range(1, len(TEXTS))]
    centred = properties - properties.mean(0)
    design = np.column_stack([np.ones(len(values)), *others, centred]).astype(float)
    inverse = np.linalg.pinv(design.T @ design)
    found = inverse @ design.T @ values
    scaled = design * (values - design @ found)[:, None]
    errors = np.sqrt(np.diag(inverse @ (scaled.T @ scaled) @ inverse))
    return [f"{found[place]:+.3f} ± {errors[place]:.3f}" for place in range(1, len(TEXTS))]


def narrowing(work: Path, results: Path, seeds: Sequence[int]) -> str:
    """Return the table: for each tree, plain, at equal properties, and at equal difficulty.

    Difficulty is the mean of the nats of masks and of the tree, whose error in a document does not
    favour either.
    """
    compared = json.loads(results.read_text(encoding="utf-8"))["compared"]
    describer = Describer(open_prepared(work / "data"))
    documents = []
    text = []
    for number, name in enumerate(TEXTS):
        held_out = open_prepared(work / "unseen" / name).validation
        tokens = compared[f"{MASKS}, {seeds[0]}"]["texts"][name]["chain"]["tokens"]
        for index, length in enumerate(tokens):
            documents.append(describer.describe(np.asarray(held_out[index])[:length]))
            text.append(number)
    masks, *trees = (
        np.concatenate([per_token(compared, process, name, seeds) for name in TEXTS])
        for process in (MASKS, *TREES)
    )
    number = np.array(text)
    rows = []
    for name, tree in zip(TREES, trees, strict=True):
        controls = {
            "nothing": np.zeros((len(number), 0)),
            "properties": np.array(documents),
            "difficulty": ((masks + tree) / 2)[:, None],
        }
        rows += [
            [name, equal, *differences(tree - masks, number, control)]
            for equal, control in controls.items()
        ]
    return table(
        ["tree, less masks", "equal", *(f"{one} less {TEXTS[0]}" for one in TEXTS[1:])], rows
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path, help="folder of the texts")
    options = parser.parse_args()
    print(narrowing(options.work, RESULTS, range(3)))


if __name__ == "__main__":
    main()
