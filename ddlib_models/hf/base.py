"""Hugging Face language models as backbones: the base class of encoders and decoders."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import ModuleType
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from huggingface_hub.errors import StrictDataclassError
from jaxtyping import Float, Int
from torch import Tensor, nn

from ddlib_models.io.json_files import line, read_model_config
from ddlib_models.io.pretrained import Pretrained
from ddlib_models.io.safetensors import load_from_safetensors
from ddlib_models.validation import check_states

# keys of config.json that concern one machine or copy, and those that could make transformers run
# code of the hub
_DROPPED = (
    "_name_or_path",
    "_attn_implementation",
    "attn_implementation",
    "auto_map",
    "quantization_config",
)

_FACTORS = (1.0, 64.0)
"""Factors of the output layer's input at which a network is compared with its halves: a cap of its
logits changes small ones less than rounding does.
"""


class HFBackbone(Pretrained, nn.Module, ABC):
    """A language model of transformers whose inputs are states of a process and whose outputs are
    token logits.

        logits = features @ weight.T + bias,   weight and bias the output layer's rows of the tokens

    Tokens are the ids 0..V-1 of the model's tokenizer; rows of the model's tables beyond them have
    no logits. States beyond the tokens have separate embeddings, except for a mask that uses a row
    of the model's table.

    Args:
        num_states: number of input states, at least ``vocab_size``.
        vocab_size: number of predicted tokens, at most the rows of the model's table.
        architecture: transformers' configuration of the model in JSON, with its ``model_type``.
        mask_id: row of the model's table that embeds the last state; None for a separate embedding.

    Attributes:
        blocks: the layers; there is no such attribute if the network has no list of layers of one
            class.
        max_length: maximum sequence length, or None.
    """

    auto = ""
    """Name of the transformers class that builds the network from a configuration."""

    def __init__(
        self,
        num_states: int,
        vocab_size: int,
        architecture: dict[str, Any],
        mask_id: int | None = None,
    ) -> None:
        super().__init__()
        check_states(num_states, vocab_size)
        if mask_id is not None and num_states == vocab_size:
            raise ValueError(
                f"mask_id={mask_id}: must be None, as all num_states={num_states} states are tokens"
            )
        self.num_states = num_states
        self.vocab_size = vocab_size
        self.mask_id = mask_id
        config = self.configuration(architecture)
        auto = getattr(transformers_of(self), self.auto)
        self._adopt(auto.from_config(config, dtype=torch.float32, trust_remote_code=False))

    @classmethod
    @abstractmethod
    def configuration(cls, architecture: dict[str, Any]) -> Any:
        """Return transformers' configuration, if this class supports its network.

        Raises:
            ValueError: it does not.
        """

    @abstractmethod
    def features(self, z: Int[Tensor, "B L"], t: Float[Tensor, "*batch"]) -> Float[Tensor, "B L D"]:
        """Compute the output layer's input, so that ``forward`` is ``features(...) @ weight.T +
        bias``.
        """

    def output_weights(self) -> tuple[Float[Tensor, "V D"], Float[Tensor, " V"] | None]:
        """Return the tokens' rows of the output layer's matrix and bias."""
        bias = self.decoder.bias
        return self.decoder.weight[: self.vocab_size], None if bias is None else bias[
            : self.vocab_size
        ]

    def embed(self, z: Int[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        """Embed states, without the position embeddings and the norm."""
        table = self.network.get_input_embeddings()
        if self.num_states == self.vocab_size:
            return table(z)
        x = table(torch.where(z < self.vocab_size, z, 0 if self.mask_id is None else self.mask_id))
        if self.clusters is None:
            return x
        row = z - self.vocab_size
        is_cluster = (row >= 0) & (row < self.clusters.num_embeddings)
        return torch.where(is_cluster[..., None], self.clusters(torch.where(is_cluster, row, 0)), x)

    @property
    def blocks(self) -> nn.ModuleList:
        lists = [part for part in self.network.modules() if isinstance(part, nn.ModuleList)]
        alike = [part for part in lists if len({type(block) for block in part}) == 1]
        if not alike:
            raise AttributeError(
                f"{type(self.network).__name__} has no ModuleList of layers of one class"
            )
        return max(alike, key=len)

    def _read(self, x: Float[Tensor, "B L D"], **options: Any) -> Float[Tensor, "B L D"]:
        """Run the network between its embeddings and its output layer."""
        return self.network(inputs_embeds=x, return_dict=True, **options).logits

    def _begin(self, table: nn.Module) -> Float[Tensor, " D"]:
        """Return the initial embedding of states that have no row in the network's table."""
        # through the table: it may scale
        return table(torch.tensor(self.mask_id, device=table.weight.device))

    @torch.no_grad()
    def _adopt(self, network: nn.Module) -> None:
        """Attach the network, split off its output layer, and initialise the embeddings of the
        additional states.
        """
        name = type(network).__name__
        decoder = network.get_output_embeddings()
        if not isinstance(decoder, nn.Linear):
            raise ValueError(
                f"architecture: {name} has no linear output layer, which a language model needs"
            )
        table = network.get_input_embeddings()
        if not isinstance(table, nn.Embedding):
            raise ValueError(
                f"architecture: the input of {name} is {type(table).__name__}, must be an "
                "nn.Embedding"
            )
        rows = min(table.num_embeddings, decoder.out_features)
        if self.vocab_size > rows:
            raise ValueError(
                f"vocab_size={self.vocab_size}: must be <= {rows}, the rows of {name}'s table"
            )
        if self.mask_id is not None and not 0 <= self.mask_id < table.num_embeddings:
            raise ValueError(
                f"mask_id={self.mask_id}: must lie in 0..{table.num_embeddings - 1}, {name}'s table"
            )
        sample = [
            token
            for token in range(min(self.vocab_size, 5))
            if token != network.config.pad_token_id
        ]
        sample += [] if self.mask_id is None else [self.mask_id]
        self.max_length = _max_length(network)
        ids = torch.tensor(
            [sample[-self.max_length :] if self.max_length else sample], device=table.weight.device
        )
        training = network.training
        has_values = ids.numel() > 0 and not ids.is_meta
        network.eval()
        expected = []
        for factor in _FACTORS if has_values else ():
            amplified = decoder.register_forward_pre_hook(
                lambda _, inputs, factor=factor: inputs[0] * factor
            )
            logits = network(input_ids=ids, return_dict=True).logits
            expected.append(logits[..., : self.vocab_size])
            amplified.remove()

        network.set_output_embeddings(_Placeholder())
        self.network = network
        self.decoder = decoder
        self.clusters = None
        if (num_clusters := self.num_states - self.vocab_size - (self.mask_id is not None)) > 0:
            first = self._begin(table)
            self.clusters = nn.Embedding(
                num_clusters, len(first), device=first.device, dtype=first.dtype
            )
            self.clusters.weight.copy_(first.expand(num_clusters, -1))
        if expected:
            z = ids.clone()
            if self.mask_id is not None:
                z[:, -1] = self.num_states - 1
            self._compare(expected, z)
        network.train(training)

    def _compare(self, expected: Sequence[Tensor], z: Tensor) -> None:
        """Raise if the two halves do not give the whole network: it scales its input, or adds to
        its output or caps it.

        Args:
            expected: the logits of the whole network, with the input of its output layer multiplied
                by each of ``_FACTORS``.
            z: the states that give them.
        """
        try:
            features = self._read(self.embed(z))
            halves = [F.linear(features * factor, *self.output_weights()) for factor in _FACTORS]
        except (TypeError, AttributeError, RuntimeError) as error:
            raise ValueError(f"architecture: {self._name} cannot be split: {error}") from error
        for found, logits in zip(halves, expected, strict=True):
            if not torch.allclose(found, logits, rtol=1e-3, atol=1e-3 * float(logits.abs().max())):
                raise ValueError(
                    f"architecture: {self._name} returns other logits with inputs_embeds and a "
                    "separate output layer, as a network does that scales or caps its logits"
                )

    @property
    def _name(self) -> str:
        return type(self.network).__name__

    def _check(
        self, z: Tensor, t: Tensor, shapes: Sequence[tuple[int, ...]], expected: str, first: int = 0
    ) -> None:
        if z.ndim != 2 or t.shape not in shapes:
            raise ValueError(
                f"z has shape {tuple(z.shape)}, t {tuple(t.shape)}: expected (B, L) and {expected}"
            )
        if self.max_length is not None and (count := first + z.shape[1]) > self.max_length:
            raise ValueError(
                f"z has {count} positions: must have at most {self.max_length}, the maximum of "
                f"{self._name}"
            )
        if z.device.type == "cpu" and z.numel() and not torch.compiler.is_compiling():
            low = int(z.min())
            high = int(z.max())
            if low < 0 or high >= self.num_states:
                raise ValueError(
                    f"z holds states {low}..{high}: must lie in "
                    f"0..num_states-1={self.num_states - 1}"
                )


