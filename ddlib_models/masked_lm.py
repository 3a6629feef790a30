"""Masked language models of Hugging Face's, BERT and its kin, as backbones: pretrained, or of their architecture.

Needs transformers: ``pip install 'ddlib[hf]'``. Only its own classes are used and no remote code is run.
"""

import json
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ddlib_models.pretrained import Pretrained

# what config.json says of one machine or one copy, and what could send transformers to code of the hub
_DROPPED = ("_name_or_path", "_attn_implementation", "attn_implementation", "auto_map", "quantization_config")


class MaskedLM(Pretrained, nn.Module):
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

    def __init__(
        self, num_states: int, vocab_size: int, architecture: dict[str, Any], mask_id: int | None = None
    ) -> None:
        super().__init__()
        if vocab_size < 1:
            raise ValueError(f"vocab_size={vocab_size}: must be at least 1")
        if vocab_size > num_states:
            raise ValueError(f"vocab_size={vocab_size}: words are states, so it must be <= num_states={num_states}")
        if mask_id is None and num_states > vocab_size:
            raise ValueError(
                f"mask_id=None: must be a row of the model's table, as num_states={num_states} exceeds "
                f"vocab_size={vocab_size} and the last state is the mask"
            )
        self.num_states, self.vocab_size, self.mask_id = num_states, vocab_size, mask_id
        config = _config(architecture)
        model = _transformers().AutoModelForMaskedLM
        self._adopt(model.from_config(config, dtype=torch.float32, trust_remote_code=False))

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
        self._check(z, t)
        seen = {} if present is None else {"attention_mask": present.long()}
        return self.network(inputs_embeds=self.embed(z), return_dict=True, **seen).logits

    def words(self) -> tuple[Float[Tensor, "V D"], Float[Tensor, " V"] | None]:
        """The words' rows of the output layer's matrix and bias."""
        bias = self.decoder.bias
        return self.decoder.weight[: self.vocab_size], None if bias is None else bias[: self.vocab_size]

    def embed(self, z: Int[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        """The embeddings of states, before positions and norm are added."""
        table = self.network.get_input_embeddings()
        if self.mask_id is None:
            return table(z)
        x = table(torch.where(z < self.vocab_size, z, self.mask_id))
        if self.clusters is None:
            return x
        between = (z >= self.vocab_size) & (z < self.num_states - 1)
        own = self.clusters(torch.where(between, z - self.vocab_size, 0))
        return torch.where(between[..., None], own, x)

    @property
    def blocks(self) -> nn.ModuleList:
        lists = [part for part in self.network.modules() if isinstance(part, nn.ModuleList)]
        alike = [part for part in lists if len({type(block) for block in part}) == 1]
        if not alike:
            raise AttributeError(f"{type(self.network).__name__} has no list of layers of one class")
        return max(alike, key=len)

    @torch.no_grad()
    def _adopt(self, network: nn.Module) -> None:
        """Takes the network, splits its output layer off, and begins the clusters at its mask token."""
        name, decoder = type(network).__name__, network.get_output_embeddings()
        if not isinstance(decoder, nn.Linear):
            raise ValueError(f"architecture: {name} has no linear output layer, which a masked language model needs")
        table = network.get_input_embeddings()
        if not isinstance(table, nn.Embedding):
            raise ValueError(f"architecture: the input of {name} is {type(table).__name__}, must be an nn.Embedding")
        rows = min(table.num_embeddings, decoder.out_features)
        if self.vocab_size > rows:
            raise ValueError(f"vocab_size={self.vocab_size}: must be <= {rows}, the rows of {name}'s table")
        if self.mask_id is not None and not 0 <= self.mask_id < table.num_embeddings:
            raise ValueError(f"mask_id={self.mask_id}: must lie in 0..{table.num_embeddings - 1}, {name}'s table")
        sample = [word for word in range(min(self.vocab_size, 5)) if word != network.config.pad_token_id]
        sample += [] if self.mask_id is None else [self.mask_id]
        self.max_length = _max_length(network)
        ids = torch.tensor([sample[-self.max_length :] if self.max_length else sample], device=table.weight.device)
        training, known = network.training, ids.numel() > 0 and not ids.is_meta
        network.eval()
        whole = network(input_ids=ids, return_dict=True).logits[..., : self.vocab_size] if known else None

        network.set_output_embeddings(_Through())
        self.network, self.decoder = network, decoder
        self.clusters = None
        if (between := self.num_states - 1 - self.vocab_size) > 0:
            mask = table(torch.tensor(self.mask_id, device=table.weight.device))  # through it: it may scale
            self.clusters = nn.Embedding(between, len(mask), device=mask.device, dtype=mask.dtype)
            self.clusters.weight.copy_(mask.expand(between, -1))
        if whole is not None:
            z = ids.clone()
            if self.mask_id is not None:
                z[:, -1] = self.num_states - 1
            self._compare(whole, z)
        network.train(training)

    def _compare(self, whole: Tensor, z: Tensor) -> None:
        """Refuses a network whose two halves are not the whole: one that scales its input or adds to its output."""
        try:
            halves = self(z, torch.zeros(len(z), device=z.device))
        except (TypeError, AttributeError, RuntimeError) as error:
            raise ValueError(f"architecture: {self._name} cannot be split: {error}") from error
        if not torch.allclose(halves, whole, rtol=1e-3, atol=1e-3 * float(whole.abs().max())):
            raise ValueError(
                f"architecture: {self._name} gives other logits when read through inputs_embeds and split in two"
            )

    @property
    def _name(self) -> str:
        return type(self.network).__name__

    def _check(self, z: Tensor, t: Tensor) -> None:
        if z.ndim != 2 or t.shape != z.shape[:1]:
            raise ValueError(f"z has shape {tuple(z.shape)}, t {tuple(t.shape)}: expected (B, L) and (B,)")
        if self.max_length is not None and z.shape[1] > self.max_length:
            raise ValueError(
                f"z has {z.shape[1]} positions: must have at most {self.max_length}, as many as {self._name} knows"
            )
        if z.device.type == "cpu" and z.numel() and not torch.compiler.is_compiling():
            low, high = int(z.min()), int(z.max())
            if low < 0 or high >= self.num_states:
                raise ValueError(f"z holds states {low}..{high}: must lie in 0..num_states-1={self.num_states - 1}")


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
            are missing; or see ``MaskedLM``.
    """
    transformers = _transformers()
    hub = {"trust_remote_code": False} | ({} if revision is None else {"revision": revision})
    try:
        read = transformers.AutoConfig.from_pretrained(name_or_path, **hub)
    except OSError as error:
        said = str(error).strip().splitlines()[0]
        raise ValueError(
            f"name_or_path={name_or_path!r}: no folder with a model here, and the hub says: {said}"
        ) from error
    architecture = _plain(read)
    config = _config(architecture)
    mask_id = None if num_states == vocab_size else _mask_id(name_or_path, mask_token, vocab_size, hub)
    with torch.device("meta"):  # the weights to come are those of the folder
        model = MaskedLM(num_states, vocab_size, architecture, mask_id)
    network, told = transformers.AutoModelForMaskedLM.from_pretrained(
        name_or_path, config=config, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **hub
    )
    if told["missing_keys"]:
        raise ValueError(
            f"name_or_path={name_or_path!r}: the file has no {', '.join(sorted(told['missing_keys']))}, which "
            f"{type(network).__name__} needs"
        )
    model._adopt(network)
    return model.eval()


class _Through(nn.Identity):
    """What stands in for the output layer; some architectures ask it for these."""

    weight = bias = None


def _transformers() -> ModuleType:
    try:
        import transformers
    except ModuleNotFoundError as error:
        message = "ddlib_models.masked_lm needs transformers: pip install 'ddlib[hf]'"
        raise ModuleNotFoundError(message, name=error.name) from error
    return transformers


def _plain(config: Any) -> dict[str, Any]:
    """A configuration of transformers' in JSON, whole, so that other defaults of another version change nothing."""
    given = json.loads(config.to_json_string(use_diff=False))
    return {key: value for key, value in given.items() if key not in _DROPPED}


def _config(architecture: dict[str, Any]) -> Any:
    """The configuration that JSON says, if it is that of a bidirectional masked language model."""
    transformers = _transformers()
    given = {key: value for key, value in architecture.items() if key not in _DROPPED}
    kind = given.pop("model_type", None)
    if kind is None:
        raise ValueError(f"architecture: must have a model_type, got {', '.join(architecture) or 'nothing'}")
    config = transformers.AutoConfig.for_model(kind, **given)
    if type(config) not in transformers.MODEL_FOR_MASKED_LM_MAPPING:
        raise ValueError(f"architecture: transformers has no masked language model of model_type {kind!r}")
    for flag in ("is_decoder", "is_encoder_decoder"):
        if getattr(config, flag, False):
            raise ValueError(f"architecture: {kind!r} with {flag}=True is causal, must be bidirectional")
    return config


def _mask_id(name: str, mask_token: str | int | None, vocab_size: int, hub: dict[str, Any]) -> int:
    if isinstance(mask_token, int):
        return mask_token
    try:
        tokenizer = _transformers().AutoTokenizer.from_pretrained(name, **hub)
    except (OSError, ValueError) as error:
        raise ValueError(f"mask_token={mask_token!r}: must be an id, as {name} has no tokenizer that loads") from error
    if len(tokenizer) < vocab_size:  # where no file says what the tokens are, transformers makes up a handful
        raise ValueError(
            f"vocab_size={vocab_size}: must be <= {len(tokenizer)}, the tokens of {name}'s tokenizer, or give "
            f"mask_token as an id"
        )
    token = tokenizer.mask_token if mask_token is None else mask_token
    if token is None:
        raise ValueError(f"mask_token=None: must be a token or an id, as the tokenizer of {name} has no mask token")
    known = tokenizer.get_vocab()
    if token not in known:
        raise ValueError(f"mask_token={token!r}: must be a token of {name}'s tokenizer, which does not know it")
    return known[token]


def _max_length(network: nn.Module) -> int | None:
    limits = [getattr(network.config, "max_position_embeddings", None) or 0]
    for name, part in network.named_modules():
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding):
            # RoBERTa and its kin count positions from padding_idx + 1
            limits.append(part.num_embeddings - (0 if part.padding_idx is None else part.padding_idx + 1))
    return min((limit for limit in limits if limit > 0), default=None)
