"""What clusters are called in texts on their way from noise."""

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

import ddlib as dd
from ddlib.hierarchies.clusters import Clusters
from recipes.embeddings.embeddings import typical_words


def cluster_names(
    process: dd.processes.ForwardProcess, model: nn.Module, clusters: Clusters | None, tokenizer: Tokenizer
) -> list[str]:
    """A name for every state between words and the mask: where the run made clusters, a word that stands for it.

    That is the word whose embedding in the network is nearest to the cluster's mean. A cluster whose word is no
    readable text is called by its number, c17, and so are all of a network without such a table.

    Args:
        process: says how many there are.
        model: the network.
        clusters: those of the run, if it made any.
        tokenizer: spells the words.
    """
    numbers = [f"c{n}" for n in range(sum(process.levels[1:-1]))]
    weight = getattr(getattr(model, "embedding", None), "weight", None)
    if clusters is None or not isinstance(weight, Tensor):
        return numbers
    # weights may be spread over processes, all of which come here
    whole = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    vectors = whole[: process.vocab_size].detach().float().cpu()
    alike = torch.ones(len(vectors), dtype=torch.int64)
    words = [
        members[0]
        for level in range(len(clusters.parents))
        for members in typical_words(vectors, clusters.words(level), alike, num=1)
    ]
    names = [tokenizer.decode([word]).strip() for word in words]
    readable = [name.isprintable() and bool(name.strip("\ufffd")) for name in names]
    if len(names) != len(numbers):  # a process that has other states besides
        return numbers
    return [name if good else number for name, good, number in zip(names, readable, numbers, strict=True)]
