"""Results of docs/studies/adapt.md: SmolLM2-135M, causal, converted to a diffusion model, from the folders
of its runs.

A record of the code: it ran at commit e34d86d6, and protocol.md has the commands.
"""

import json
from argparse import Namespace
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F

from benchmarks.measuring import command, machine
from ddlib_models.hf.causal_lm import CausalLM, causal_lm
from recipes import adapt
from recipes.data import Prepared, examples, open_prepared, prepare
from recipes.engine.validation import WINDOWS
from recipes.logging import read_metrics
from recipes.model_io import open_saved
from studies import smoke
from studies.adapt import page as adapt_page
from studies.study import Study


def run_results(folder: Path) -> dict[str, Any]:
    """Return a run's records: bounds, losses and samples by step, its command, its recipe."""
    bounds, losses = [], []
    for _, record in read_metrics(folder / "metrics.jsonl"):
        if record["kind"] == "bound":
            bounds.append(
                {
                    key: record[key]
                    for key in ("step", "nats_per_token", "standard_error", "sequences")
                }
            )
        if record["kind"] == "train":
            losses.append({key: record[key] for key in ("step", "loss", "norm", "seconds")})
    starts = [
        json.loads(line)
        for line in (folder / "starts.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    texts = sorted((folder / "samples").glob("step_*.txt"))
    saved = open_saved(folder)
    return {
        "bounds": bounds,
        "losses": losses,
        "samples": {
            int(path.stem[5:]): samples(path.read_text(encoding="utf-8")) for path in texts
        },
        "starts": [
            {key: start[key] for key in ("step", "commit", "changes", "versions", "command")}
            for start in starts
        ],
        "parameters": sum(p.numel() for p in saved.model.parameters()),
        "words": saved.process.vocab_size,
        "seed": saved.recipe.seed,
        "steps": saved.recipe.steps,
        "batch": saved.recipe.batch,
        "length": saved.recipe.data.length,
    }


def samples(text: str) -> list[str]:
    """Return the finished texts of a file of samples."""
    parts = text.split("\n\nsample 1 as it denoises")[0].split("\n\nsample ")
    return [part.removeprefix("sample ").partition("\n")[2].strip("\n") for part in parts]


@torch.no_grad()
def causal(
    model: CausalLM, data: Prepared, length: int, count: int, batch: int = 8
) -> dict[str, float]:
    """Return nats per token of the causal model for the held-out windows of the bounds, without
    their first tokens.

    Args:
        model: with causal attention and the shift.
        data: the prepared text.
        length: tokens of a window.
        count: number of windows.
        batch: windows at a time.
    """
    stream = examples(
        data.validation, length=length, pad_id=data.pad_id, batch_size=batch, seed=WINDOWS
    )
    nats, tokens = [], []
    with closing(stream):
        for part in islice(stream, -(-count // batch)):
            logits = model(part.x, torch.zeros(len(part.x)))
            losses = F.cross_entropy(
                logits.flatten(0, 1), part.x.flatten(), reduction="none"
            ).view_as(part.x)
            kept = part.mask & (torch.arange(length) > 0)
            nats.append((losses.double() * kept).sum(1))
            tokens.append(kept.sum(1).double())
    sums, sizes = torch.cat(nats)[:count], torch.cat(tokens)[:count]
    mean = float(sums.sum() / sizes.sum())
    error = float(
        (sums - mean * sizes).square().sum().sqrt() / sizes.sum()
    )  # standard error of a ratio of means
    size = sum(p.numel() for p in model.parameters())
    return {
        "nats_per_token": mean,
        "standard_error": error,
        "sequences": len(sums),
        "parameters": size,
    }


FROM = {"--from": {"dest": "name", "help": "the causal model, a folder or a name"}}


@dataclass(frozen=True)
class Adapt(Study):
    """A causal model as a diffusion model, beside a network from scratch."""

    results = adapt_page.PAGE
    commands = ("evaluate", "page")
    flags = FROM

    @classmethod
    def tiny(cls) -> Self:
        """Return the study; its runs are tiny."""
        return cls()

    def inputs(self, work: Path) -> None:
        """Convert a random model in four steps."""
        model = str(smoke.judge(work.parent / "judge"))
        work.mkdir(exist_ok=True)
        text = work / "text.txt"
        text.write_text(next(iter(smoke.sources().values())), encoding="utf-8")
        prepare(adapt.corpus_for(model, str(text), 9), work / "data")
        for name in ("mdlm", "hdlm", "scratch"):
            folders = ["--data.folder", str(work / "data"), "--output.folder", str(work / name)]
            adapt.main([name, "--smoke", "--from", model, *folders])

    def evaluate(self, options: Namespace) -> None:
        """Write the result file from the folders of the runs.

        Earlier runs, whose folders are gone, stay in it.
        """
        work, out = options.work, options.out
        found = {
            name: run_results(work / name)
            for name in adapt_page.RUNS
            if (work / name / "weights").is_dir()
        }
        found = {
            name: run for name, run in found.items() if run["bounds"][-1]["step"] == run["steps"]
        }  # finished runs
        first = open_saved(work / next(iter(found))).recipe
        data = open_prepared(first.data.folder)
        known = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"runs": {}}
        own = known.get("causal")
        if own is None:  # it takes minutes, and does not depend on later runs
            model = causal_lm(
                data.vocab_size + 1, data.vocab_size, options.name, attention="causal", shift=1
            )
            own = causal(model, data, first.data.length, first.output.validate_sequences)
        found = known["runs"] | found
        text = {split: data.manifest[split] for split in ("train", "validation")}
        facts = {"command": command(), "machine": machine(), "text": text, "causal": own}
        facts["runs"] = {name: found[name] for name in adapt_page.RUNS if name in found}
        out.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


STUDY = Adapt()

if __name__ == "__main__":
    STUDY.main(__doc__)
