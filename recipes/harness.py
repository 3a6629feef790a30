"""Zero-shot tasks of the lm-evaluation-harness for a trained model, by its bound on the likelihood.

    python -m recipes.harness --model ddlib --model_args pretrained=runs/owt/hdlm,samples=16 --tasks
    arc_easy,hellaswag

The arguments are those of ``lm_eval``, which up to release 0.4.13 reads no entry points. Its
log-likelihood is here minus an upper bound of -log p, estimated with ``samples`` draws of time and
noise, the same for all choices of a question. As in the HDLM paper it is that of context and
completion together, without padding; with ``conditional=True`` that of the completion alone, the
context given.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from operator import eq
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor

import ddlib as dd
from recipes.config import at_least, check_keys, own_times
from recipes.console import command, plain_errors
from recipes.generation.prompt import Row as PromptRow
from recipes.generation.prompt import batches, check_known
from recipes.generation.samples import Sample, batched, draw_batch, protocol, until
from recipes.generation.sampling import Sampling
from recipes.metrics import with_tokens
from recipes.model_io import Precision, find_saved, measured_length

try:
    import lm_eval.models  # noqa: F401  fills the registry, which stays empty if this model is the first entry
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.api.registry import model_registry
    from tqdm import tqdm
except ImportError as error:
    raise ModuleNotFoundError('zero-shot tasks need lm_eval: pip install "ddlib[eval]"') from error

NAME = "ddlib"
GENERATED = 256
"""Default number of tokens of a task that sets none."""
SHOWN = 40
"""Number of characters at the end of a context that an error shows."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Row:
    """A text to be measured."""

    words: tuple[int, ...]
    given: int
    """Number of tokens at the beginning that are not measured."""
    key: int
    """Key of the noise: equal for the choices of one question."""


@dataclass(frozen=True)
class Pair:
    """A context and its continuation."""

    words: tuple[int, ...]
    """Tokens of both together."""
    shared: int
    """Number of tokens at the beginning that are those of the context alone."""
    context: str
    key: int
    """Key of the noise: equal for the choices of one question."""


@dataclass(frozen=True)
class Job:
    """A text to be drawn."""

    request: Instance
    sample: Sample
    temperature: float
    limit: int
    """Largest number of tokens behind the context."""


