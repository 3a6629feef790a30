"""DiT in transformers' registry.

After ``import ddlib_models.hf.auto``, ``AutoModel.from_pretrained`` loads a saved ``DiT``.

No remote code is involved. The files are those of ``DiT.save_pretrained``, with the checks of
``DiT.from_pretrained``. Requires transformers: ``pip install 'ddlib[hf]'``.
"""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from ddlib_models.dit import DiT
from ddlib_models.dit.inputs import Packing
from ddlib_models.dit.labels import Conditioned, Label, Wrapper
from ddlib_models.kv_cache import Cache
from ddlib_models.window_cache import WindowCache

# passed along by AutoModel; without effect here
_OF_AUTO_MODEL = (
    "_from_auto",
    "adapter_kwargs",
    "trust_remote_code",
)


class DiTConfig(PreTrainedConfig):
    """The arguments of a ``DiT`` as attributes."""

    model_type = DiT.model_type

    def __init__(
        self, **kwargs: Any
    ) -> None:  # the generated one has annotations that only transformers can resolve
        super().__init__(**kwargs)

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for ``DiT``."""
        return {
            name: value
            for name, value in vars(self).items()
            if name in DiT.__signature__.parameters
        }


class DiTModel(Wrapper, PreTrainedModel):
    """A ``DiT``, the attribute ``backbone``, as a transformers model: (z, t) -> logits over tokens.

    Args:
        config: the arguments of the ``DiT``.
        backbone: a ``DiT`` built with them; by default a fresh one is.
    """

    config_class = DiTConfig
    base_model_prefix = "backbone"
    main_input_name = "z"
    own_times = True

    def __init__(self, config: DiTConfig, backbone: DiT | None = None) -> None:
        super().__init__(config)
        self.backbone = DiT(**config.arguments()) if backbone is None else backbone
        self.post_init()

    @property
    def network(self) -> DiT:
        """The ``DiT``."""
        return self.backbone

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: a ``DiT`` keeps the weights of its constructor or file."""

    def forward(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, "*batch"],
        cu_seqlens: Int[Tensor, " n"] | Packing | None = None,
        *,
        clean: Int[Tensor, "B L"] | None = None,
        cache: Cache | WindowCache | None = None,
        label: Label = None,
        memory: Float[Tensor, "B L D"] | None = None,
    ) -> Float[Tensor, "B L V"]:
        """Compute logits; see ``DiT.forward``."""
        return self.backbone(z, t, cu_seqlens, clean=clean, cache=cache, label=label, memory=memory)

    def features(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, "*batch"],
        cu_seqlens: Int[Tensor, " n"] | Packing | None = None,
        **options: Any,
    ) -> Float[Tensor, "B L D"]:
        """Compute the head's input; see ``DiT.features``."""
        return self.backbone.features(z, t, cu_seqlens, **options)

    def features_at(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, "*batch"],
        positions: Int[Tensor, "B n"],
        **options: Any,
    ) -> Float[Tensor, "B n D"]:
        """Compute the head's input at some positions; see ``DiT.features_at``."""
        return self.backbone.features_at(z, t, positions, **options)

    @property
    def num_classes(self) -> int:
        """Number of classes of a label, 0 without labels."""
        return self.backbone.num_classes

    def with_label(self, label: Label) -> Conditioned:
        """Return the denoiser at fixed labels; see ``DiT.with_label``."""
        return self.backbone.with_label(label)

    def prefill(
        self, x: Int[Tensor, "B L"], cache: Cache | None = None, *, label: Label = None
    ) -> Cache:
        """Compute a cache; see ``DiT.prefill``."""
        return self.backbone.prefill(x, cache, label=label)

    def prefill_around(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, "*batch"],
        start: int,
        stop: int,
        *,
        label: Label = None,
    ) -> WindowCache:
        """Compute the cache around a window; see ``DiT.prefill_around``."""
        return self.backbone.prefill_around(z, t, start, stop, label=label)

    def extend(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, "*batch"],
        cache: Cache | WindowCache,
        *,
        label: Label = None,
    ) -> Float[Tensor, "B L V"]:
        """Compute logits behind a cache, or in its window; see ``DiT.extend``."""
        return self(z, t, cache=cache, label=label)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        config: DiTConfig | None = None,
        dtype: torch.dtype | str | None = None,
        **kwargs: Any,
    ) -> "DiTModel":
        """Load the model of a folder or a hub repository, in evaluation mode, after checking every
        file.

        Args:
            pretrained_model_name_or_path: see ``DiT.from_pretrained``.
            config: arguments that replace those of the file.
            dtype: dtype of the weights; by default, and for "auto", that in the file.
            **kwargs: see ``DiT.from_pretrained``.

        Raises:
            ManifestError, ValueError, FileNotFoundError: see ``DiT.from_pretrained``.
        """
        changed = {} if config is None else config.arguments()
        changed |= {name: value for name, value in kwargs.items() if name not in _OF_AUTO_MODEL}
        backbone = DiT.from_pretrained(pretrained_model_name_or_path, **changed)
        if dtype not in (None, "auto"):
            backbone.to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)
        return cls(
            DiTConfig(**backbone.saved_arguments()) if config is None else config, backbone
        ).eval()

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> str | None:
        """Save the model in the files of ``DiT.save_pretrained``."""
        return self.backbone.save_pretrained(save_directory, **kwargs)

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> str:
        """Publish the model; see ``DiT.push_to_hub``."""
        return self.backbone.push_to_hub(repo_id, **kwargs)


AutoConfig.register(DiT.model_type, DiTConfig)
AutoModel.register(DiTConfig, DiTModel)