A = TypeVar("A", bound=HFBackbone)


def transformers_config(kind: type[HFBackbone], name_or_path: str, hub: dict[str, Any]) -> Any:
    """Read transformers' configuration of a folder or a repository.

    Args:
        kind: the calling class, for messages.
        name_or_path: folder or repository of the model.
        hub: keywords of transformers' ``from_pretrained``, from ``hub_options``.

    Raises:
        ValueError: there is no such model; config.json is broken; the weights are quantised.
    """
    # raises for a missing transformers before any file is read
    auto = transformers_of(kind).AutoConfig
    read_model_config(name_or_path, f"name_or_path={name_or_path!r}", hub.get("revision"))
    try:
        config = auto.from_pretrained(name_or_path, **hub)
    except (OSError, ValueError, StrictDataclassError) as error:
        raise ValueError(
            f"name_or_path={name_or_path!r}: no model of transformers: {line(error)}"
        ) from error
    if getattr(config, "quantization_config", None):
        raise ValueError(
            f"name_or_path={name_or_path!r}: has quantised weights, must have the original ones"
        )
    return config


def load_weights(
    model: A, name_or_path: str, hub: dict[str, Any], architecture: dict[str, Any]
) -> A:
    """Load the weights of a folder or a repository into the model, in evaluation mode and float32.

    The weights are read from safetensors only, so nothing is unpickled, and by transformers'
    classes.

    Raises:
        OSError: no safetensors among the files.
        ValueError: weights missing from the files or unknown to the network, or a network that is
            not supported.
    """
    network = load_from_safetensors(
        getattr(transformers_of(model), model.auto),
        name_or_path,
        f"name_or_path={name_or_path!r}",
        config=model.configuration(architecture),
        dtype=torch.float32,
        **hub,
    )
    model._adopt(network)
    return model.eval()


