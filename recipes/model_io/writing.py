"""Writing of a published model: weights, recipe, tokenizer, and all that sampling and evaluation
require.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Int
from safetensors.torch import save
from tokenizers import Tokenizer
from torch import Tensor, nn

from ddlib.hierarchies import Clusters, save_clusters
from ddlib_models import Pretrained
from ddlib_models.io.manifest import writing
from ddlib_models.io.tensors import save_tensors
from recipes.config import Recipe, recipe_yaml
from recipes.data.layout import TEMPLATE, Layout
from recipes.model_io.names import CLUSTERS, CONTENT, COUNTS, RECIPE, SYMBOLS, TOKENIZER

_CARD = """# {title}

{about}

```python
from recipes.model_io import open_saved

saved = open_saved("...")  # this folder, or a repository on the hub
```

`ddlib_manifest.json` holds the sizes and sha256 of all files; they are checked at every load.
"""


@dataclass(frozen=True, kw_only=True)
class Record:
    """All that a published folder holds besides the network."""

    recipe: Recipe
    tokenizer: Tokenizer
    layout: Layout | None = None
    """Layout of sequences of symbols; None for text."""
    clusters: Clusters | None = None
    """Clusters that a part of the recipe requires."""
    counts: Int[Tensor, " V"] | None = None
    """Number of occurrences of each token, likewise."""
    template: str = ""
    """Chat template of the tokenizer of a text; empty for none."""
    content: str = ""
    """Fingerprint of the content of the data; empty if it is not known."""

    def files(self) -> dict[str, bytes | str]:
        """Return the contents of the files by name."""
        written: dict[str, bytes | str] = {
            RECIPE: recipe_yaml(self.recipe),
            TOKENIZER: self.tokenizer.to_str(),
        }
        if self.layout is not None:
            written[SYMBOLS] = json.dumps(self.layout.plain())
        if self.template and self.layout is None:
            written[TEMPLATE] = self.template
        if self.content:
            written[CONTENT] = json.dumps({"content": self.content})
        if self.counts is not None:
            written[COUNTS] = save({"counts": self.counts})
        if self.clusters is not None:
            with tempfile.TemporaryDirectory() as folder:
                save_clusters(Path(folder) / CLUSTERS, self.clusters)
                written |= {path.name: path.read_bytes() for path in Path(folder).iterdir()}
        return written


def write_model(model: nn.Module, folder: Path, record: Record, title: str, about: str) -> None:
    """Save a network by its own method, or its tensors alone, from which the recipe rebuilds it,
    and its record.

    Args:
        model: the network.
        folder: folder of the weights.
        record: what the folder holds besides.
        title: title of README.md.
        about: first paragraph of README.md.
    """
    files = record.files()
    card = {"title": title, "about": about}
    if isinstance(model, Pretrained):
        model.save_pretrained(folder, extra=files, model_card_kwargs=card)
        return
    with writing(folder, {"class": type(model).__name__}, unlisted=("README.md",)) as unfinished:
        save_tensors(model, unfinished / "model.safetensors")
        for name, content in files.items():
            (unfinished / name).write_bytes(
                content.encode() if isinstance(content, str) else content
            )
        (unfinished / "README.md").write_text(_CARD.format(**card), encoding="utf-8")
