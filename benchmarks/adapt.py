"""Results of docs/adapt.md: SmolLM2-135M, causal, converted to a diffusion model, from the folders of its runs.

python -m recipes.adapt mdlm --from smollm2 ...      the three runs, as on the page
python -m benchmarks.adapt runs/adapt-smollm2 --from smollm2 --out benchmarks/results/adapt.json
python -m benchmarks.adapt_page benchmarks/results/adapt.json
"""

import argparse
import json
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.measuring import command, machine
from ddlib_models.hf.causal_lm import CausalLM, causal_lm
from recipes.data import Prepared, examples, open_prepared
from recipes.engine.validation import WINDOWS
from recipes.logging import read_metrics
from recipes.model_io import open_saved

RUNS = {
    "mdlm": "masks",
    "mdlm-1": "masks, seed 1",
    "lora": "masks, adapters of rank 8",
    "hdlm": "64 clusters",
    "plain": "masks, no shift, attention opened at once",
    "scratch": "DiT",
    "scratch-long": "DiT, 1,200 steps",
}
"""Runs by the name of their folder, and their names on the page."""


def told(folder: Path) -> dict[str, Any]:
    """Return a run's records: bounds, losses and samples by step, its command, its recipe."""
    bounds, losses = [], []
    for _, record in read_metrics(folder / "metrics.jsonl"):
        if record["kind"] == "bound":
            bounds.append({key: record[key] for key in ("step", "nats_per_token", "standard_error", "sequences")})
        if record["kind"] == "train":
            losses.append({key: record[key] for key in ("step", "loss", "norm", "seconds")})
    starts = [json.loads(line) for line in (folder / "starts.jsonl").read_text(encoding="utf-8").splitlines()]
    texts = sorted((folder / "samples").glob("step_*.txt"))
    saved = open_saved(folder)
    return {
        "bounds": bounds,
        "losses": losses,
        "samples": {int(path.stem[5:]): samples(path.read_text(encoding="utf-8")) for path in texts},
        "starts": [
            {key: start[key] for key in ("step", "commit", "changes", "versions", "command")} for start in starts
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
def causal(model: CausalLM, data: Prepared, length: int, count: int, batch: int = 8) -> dict[str, float]:
    """Return nats per token of the causal model for the held-out windows of the bounds, without their first tokens.

    Args:
        model: with causal attention and the shift.
        data: the prepared text.
        length: tokens of a window.
        count: number of windows.
        batch: windows at a time.
    """
    stream = examples(data.validation, length=length, pad_id=data.pad_id, batch_size=batch, seed=WINDOWS)
    nats, tokens = [], []
    with closing(stream):
        for part in islice(stream, -(-count // batch)):
            logits = model(part.x, torch.zeros(len(part.x)))
            losses = F.cross_entropy(logits.flatten(0, 1), part.x.flatten(), reduction="none").view_as(part.x)
            kept = part.mask & (torch.arange(length) > 0)
            nats.append((losses.double() * kept).sum(1))
            tokens.append(kept.sum(1).double())
    sums, sizes = torch.cat(nats)[:count], torch.cat(tokens)[:count]
    mean = float(sums.sum() / sizes.sum())
    error = float((sums - mean * sizes).square().sum().sqrt() / sizes.sum())  # standard error of a ratio of means
    size = sum(p.numel() for p in model.parameters())
    return {"nats_per_token": mean, "standard_error": error, "sequences": len(sums), "parameters": size}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--from", dest="name", required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found = {name: told(given.runs / name) for name in RUNS if (given.runs / name / "weights").is_dir()}
    found = {name: run for name, run in found.items() if run["bounds"][-1]["step"] == run["steps"]}  # finished runs
    first = open_saved(given.runs / next(iter(found))).recipe
    data = open_prepared(first.data.folder)
    known = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {"runs": {}}
    own = known.get("causal")
    if own is None:  # it takes minutes, and does not depend on later runs
        model = causal_lm(data.vocab_size + 1, data.vocab_size, given.name, attention="causal", shift=1)
        own = causal(model, data, first.data.length, first.output.validate_sequences)
    found = known["runs"] | found  # earlier runs, whose folders are gone, stay
    text = {split: data.manifest[split] for split in ("train", "validation")}
    facts = {"command": command(), "machine": machine(), "text": text, "causal": own}
    facts["runs"] = {name: found[name] for name in RUNS if name in found}
    given.out.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
