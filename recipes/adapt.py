"""Convert a causal language model to a diffusion language model: Llama, Qwen, any in transformers;
tune either to instructions.

    python -m recipes.adapt mdlm --from FOLDER                   # masked diffusion
    python -m recipes.adapt hdlm --from FOLDER  # clusters of the model's embeddings
    python -m recipes.adapt scratch --from FOLDER  # a small DiT on the same tokens, to compare
    python -m recipes.adapt mdlm --from FOLDER --text my/texts/ --steps 1000 --model.lora 8
    python -m recipes.adapt mdlm --from FOLDER --sft chats.jsonl --template chat.jinja
    python -m recipes.adapt run --from RUN --sft chats.jsonl  # a run of ddlib

FOLDER is a model saved by transformers, or a name on the hub. The model's tokenizer cuts the text:
the State of the Union addresses, or --text: a file, a folder or a quoted pattern of .txt, .json,
.jsonl or .parquet. --held-out, --sample-by and --unknown are those of python -m recipes.prepare
local, whose table is printed. A second text for the same model needs --data.folder and
--output.folder. With --sft the answers of conversations are learned in place of a text; --template,
--answers and --longest are those of python -m recipes.prepare chat. Bound and samples are taken
before the first step and after the last. --model.shift 0 removes the causal model's shift,
--model.anneal 0 opens its attention at once. The run is an ordinary one: the same command resumes
it, recipes.generate and recipes.evaluate take its folder.
``python -m recipes.adapt mdlm --from FOLDER --help`` shows the values most often changed,
``--help-all`` every value.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from ddlib import parts
from recipes.config import Data, Hardware, Optimizer, Output, Recipe, read_recipe
from recipes.config.command import choose
from recipes.config.help import ALL
from recipes.console import command, plain_errors
from recipes.data import Corpus, Prepared, Source, SymbolCorpus, local
from recipes.data.source import BY_LINE, CUTS, SOTU, SampleBy
from recipes.data.unknown import UNKNOWN
from recipes.model_io.names import CLUSTERS as SAVED_CLUSTERS
from recipes.model_io.names import COUNTS, RECIPE, WEIGHTS

PROG = "python -m recipes.adapt"
CLUSTERS = 64
"""Number of clusters of the variant hdlm, as in the paper."""

OF_TEXT = ("sample_by", "unknown")
"""Arguments of the preparation of a text."""
OF_CHAT = ("template", "answers", "longest")
"""Arguments of the preparation of conversations."""


def variants(name: str) -> Mapping[str, tuple[str, Recipe]]:
    """Return the recipes by name.

    Their numbers of steps and learning rates are for short runs on one machine.

    The rate is that of dllm's conversions, shift and annealing those of DiffuLLaMA;
    ``docs/studies/adapt.md`` cites both.

    Args:
        name: name of the causal model.
    """
    place = Path(name).name
    adapted = Recipe(
        data=Data(folder=Path("data") / f"adapt-{place}", length=128),
        process={"kind": "mdlm"},
        model={"kind": "causal_lm", "name_or_path": name, "shift": 1, "anneal": 100, "lora": 0},
        loss={"weighting": "clip:2", "count_padding": False},
        optimizer=Optimizer(
            lr=1e-4, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.01, warmup=30, final=0.1, ema=0.0
        ),
        hardware=Hardware(threads=1),
        output=Output(
            folder=Path("runs") / f"adapt-{place}" / "mdlm",
            untrained=True,
            validate_every=100,
            validate_sequences=256,
            sample_every=10_000,
            save_every=100,
            keep=1,
        ),
        batch=8,
        steps=300,
    )

    def beside(variant: str, **changes: Any) -> Recipe:
        return replace(
            adapted,
            output=replace(adapted.output, folder=adapted.output.folder.parent / variant),
            **changes,
        )

    values = adapted.model | {"parents": parts.RUN}
    dit = {"kind": "dit", "dim": 128, "depth": 4, "heads": 4}
    faster = replace(adapted.optimizer, lr=1e-3)
    return {
        "mdlm": ("masked diffusion", adapted),
        "hdlm": (
            "tokens, clusters of the model's own embeddings, the mask",
            beside("hdlm", process={"kind": "hdlm", "clusters": CLUSTERS}, model=values),
        ),
        "scratch": (
            "masked diffusion by a small DiT whose initial weights are from the text's frequencies",
            beside("scratch", model=dit, optimizer=faster, start="text"),
        ),
    }


def weights_of(name: str) -> Path | None:
    """Return the folder of the weights of a run of ddlib; None for another model."""
    folder = Path(name) / WEIGHTS if (Path(name) / WEIGHTS).is_dir() else Path(name)
    return folder if (folder / RECIPE).is_file() else None


def of_run(name: str, weights: Path) -> Mapping[str, tuple[str, Recipe]]:
    """Return the recipe that continues a run of ddlib: its process, pace, network and loss.

    Args:
        name: folder of the run.
        weights: folder of its weights.

    Raises:
        ValueError: a process with frequencies of the run's text, which others would replace.
    """
    (_, adapted) = variants(Path(name).name)["mdlm"]
    saved = read_recipe(weights / RECIPE)
    if (weights / COUNTS).exists():
        raise ValueError(
            f"--from {name}: its process has the frequencies of the tokens of its text, and would "
            "have those of other data: start from a run with another process"
        )
    process = saved.process
    if (weights / f"{SAVED_CLUSTERS}.json").exists():
        process = process | {"clusters": str(weights / SAVED_CLUSTERS)}
    model = saved.model | ({"anneal": 0} if "anneal" in saved.model else {})
    loss = saved.loss if "count_padding" in saved.loss else adapted.loss
    output = replace(adapted.output, folder=adapted.output.folder.parent / "run")
    changes = {"data": replace(adapted.data, length=saved.data.length), "output": output}
    changes |= {"process": process, "model": model, "pace": saved.pace, "loss": loss}
    return {"run": (f"process and network of {name}", replace(adapted, start=name, **changes))}


def for_answers(recipe: Recipe) -> Recipe:
    """Return the recipe of instruction tuning in place of that for a text.

    Padding counts in the loss, so that nothing is drawn behind the end of an answer:
    ``docs/recipes/sft.md`` has the measurement.
    """
    data = recipe.data.folder.name.replace("adapt-", "sft-", 1)
    run = recipe.output.folder.parent.name.replace("adapt-", "sft-", 1)
    return replace(
        recipe,
        data=replace(recipe.data, folder=recipe.data.folder.with_name(data)),
        output=replace(
            recipe.output,
            folder=recipe.output.folder.parent.with_name(run) / recipe.output.folder.name,
        ),
        loss=recipe.loss | {"count_padding": True},
    )


def smoke(recipe: Recipe, length: int | None = 16) -> Recipe:
    """Return the recipe with so few and short texts that a small model runs in seconds.

    Args:
        recipe: the recipe.
        length: tokens of a sequence; None for those of the recipe.
    """
    output = replace(
        recipe.output,
        folder=Path("runs/smoke") / recipe.output.folder.name,
        log_every=1,
        validate_every=2,
        validate_sequences=8,
        sample_steps=4,
        samples=1,
        save_every=2,
        tensorboard=False,
        wandb=None,
    )
    optimizer = replace(recipe.optimizer, warmup=2)
    return replace(
        recipe,
        data=replace(recipe.data, length=length or recipe.data.length),
        optimizer=optimizer,
        output=output,
        batch=4,
        steps=4,
    )


def corpus_for(
    name: str,
    text: str,
    held_out: int | None,
    sample_by: SampleBy = BY_LINE,
    revision: str | None = None,
) -> Corpus:
    """Return the text in the tokens of a model.

    Padding is a token of the tokenizer, the end of a text if there is no other: a new one would
    have no row.

    Args:
        name: name of the model.
        text: see ``recipes.data.local``, or "sotu".
        held_out: the last documents, for validation; None for a twentieth.
        sample_by: unit of a document in a .txt file, see ``Source``.
        revision: branch, tag or commit of the model on the hub.

    Raises:
        FileNotFoundError, ValueError: no such text; a tokenizer that does not load, or has no end
            of a text.
    """
    # local imports here and below: they take seconds, and --help ends before them
    from transformers import AutoTokenizer

    from recipes.data.making import twentieth
    from recipes.data.tokens import BEGINNINGS, ENDINGS, load_tokenizer

    check_held_out(held_out)
    vocabulary = load_tokenizer(name, revision).get_vocab()
    theirs = AutoTokenizer.from_pretrained(
        name, trust_remote_code=False, revision=revision or "main"
    )
    ends = [token for token in (*ENDINGS, theirs.eos_token) if token in vocabulary]
    if not ends:
        raise ValueError(
            f"--from {name}: its tokenizer has no end of text. Choose a token: python -m "
            "recipes.prepare local --bos "
            "TOKEN --eos TOKEN --pad TOKEN, and pass its folder as --data.folder"
        )
    begins = [token for token in (*BEGINNINGS, theirs.bos_token, ends[0]) if token in vocabulary]
    held_out = twentieth(Source(path=text, sample_by=sample_by)) if held_out is None else held_out
    corpus = local(text, name, held_out, sample_by=sample_by)
    return replace(corpus, pad=theirs.pad_token or ends[0], bos=begins[0], eos=ends[0])


def conversations(options: argparse.Namespace, revision: str | None) -> SymbolCorpus:
    """Return the conversations of --sft in the tokens of a model.

    Raises:
        ValueError: too few that are held out.
    """
    check_held_out(options.held_out)
    weights = weights_of(options.name)
    source = {
        "kind": "chat",
        "files": options.sft,
        "tokenizer": options.name if weights is None else str(weights),
    }
    values = {name: getattr(options, name) for name in OF_CHAT} | {"revision": revision}
    source |= {name: value for name, value in values.items() if value is not None}
    return SymbolCorpus(source=source, held_out=options.held_out)


def with_corpus(recipe: Recipe, corpus: Corpus | SymbolCorpus) -> Recipe:
    """Return the recipe on the data of a corpus."""
    return replace(recipe, data=replace(recipe.data, corpus=corpus))


def check_held_out(count: int | None) -> None:
    """Raise ValueError for fewer than two documents for validation."""
    if count is not None and count < 2:
        raise ValueError(
            f"--held-out {count}: must be at least 2, the mean over one document has no standard "
            "error"
        )


def check(name: str, recipe: Recipe) -> None:
    """Raise for a model, or recipe values for it, that are not supported, before any text is
    prepared.

    Raises:
        ModuleNotFoundError: adapters are requested and peft is not installed.
        OSError: no such model; a folder with weights in a pickle alone.
        ValueError: no causal language model; its tokenizer has more tokens than its table rows; or
            see ``CausalLM``.
    """
    import torch

    from ddlib_models.hf.base import hub_options, plain, transformers_config
    from ddlib_models.hf.causal_lm import CausalLM
    from ddlib_models.io.safetensors import WHOLE, refuse_pickles
    from recipes.data.hub import check_there
    from recipes.data.tokens import load_tokenizer

    revision = recipe.model.get("revision")
    check_there(f"--from {name}", name, "config.json", revision)
    architecture = plain(transformers_config(CausalLM, name, hub_options(revision)))
    rows = CausalLM.configuration(architecture).get_text_config().vocab_size
    size = load_tokenizer(name, revision).get_vocab_size()
    if size > rows:
        raise ValueError(
            f"--from {name}: its tokenizer has {size} tokens, must have at most {rows}, the rows "
            "of its embedding. "
            "Added tokens require rows first (resize_token_embeddings of transformers)"
        )
    if recipe.model["kind"] == "causal_lm":
        if Path(name).is_dir() and not any(Path(name).glob(f"{WHOLE}*")):
            refuse_pickles("AutoModelForCausalLM", name, f"--from {name}")
        options = {
            key: value
            for key, value in recipe.model.items()
            if key in CausalLM.__signature__.parameters
        }
        with torch.device("meta"):
            CausalLM(size + 1, size, architecture, **options)


def text_of(recipe: Recipe, made: bool, unknown: float = UNKNOWN) -> Prepared:
    """Return the prepared text, which is ``made`` first if it is not there.

    Args:
        recipe: determines the folder, and the corpus if the text is made.
        made: whether it is prepared here.
        unknown: see ``prepare``.

    Raises:
        FileNotFoundError, ValueError: as in ``prepare`` and ``open_prepared``; less text than one
            sequence; text of another tokenizer than the model's, see ``check_pretrained``.
    """
    from recipes.data import open_prepared, prepare
    from recipes.data.writing import OtherContentError
    from recipes.engine.starting import check_pretrained

    data = recipe.data
    try:
        loaded = (
            prepare(data.corpus, data.folder, unknown=unknown)
            if made
            else open_prepared(data.folder, data.corpus)
        )
    except OtherContentError as error:
        folders = data.folder, recipe.output.folder
        number = next(
            n for n in count(2) if not any(Path(f"{folder}-{n}").exists() for folder in folders)
        )
        flags = "--data.folder {0}-{2} --output.folder {1}-{2}".format(*folders, number)
        raise ValueError(
            f"{error}. A second text requires separate folders: repeat the command with {flags}"
        ) from error
    for split in ("train", "validation"):
        if (tokens := loaded.manifest[split]["tokens"]) < data.length:
            raise ValueError(
                f"data.length={data.length}: must be at most {tokens}, the tokens of the {split} "
                "text"
            )
    check_pretrained(recipe, loaded)
    return loaded


def keep_template(name: str, recipe: Recipe, data: Prepared) -> None:
    """Write the chat template of a model beside the text, from where its run publishes it."""
    from transformers import AutoTokenizer

    from recipes.data.layout import TEMPLATE

    tokenizer = AutoTokenizer.from_pretrained(
        name, trust_remote_code=False, revision=recipe.model.get("revision") or "main"
    )
    if data.is_text and tokenizer.chat_template:
        template = tokenizer.get_chat_template()
        (data.folder / TEMPLATE).write_text(template, encoding="utf-8")


def with_own_clusters(name: str, recipe: Recipe, data: Prepared) -> Recipe:
    """Return a recipe with clusters of the model's input embeddings, stored beside the text, if it
    sets a number.
    """
    wanted = recipe.process.get("clusters")
    if wanted is None or isinstance(wanted, str) or recipe.model["kind"] != "causal_lm":
        return recipe
    from ddlib.hierarchies import Clusters, load_clusters, save_clusters, semantic_clusters
    from recipes.embeddings.vectors import first_rows, model_vectors

    counts = [wanted] if isinstance(wanted, int) else list(wanted)
    rows = first_rows(model_vectors(name, recipe.model.get("revision"))[0], data.vocab_size)
    path = data.folder / "embedded-{}".format("-".join(map(str, counts)))
    if path.with_suffix(".json").exists():
        try:
            load_clusters(path, data.fingerprint, rows)
        except ValueError:  # of another model's embeddings on the same text
            path = path.with_name(f"{path.name}-{Clusters.source_of(rows)[:12]}")
    if not path.with_suffix(".json").exists():
        save_clusters(
            path, semantic_clusters(rows, counts, nested="up", fingerprint=data.fingerprint)
        )
    return replace(recipe, process=recipe.process | {"clusters": str(path)})


def parser() -> argparse.ArgumentParser:
    """Return the parser of this command's arguments besides the flags of a recipe."""
    known = argparse.ArgumentParser(prog=PROG, add_help=False, allow_abbrev=False)
    known.add_argument("--from", dest="name")
    known.add_argument("--text")
    known.add_argument("--held-out", type=int)
    known.add_argument("--sample-by", choices=tuple(CUTS))
    known.add_argument("--unknown", type=float)
    known.add_argument("--sft")
    known.add_argument("--template")
    known.add_argument("--answers")
    known.add_argument("--longest", type=int)
    return known