def hub_options(revision: str | None) -> dict[str, Any]:
    """Return the keywords for all of transformers' readers of a repository."""
    return {"trust_remote_code": False} | ({} if revision is None else {"revision": revision})


def token_id(
    kind: type[HFBackbone],
    name: str,
    mask_token: str | int | None,
    vocab_size: int,
    hub: dict[str, Any],
) -> int:
    """Return the id of the token used as the mask.

    Raises:
        ValueError: there is none, or no tokenizer.
    """
    if isinstance(mask_token, bool):  # True is an int, and would be the second row
        raise ValueError(f"mask_token={mask_token}: must be a token or an id")
    if isinstance(mask_token, int):
        return mask_token
    try:
        tokenizer = transformers_of(kind).AutoTokenizer.from_pretrained(name, **hub)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"mask_token={mask_token!r}: must be an id, as {name} has no valid tokenizer"
        ) from error
    # without tokenizer files, transformers makes a tokenizer of a few tokens
    if len(tokenizer) < vocab_size:
        raise ValueError(
            f"vocab_size={vocab_size}: must be <= {len(tokenizer)}, the tokens of {name}'s "
            "tokenizer, or give "
            f"mask_token as an id"
        )
    token = tokenizer.mask_token if mask_token is None else mask_token
    if token is None:
        raise ValueError(
            f"mask_token=None: must be a token or an id, as the tokenizer of {name} has no mask "
            "token"
        )
    vocabulary = tokenizer.get_vocab()
    if token not in vocabulary:
        raise ValueError(
            f"mask_token={token!r}: must be a token of {name}'s tokenizer, which does not contain "
            "it"
        )
    return vocabulary[token]


def plain(config: Any) -> dict[str, Any]:
    """Return a transformers configuration as JSON with all defaults, which other versions may
    change.
    """
    values = json.loads(config.to_json_string(use_diff=False))
    return {key: value for key, value in values.items() if key not in _DROPPED}


def config_of(kind: type[HFBackbone], architecture: dict[str, Any]) -> tuple[Any, str]:
    """Build the configuration from JSON, with its ``model_type``.

    Raises:
        ValueError: it has none, or values that its class does not accept.
    """
    values = {key: value for key, value in architecture.items() if key not in _DROPPED}
    name = values.pop("model_type", None)
    if name is None:
        raise ValueError(
            f"architecture: must have a model_type, got {', '.join(architecture) or 'nothing'}"
        )
    try:
        return transformers_of(kind).AutoConfig.for_model(name, **values), name
    except StrictDataclassError as error:
        raise ValueError(f"architecture: {name} does not accept it: {line(error)}") from error


def transformers_of(asker: object) -> ModuleType:
    """Import transformers, or raise the error that names the class that requires it."""
    return transformers_for((asker if isinstance(asker, type) else type(asker)).__module__)


def transformers_for(module: str) -> ModuleType:
    """Import transformers, or raise the error that names the module that requires it."""
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{module} needs transformers: pip install 'ddlib[hf]'", name=error.name
        ) from error
    return transformers


class _Placeholder(nn.Identity):
    """Placeholder of the output layer, with the attributes that some architectures read."""

    weight = bias = None


def _max_length(network: nn.Module) -> int | None:
    limits = [getattr(network.config, "max_position_embeddings", None) or 0]
    for name, part in network.named_modules():
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding):
            # RoBERTa-like models count positions from padding_idx + 1
            limits.append(
                part.num_embeddings - (0 if part.padding_idx is None else part.padding_idx + 1)
            )
    return min((limit for limit in limits if limit > 0), default=None)
