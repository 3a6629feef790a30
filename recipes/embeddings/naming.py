"""Readable names of clusters in noisy text."""

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

import ddlib as dd
from ddlib.hierarchies import Clusters
from recipes.embeddings.embeddings import typical_words


def cluster_names(
    process: dd.processes.ForwardProcess,
    model: nn.Module,
    clusters: Clusters | None,
    tokenizer: Tokenizer,
) -> list[str]:
    """Return a name for every state between tokens and the mask: that of the tree, else a typical
    token, else a number.

    Names of the tree are those in a recipe or in a CSV file. The typical token of a cluster that
    the run made is the one whose embedding in the network is nearest to the cluster's mean. A
    cluster whose token is not readable has its number as name, c17, and so have all clusters of a
    network without such a table.

    Args:
        process: determines the number of clusters.
        model: the network.
        clusters: those of the run, if it made any.
        tokenizer: decodes the tokens.
    """
    numbers = [f"c{n}" for n in range(sum(process.levels[1:-1]))]
    if process.hierarchy is not None and (members := process.hierarchy.names.members):
        all_names = [name for level in members for name in level]
        return all_names if len(all_names) == len(numbers) else numbers
    weight = getattr(getattr(model, "embedding", None), "weight", None)
    if clusters is None or not isinstance(weight, Tensor):
        return numbers
    # weights may be sharded over processes, all of which execute this
    whole = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    vectors = whole[: process.vocab_size].detach().float().cpu()
    alike = torch.ones(len(vectors), dtype=torch.int64)
    words = [
        members[0]
        for level in range(len(clusters.parents))
        for members in typical_words(vectors, clusters.of_tokens(level), alike, num=1)
    ]
    # special tokens decode to nothing, and are named as in the vocabulary
    names = [
        (tokenizer.decode([word]) or tokenizer.id_to_token(word) or "").strip() for word in words
    ]
    readable = [name.isprintable() and bool(name.strip("\ufffd")) for name in names]
    if len(names) != len(numbers):  # a process that has further states
        return numbers
    return [
        name if good else number
        for name, good, number in zip(names, readable, numbers, strict=True)
    ]
