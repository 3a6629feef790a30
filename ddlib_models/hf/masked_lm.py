"""Masked language models of Hugging Face (BERT and similar) as backbones, pretrained or randomly
initialised.

Requires transformers: ``pip install 'ddlib[hf]'``. Only its own classes are used and no remote code
is run.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ddlib_models.hf.base import (
    HFBackbone,
    config_of,
    hub_options,
    load_weights,
    plain,
    token_id,
    transformers_config,
    transformers_of,
)


class MaskedLM(HFBackbone):
    """A masked language model of transformers over states of a process: (z, t) -> logits over
    tokens.

        logits(z, t) = features(z, t) @ weight.T + bias,
        weight and bias the output layer's rows of the tokens

    Tokens are the ids 0..V-1 of the model's tokenizer. The mask, the last state, is embedded as the
    model's mask token. Clusters have separate embeddings, initialised at that of the mask token.
    Rows of the model's tables beyond the tokens, padding or special tokens, have no logits.

    The time is ignored, as the noise level is visible in the input. Every position attends to every
    other one that the architecture allows, and none is padding: RoBERTa's ``pad_token_id`` is an
    ordinary token with its position. Dropout is that of the configuration, in training mode.

    This constructor gives random weights, see ``masked_lm`` for pretrained ones. The object is a
    ``SplitDenoiser`` of ddlib. ``save_pretrained`` writes all that ``from_pretrained`` needs; the
    source folder is no longer needed.

    Args:
        num_states: number of input states, at least ``vocab_size``.
        vocab_size: number of predicted tokens, at most the rows of the model's table.
        architecture: transformers' configuration of the model in JSON, with its ``model_type``.
        mask_id: row of the mask token in the model's table; None only if all states are tokens.

    Attributes:
        blocks: the encoder's layers; there is no such attribute if the network has no list of
            layers of one class.
        max_length: maximum sequence length, or None.

    Raises:
        ModuleNotFoundError: transformers is not installed.
        ValueError: naming the argument, its value and the rule it breaks; or the architecture is
            not a masked language model, or one without ``inputs_embeds`` or a linear output layer.
    """

    auto = "AutoModelForMaskedLM"
    takes_padding = True  # ddlib.typing.TakesPadding

    def __init__(
        self,
        num_states: int,
        vocab_size: int,
        architecture: dict[str, Any],
        mask_id: int | None = None,
    ) -> None:
        if mask_id is None and num_states > vocab_size > 0:
            raise ValueError(
                f"mask_id=None: must be a row of the model's table, as num_states={num_states} "
                "exceeds "
                f"vocab_size={vocab_size} and the last state is the mask"
            )
        super().__init__(num_states, vocab_size, architecture, mask_id)

    @classmethod
    def configuration(cls, architecture: dict[str, Any]) -> Any:
        config, kind = config_of(cls, architecture)
        if type(config) not in transformers_of(cls).MODEL_FOR_MASKED_LM_MAPPING:
            raise ValueError(
                f"architecture: transformers has no masked language model of model_type {kind!r}"
            )
        for flag in ("is_decoder", "is_encoder_decoder"):
            if getattr(config, flag, False):
                raise ValueError(
                    f"architecture: {kind!r} with {flag}=True is causal, must be bidirectional"
                )
        return config

    def forward(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, " B"],
        *,
        present: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L V"]:
        """Compute logits over tokens at every position.

        Args:
            z: noisy states in 0..num_states-1.
            t: one time in [0, 1] per sequence, which is ignored.
            present: False at positions that are never attended to, such as padding; None: all are
                present.

        Raises:
            ValueError: if the shapes disagree, the sequences are longer than ``max_length``, or a
                CPU tensor holds a state out of range.
        """
        return F.linear(self.features(z, t, present=present), *self.output_weights())

    def features(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, " B"],
        *,
        present: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Compute the output layer's input, so that ``forward`` is ``features(...) @ weight.T +
        bias``.
        """
        self._check(z, t, [z.shape[:1]], "(B,)")
        options = {} if present is None else {"attention_mask": present.long()}
        return self._read(self.embed(z), **options)


def masked_lm(
    num_states: int,
    vocab_size: int,
    name_or_path: str,
    *,
    revision: str | None = None,
    mask_token: str | int | None = None,
) -> MaskedLM:
    """Load a pretrained masked language model as a backbone, in evaluation mode and float32.

    The weights are read from safetensors only, so nothing is unpickled, and by transformers'
    classes.

    Args:
        num_states: see ``MaskedLM``.
        vocab_size: see ``MaskedLM``; tokens are the ids of the model's tokenizer.
        name_or_path: a folder written by transformers, or the id of a repository on the hub.
        revision: branch, tag or commit of the repository.
        mask_token: the token used as the mask, or its id; by default that of the tokenizer beside
            the weights. With an id no tokenizer is read.

    Raises:
        ModuleNotFoundError: transformers is not installed.
        OSError: no safetensors among the files.
        ValueError: there is no such model; no mask token; the tokenizer or the table has fewer rows
            than tokens; weights that do not fit, are broken or quantised; or see ``MaskedLM``.
    """
    hub = hub_options(revision)
    architecture = plain(transformers_config(MaskedLM, name_or_path, hub))
    MaskedLM.configuration(architecture)  # raises before the tokenizer is read
    mask_id = (
        None
        if num_states == vocab_size
        else token_id(MaskedLM, name_or_path, mask_token, vocab_size, hub)
    )
    with torch.device("meta"):  # the weights will be those of the folder
        model = MaskedLM(num_states, vocab_size, architecture, mask_id)
    return load_weights(model, name_or_path, hub, architecture)
