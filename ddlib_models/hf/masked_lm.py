"""Masked language models of Hugging Face's, BERT and its kin, as backbones: pretrained, or of their architecture.

Needs transformers: ``pip install 'ddlib[hf]'``. Only its own classes are used and no remote code is run.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ddlib_models.hf.base import (
    HFBackbone,
    config_of,
    filled,
    hub_options,
    plain,
    read_config,
    token_id,
    transformers_of,
)


class MaskedLM(HFBackbone):
    """A masked language model of transformers' that reads the states of a process: (z, t) -> logits over words.

        logits(z, t) = features(z, t) @ weight.T + bias,   weight and bias the output layer's rows of the words

    Words are the ids 0..V-1 of the model's tokenizer. The mask, the last state, is read as the model's own mask token.
    Clusters have embeddings of their own, which begin at that of the mask token and learn apart. Rows of the model's
    tables beyond the words, padding or special tokens, have no logits.

    The time is ignored: the model sees how noisy its input is. Every position attends to every other one that the
    architecture lets it see, and none is padding: RoBERTa's ``pad_token_id`` is a word like the others and has its
    position. Dropout is that of the configuration, in training mode.

    This constructor gives random weights, see ``masked_lm`` for pretrained ones. The object is a ``SplitDenoiser`` of
    ddlib. ``save_pretrained`` writes all that ``from_pretrained`` needs; the folder it began from may go.

    Args:
        num_states: number of states it can read, at least ``vocab_size``.
        vocab_size: number of words it predicts, at most the rows of the model's table.
        architecture: transformers' configuration of the model in JSON, with its ``model_type``.
        mask_id: row of the mask token in the model's table; None only if all states are words.

    Attributes:
        blocks: the encoder's layers; there is no such attribute if the network has no list of layers of one class.
        max_length: the longest sequence that it can read, or None.

    Raises:
        ModuleNotFoundError: transformers is not installed.
        ValueError: naming the argument, its value and the rule it breaks; or the architecture is no masked language
            model, or none that can be read through ``inputs_embeds`` and has a linear output layer.
    """

    auto = "AutoModelForMaskedLM"

    def __init__(
        self, num_states: int, vocab_size: int, architecture: dict[str, Any], mask_id: int | None = None
    ) -> None:
        if mask_id is None and num_states > vocab_size > 0:
            raise ValueError(
                f"mask_id=None: must be a row of the model's table, as num_states={num_states} exceeds "
                f"vocab_size={vocab_size} and the last state is the mask"
            )
        super().__init__(num_states, vocab_size, architecture, mask_id)

    @classmethod
    def configuration(cls, architecture: dict[str, Any]) -> Any:
        config, kind = config_of(cls, architecture)
        if type(config) not in transformers_of(cls).MODEL_FOR_MASKED_LM_MAPPING:
            raise ValueError(f"architecture: transformers has no masked language model of model_type {kind!r}")
        for flag in ("is_decoder", "is_encoder_decoder"):
            if getattr(config, flag, False):
                raise ValueError(f"architecture: {kind!r} with {flag}=True is causal, must be bidirectional")
        return config

    def forward(
        self, z: Int[Tensor, "B L"], t: Float[Tensor, " B"], *, present: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L V"]:
        """Logits over words at every position.

        Args:
            z: noisy states in 0..num_states-1.
            t: one time in [0, 1] per sequence, which is ignored.
            present: False where nobody looks, such as at padding behind a text; None for everywhere.

        Raises:
            ValueError: if the shapes disagree, the sequences are longer than ``max_length``, or a CPU tensor holds a
                state out of range.
        """
        return F.linear(self.features(z, t, present=present), *self.words())

    def features(
        self, z: Int[Tensor, "B L"], t: Float[Tensor, " B"], *, present: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L D"]:
        """What the output layer reads, so that ``forward`` is ``features(...) @ weight.T + bias``."""
        self._check(z, t, [z.shape[:1]], "(B,)")
        seen = {} if present is None else {"attention_mask": present.long()}
        return self._read(self.embed(z), **seen)


def masked_lm(
    num_states: int,
    vocab_size: int,
    name_or_path: str,
    *,
    revision: str | None = None,
    mask_token: str | int | None = None,
) -> MaskedLM:
    """A pretrained masked language model as a backbone, in evaluation mode and float32.

    The weights are read from safetensors only, so nothing is unpickled, and by transformers' own classes.

    Args:
        num_states: see ``MaskedLM``.
        vocab_size: see ``MaskedLM``; words are the ids of the model's tokenizer.
        name_or_path: a folder that transformers wrote, or the id of a repository on the hub.
        revision: branch, tag or commit of the repository.
        mask_token: the token that stands for the mask, or its id; by default that of the tokenizer beside the weights.
            With an id no tokenizer is read.

    Raises:
        ModuleNotFoundError: transformers is not installed.
        OSError: no safetensors among the files.
        ValueError: there is no such model; no mask token; the tokenizer or the table has fewer rows than words; weights
            that do not fit, are broken or quantised; or see ``MaskedLM``.
    """
    hub = hub_options(revision)
    architecture = plain(read_config(MaskedLM, name_or_path, hub))
    MaskedLM.configuration(architecture)  # refused before the tokenizer is asked
    mask_id = None if num_states == vocab_size else token_id(MaskedLM, name_or_path, mask_token, vocab_size, hub)
    with torch.device("meta"):  # the weights to come are those of the folder
        model = MaskedLM(num_states, vocab_size, architecture, mask_id)
    return filled(model, name_or_path, hub, architecture)