class DiffusionLM(LM):
    """A trained diffusion model as a model of ``lm_eval``.

    ``is_greedy`` is always False: a bound does not determine greedy decoding. So the accuracy of
    tasks that rest on it, such as LAMBADA's, means nothing here; that of multiple choice does not
    use it.

    Args:
        pretrained: folder of a run or of weights, or owner/name on the Hugging Face hub, also of a
            third-party denoiser.
        samples: draws of time and noise for each text, at stratified times.
        conditional: measure the completion given the context instead of both together. The context
            then stays clean and only the completion is noised: the bound of -log p(completion |
            context) of a model that samples it as ``dd.sample`` does behind a prompt. A token
            across the border belongs to the completion.
        per_token: divide by the number of tokens that are measured, so that choices of several
            lengths compare by nats per token; not for whole texts, whose perplexities need the sum.
        seed: seed of the noise.
        batch_size: texts at a time, each with all its samples.
        device: the default of ``lm_eval`` is cuda:0; without CUDA it is the CPU.
        precision: precision of the network.
        steps, sampler, top_p: for tasks that generate.
        trust: modules that third-party weights may import parts from, as package.module, with +
            between several; or the name of a third-party model, to run code that comes with it.
        length: tokens of a sequence; by default as in training, and at most 512 for a third-party
            model.
        family, mask_token, block_size: of a third-party model, see ``ddlib_models.hub.load``.
        revision: branch, tag or commit of a repository on the hub.

    Raises:
        ValueError: a value out of range, or as in ``open_saved``.
    """

    def __init__(
        self,
        pretrained: str,
        samples: int = 16,
        conditional: bool = False,
        per_token: bool = False,
        seed: int = 0,
        batch_size: int = 1,
        device: str | None = None,
        precision: Precision = "float32",
        steps: int = 128,
        sampler: str = "ancestral",
        top_p: float = 1.0,
        trust: str = "",
        length: int | None = None,
        family: str | None = None,
        mask_token: str | None = None,
        block_size: int | None = None,
        revision: str | None = None,
    ) -> None:
        super().__init__()
        if not str(batch_size).isdigit():
            raise ValueError(f"batch_size={batch_size!r}: must be a number of texts")
        at_least(
            1, samples=samples, batch_size=int(batch_size), length=1 if length is None else length
        )
        at_least(0, seed=seed)
        self._device = torch.device(device or "cuda")
        if self._device.type == "cuda" and not torch.cuda.is_available():
            self._device = torch.device("cpu")
        self.sampling = Sampling(steps=steps, sampler=sampler, top_p=top_p)
        trusted = str(trust).split("+") if trust else ()
        # lm_eval converts strings that look like numbers
        mask, version = (None if one is None else str(one) for one in (mask_token, revision))
        found = find_saved(
            pretrained, self._device, precision, trusted, family, mask, block_size, version
        )
        self.sampling.check_files(found.files)
        self.saved = found.load()
        self._block = self.saved.pace.block or 1
        self.length = measured_length(self.saved, length, self._block)
        at_least(len(self.saved.beginning) + 1, length=self.length)
        self.samples = samples
        self.seed = seed
        self.batch_size = int(batch_size)
        self.conditional = conditional
        self.per_token = per_token
        log.info("a likelihood is %s", self.likelihood)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> Self:
        """Build the model from ``--model_args`` and the flags for a model.

        ValueError for keys that it lacks.
        """
        check_keys("--model_args", arg_dict, cls)
        return super().create_from_arg_obj(arg_dict, additional_config)

    @property
    def likelihood(self) -> str:
        """Description of the quantity in place of a log-likelihood, and its number of draws."""
        measured = "completion given context" if self.conditional else "context and completion"
        unit = "nats per token" if self.per_token else "nats"
        return f"-NELBO of {measured}, mean of {self.samples} draws, in {unit}"

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return minus the bound of every (context, continuation) in nats, and False.

        The beginning of text is given. If a text is longer than the model's sequences, all texts of
        its question lose the same number of tokens at the beginning of their contexts.

        Raises:
            ValueError: a continuation without tokens behind a context that is given, or empty.
        """
        self._at_one_time()
        rows = self._rows(requests)
        sizes = [len(row.words) - row.given if self.per_token else 1 for row in rows]
        return [
            (-nats / n, False)
            for nats, n in zip(self._bounds(rows, disable_tqdm), sizes, strict=True)
        ]

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Return minus the bound of every text in nats.

        A long one is cut into independent windows.
        """
        self._at_one_time()
        rows = []
        owner = []
        totals = [0.0] * len(requests)
        for number, request in enumerate(requests):
            words = self._words(request.args[0])
            for start in range(0, len(words), self.length):
                window = tuple(words[start : start + self.length])
                rows.append(
                    Row(
                        window,
                        len(self.saved.beginning) if start == 0 else 0,
                        key(request, request.args[0], start),
                    )
                )
                owner.append(number)
        for number, nats in zip(owner, self._bounds(rows, disable_tqdm), strict=True):
            totals[number] -= nats
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Generate text behind each context, up to the first of the task's stops.

        As long as the task allows, but no more than half of the model's sequence; a context longer
        than the rest loses its beginning. Without ``do_sample`` the most probable token is taken at
        every draw.
        """
        jobs = [self._job(request) for request in requests]
        repeats = Counter[int]()
        for job in jobs:
            first = job.sample.number
            job.sample.number += repeats[first]  # a repeated question gets other noise
            repeats[first] += 1
        by_temperature: dict[float, list[Job]] = {}
        for job in jobs:
            by_temperature.setdefault(job.temperature, []).append(job)
        bar = tqdm(total=len(jobs), disable=disable_tqdm)
        for temperature, members in by_temperature.items():
            sampling = replace(self.sampling, temperature=temperature)
            samples = [job.sample for job in members]
            for places in batched(self.saved, samples, sampling, self.batch_size):
                draw_batch(self.saved, [samples[place] for place in places], sampling, self.seed)
                bar.update(len(places))
        return [
            until(job.sample.text(self.saved, job.limit), job.request.args[1].get("until") or ())
            for job in jobs
        ]

    def get_model_info(self) -> dict[str, Any]:
        """Return the metadata that ``lm_eval`` writes beside its results."""
        info = {
            "likelihood": self.likelihood,
            "samples": self.samples,
            "is_greedy": "not computed, always False",
        }
        return protocol(self.saved, self.sampling, self.seed, self.length) | info

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Format a chat as a text; ValueError if the model's tokenizer has no chat template."""
        return self.saved.chat(chat_history, add_generation_prompt)

    @property
    def tokenizer_name(self) -> str:
        """Name under which ``lm_eval`` caches texts of a chat."""
        return self.saved.name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the tokenizer's chat template; there is one only."""
        return getattr(self.saved.tokenizer, "template", None) if chat_template else None

    def _words(self, text: str) -> list[int]:
        """Return the tokens of a text with its beginning, which a chat may include."""
        check_known(self.saved, "text", text, allowed=True)
        beginning = self.saved.beginning
        words = self.saved.encode(text)
        return words if words[: len(beginning)] == beginning else [*beginning, *words]

    def _pair(self, request: Instance) -> Pair:
        """Return the tokens of a request; ValueError if none is to be measured."""
        context, continuation = request.args
        words = self._words(context + continuation)
        # a space between the two belongs to the first token behind it
        alone = self._words(context.rstrip())
        shared = sum(takewhile(bool, map(eq, words, alone)))
        if len(words) == (shared if self.conditional else len(self.saved.beginning)):
            raise ValueError(
                f"continuation={continuation!r}: has no token behind the context "
                f"{context[-SHOWN:]!r}, must have one to be measured"
            )
        return Pair(tuple(words), shared, context, key(request, context))

    def _rows(self, requests: Sequence[Instance]) -> list[Row]:
        """Return the texts to be measured.

        All texts of a question lose the same number of tokens behind the beginning, so that those
        that are left differ by the completion alone; but none loses more than its context, unless
        it is still too long.
        """
        pairs = [self._pair(request) for request in requests]
        excess = Counter[int]()
        shared: dict[tuple[int, str], int] = {}
        for pair in pairs:
            excess[pair.key] = max(excess[pair.key], len(pair.words) - self.length)
            place = pair.key, pair.context
            shared[place] = min(shared.get(place, pair.shared), pair.shared)
        if long := sum(tokens > 0 for tokens in excess.values()):
            log.warning(
                "questions with a text longer than the model's %d tokens: %d. The beginning of "
                "their contexts is left out, the same number of tokens for all choices",
                self.length,
                long,
            )
        return [self._row(pair, excess[pair.key], shared[pair.key, pair.context]) for pair in pairs]

    def _row(self, pair: Pair, excess: int, shared: int) -> Row:
        """Return the text of a pair without the first tokens behind its beginning.

        Args:
            pair: the pair.
            excess: number of tokens by which the longest text of the question is too long.
            shared: number of tokens at the beginning in which the texts of this question and
                context agree with the context alone.
        """
        first = len(self.saved.beginning)
        own = len(pair.words) - self.length
        if own > shared - first:
            log.warning(
                "a continuation is longer than the model's %d tokens: its beginning is left out",
                self.length,
            )
        cut = max(own, min(excess, shared - first))
        given = max(shared - cut, first) if self.conditional else first
        return Row(pair.words[:first] + pair.words[first + cut :], given, pair.key)

    def _job(self, request: Instance) -> Job:
        """Return the sample behind the context of a request."""
        context, options = request.args
        limit = min(int(options.get("max_gen_toks", GENERATED)), self.length // 2)
        words = self._words(context)
        new = self._whole(limit) if self.saved.leads else limit
        temperature = float(options.get("temperature", 1.0)) if options.get("do_sample") else 0.0
        words = words[max(len(words) + new - self.length, 0) :]
        lead = len(words) if self.saved.leads else 0
        length = self.length
        if self.saved.rows == "free":
            length = lead + self._whole(len(words) - lead + limit)
        row = PromptRow(
            context, torch.tensor(words), length, len(words), True, lead, prompted=len(words)
        )
        name = f"{request.task_name} {request.doc_id}"
        return Job(request, Sample(row, key(request, context), name), temperature, limit)

    def _whole(self, count: int) -> int:
        """Round a number of positions to whole blocks of the pace."""
        return -(-count // self._block) * self._block

    def _at_one_time(self) -> None:
        """Raise ValueError for a model with different times of positions.

        Tasks that generate support it.
        """
        if own_times(pace := self.saved.pace, self.length):
            raise ValueError(
                f"pretrained={self.saved.name!r}: has pace={pace!r}, but only bounds with one time "
                "per text are "
                "supported here; python -m recipes.evaluate supports paces"
            )

    @torch.no_grad()
    def _bounds(self, rows: Sequence[Row], disable_tqdm: bool) -> list[float]:
        values = [0.0] * len(rows)
        groups = list(batches(rows, lambda row: len(row.words), self.batch_size))
        for group in tqdm(groups, disable=disable_tqdm):
            for number, nats in zip(
                group, self._bound([rows[n] for n in group]).tolist(), strict=True
            ):
                values[number] = nats
        return values

    def _bound(self, rows: Sequence[Row]) -> Float[Tensor, " N"]:
        """Return the bounds of rows of equal length, in nats: the mean over the samples."""
        device = self._device
        saved = self.saved
        count = self.samples
        x = torch.tensor([row.words for row in rows], device=device).repeat_interleave(count, 0)
        stands = torch.tensor([row.given for row in rows], device=device).repeat_interleave(count)
        fixed = torch.arange(x.shape[1], device=device) < stands[:, None]
        index = torch.tensor([row.key for row in rows], device=device)[:, None] + torch.arange(
            count, device=device
        )
        noise = dd.KeyedGenerator(
            self.seed, 0, index.flatten(), scattered=True
        )  # the same for all choices
        bound = dd.bound(
            saved.process,
            with_tokens(saved.denoiser, x, fixed),
            x,
            noise,
            parameterization=saved.parameterization,
        )
        return torch.where(fixed, 0.0, bound.total.double()).sum(1).view(-1, count).mean(1)


def key(request: Instance, text: str, window: int = 0) -> int:
    """Return the first noise key of a question: its samples use this and the next ones, with
    stratified times.

    All 60 bits are a hash of the question: keys that agreed in their last bits would give all
    questions the same times. That two of 100,000 questions with 16 samples overlap has a
    probability below 1e-6.
    """
    question = f"{request.task_name}\n{request.doc_id}" if request.doc_id is not None else text
    digest = hashlib.sha256(f"{window}\n{question}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 4


if NAME not in model_registry:
    model_registry.register(NAME, target="recipes.harness:DiffusionLM")


def main() -> None:
    from lm_eval.__main__ import cli_evaluate

    with plain_errors():
        cli_evaluate()


if __name__ == "__main__":
    command(main)