def check_options(options: argparse.Namespace, makes_data: bool) -> None:
    """Raise ValueError for arguments that do not belong together.

    Args:
        options: the arguments.
        makes_data: whether data are prepared here.
    """
    rule = (
        "not with --data.folder alone, whose text is prepared already; give it to python -m "
        "recipes.prepare, or give the text by --text"
    )
    misplaced = ["held_out", *OF_TEXT, *OF_CHAT]
    if options.sft is not None:
        rule = f"not with --sft {options.sft}, which names the data"
        misplaced = ["text", *OF_TEXT]
    elif makes_data:
        rule = "only with --sft FILE, the conversations"
        misplaced = [*OF_CHAT]
    for name in misplaced:
        if (value := getattr(options, name)) is not None:
            raise ValueError(f"--{name.replace('_', '-')} {value}: {rule}")
    if makes_data and options.sft is None and weights_of(options.name) is not None:
        raise ValueError(
            f"--from {options.name}: is a run of ddlib, must come with conversations, --sft FILE; "
            "a text is learned from its weights by python -m recipes.train with start: "
            f"{options.name}"
        )


def recipes_of(options: argparse.Namespace) -> Mapping[str, tuple[str, Recipe]]:
    """Return the recipes for the arguments, by name."""
    name = options.name or "FOLDER"
    weights = weights_of(name)
    recipes = variants(name) if weights is None else of_run(name, weights)
    if options.sft is None:
        return recipes
    return {variant: (about, for_answers(recipe)) for variant, (about, recipe) in recipes.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    line = list(sys.argv[1:] if arguments is None else arguments)
    options, rest = parser().parse_known_args(line)
    helped = not {"-h", "--help", ALL}.isdisjoint(rest)
    if options.name is None:
        if not helped:
            raise SystemExit(
                f"{__doc__}\nerror: --from: must name a causal language model, a folder or one on "
                "the hub"
            )
        if len(rest) == 1:
            print(__doc__)
    with plain_errors():
        if rest[:1] == ["run"] and weights_of(options.name) is None:
            raise ValueError(
                f"--from {options.name}: must be the folder of a run of ddlib, there is no file "
                f"{Path(options.name) / WEIGHTS / RECIPE}"
            )
        shrink = smoke if options.sft is None else partial(smoke, length=None)
        recipe, switches = choose(recipes_of(options), shrink, PROG, rest)
        named = options.text is not None or options.sft is not None
        makes_data = switches.folder is None or named
        check_options(options, makes_data)
        if options.sft is not None:
            recipe = with_corpus(recipe, conversations(options, recipe.model.get("revision")))
        if weights_of(options.name) is None:
            check(options.name, recipe)
        if makes_data and options.sft is None:
            recipe = with_corpus(
                recipe,
                corpus_for(
                    options.name,
                    options.text or SOTU,
                    options.held_out,
                    options.sample_by or BY_LINE,
                    recipe.model.get("revision"),
                ),
            )
        data = text_of(recipe, makes_data, UNKNOWN if options.unknown is None else options.unknown)
        from recipes.data.summary import table
        from recipes.engine import estimate, train

        print(table(data, recipe.data.length))
        recipe = with_own_clusters(options.name, recipe, data)
        if switches.estimate is None:
            if weights_of(options.name) is None:
                keep_template(options.name, recipe, data)
            train(recipe, switches.accept_changes)
        else:
            print(estimate(recipe, switches.estimate))


if __name__ == "__main__":
    command(main)
