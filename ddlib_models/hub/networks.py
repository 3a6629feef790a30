"""What reads a network of a family: classes of transformers' own, ours, or code that comes with the weights."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ddlib_models.hub.family import Source
from ddlib_models.hub.reading import pretrained, transformers
from ddlib_models.masked_lm import MaskedLM
from ddlib_models.masked_lm import masked_lm as pretrained_masked_lm


def masked_lm(source: Source) -> MaskedLM:
    """A masked language model of transformers' own, see ``ddlib_models.masked_lm``."""
    model = pretrained_masked_lm(
        source.num_states, source.vocab_size, source.name, revision=source.revision, mask_token=source.mask_id
    )
    return model.to(source.dtype)


class Remote(nn.Module):
    """A network that is code of its repository, as it says what it is: ids in, logits out."""

    def __init__(self, network: nn.Module, vocab_size: int, mask_id: int | None) -> None:
        super().__init__()
        self.network, self.vocab_size, self.mask_id = network, vocab_size, mask_id

    def forward(
        self, z: Int[Tensor, "B L"], t: Float[Tensor, " B"], *, present: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L V"]:
        """Logits over ids, (B, L, V); False of ``present`` is where nobody looks."""
        ids = z if self.mask_id is None else torch.where(z == self.vocab_size, self.mask_id, z)
        seen = {} if present is None else {"attention_mask": present.long()}
        return self.network(input_ids=ids, **seen).logits[..., : self.vocab_size]


def remote(source: Source) -> Remote:
    """Code that comes with the weights, run because it is trusted.

    Raises:
        PermissionError: it is not.
        ValueError: there is no such code.
    """
    told = source.config.get("auto_map") or {}
    kind = next((each for each in ("AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModel") if each in told), None)
    if kind is None:
        raise ValueError(f"{source.name}: auto_map of config.json names no code that is a model")
    if not source.trust:
        raise PermissionError(
            f"{source.name}: {told[kind]} is code that comes with it, and to load it is to run it: read it, then say "
            "trust=True"
        )
    return Remote(pretrained(getattr(transformers(), kind), source), source.vocab_size, source.mask_id)
