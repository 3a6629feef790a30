"""Files of clusters: tensors as safetensors, metadata as JSON."""

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import Tensor

from ddlib.hierarchies.clusters.semantic import Clusters
from ddlib.hierarchies.level_names import check_names
from ddlib.utils.validation import require

_FORMAT = "ddlib clusters 1"


def save_clusters(path: str | Path, clusters: Clusters) -> None:
    """Write ``path``.safetensors (parents, centroids, coherence of each level) and ``path``.json
    (metadata, hashes).

    Args:
        path: path of both files, without suffix; the folder must exist.
        clusters: clusters that carry the fingerprint of their vocabulary.

    Raises:
        ValueError: clusters without a fingerprint, since ``load_clusters`` could not check them.
    """
    from safetensors.torch import save

    require(
        clusters.fingerprint is not None,
        "clusters has no fingerprint, must have that of its vocabulary: semantic_clusters(..., "
        "fingerprint=fingerprint(vocab))",
    )
    named = {
        "parents": clusters.parents,
        "centroids": clusters.centroids,
        "coherence": clusters.coherence,
    }
    data = save(
        {
            f"{name}.{i}": v.contiguous()
            for name, levels in named.items()
            for i, v in enumerate(levels)
        }
    )
    facts: dict[str, Any] = {
        "format": _FORMAT,
        "tokenizer": clusters.fingerprint,
        "embeddings": clusters.source,
        "tensors": hashlib.sha256(data).hexdigest(),
        "metric": clusters.metric,
        "num_words": len(clusters.parents[0]),
        "num_clusters": [len(centroids) for centroids in clusters.centroids],
        "objective": clusters.objective,
        "iterations": clusters.iterations,
        "sizes": [sizes.tolist() for sizes in clusters.sizes],
    }
    if clusters.names.members:  # a key that files without names lack
        facts["names"] = clusters.names.plain()
    tensors, described = _files(path)
    tensors.write_bytes(data)
    described.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def load_clusters(path: str | Path, fingerprint: str, embeddings: Tensor | None = None) -> Clusters:
    """Load clusters written by ``save_clusters``; requires the same tokenizer.

    Args:
        path: path of both files, without suffix.
        fingerprint: fingerprint of the vocabulary in use,
            ``ddlib.fingerprint(tokenizer.get_vocab())``.
        embeddings: if given, must be the embeddings that were clustered.

    Raises:
        FileNotFoundError: one of the files is missing.
        ValueError: a different tokenizer or different embeddings; files that do not match; another
            format.
    """
    from safetensors.torch import load

    tensors, described = _files(path)
    facts = json.loads(described.read_text(encoding="utf-8"))
    data = tensors.read_bytes()
    version = facts.get("format") if isinstance(facts, dict) else None
    require(version == _FORMAT, f"{described} has format {version!r}, must be {_FORMAT!r}")
    require(
        facts["tensors"] == hashlib.sha256(data).hexdigest(),
        f"{tensors} is not the file that {described.name} describes: its SHA-256 differs",
    )
    require(
        facts["tokenizer"] == fingerprint,
        f"fingerprint is {fingerprint[:12]}, but {described} was made for "
        f"{facts['tokenizer'][:12]}: another tokenizer",
    )
    if embeddings is not None:
        digest = Clusters.source_of(embeddings)
        require(
            facts["embeddings"] == digest,
            f"embeddings have hash {digest[:12]}, but {described} was made from "
            f"{facts['embeddings'][:12]}",
        )
    named = load(data)
    levels = range(len(facts["num_clusters"]))
    return Clusters(
        parents=tuple(named[f"parents.{i}"] for i in levels),
        centroids=tuple(named[f"centroids.{i}"] for i in levels),
        coherence=tuple(named[f"coherence.{i}"] for i in levels),
        objective=tuple(facts["objective"]),
        iterations=tuple(facts["iterations"]),
        metric=facts["metric"],
        source=facts["embeddings"],
        fingerprint=facts["tokenizer"],
        names=check_names(facts.get("names"), tuple(facts["num_clusters"])),
    )


def _files(path: str | Path) -> tuple[Path, Path]:
    """Return the two file paths.

    ``with_suffix`` would cut off the end of a name that contains a dot.
    """
    return Path(f"{path}.safetensors"), Path(f"{path}.json")
