"""Benefit of packing on short documents.

Sentences of State of the Union addresses in rows of 128 tokens.

    # writes benchmarks/results/packing_cpu.json, on a GPU packing_gpu.json
    python -m benchmarks.packing

A step is the DiT forwards and backwards with the cross-entropy of real tokens; the median step
counts. Both ways read the same documents, as many rows at a time; packing raises the number of real
tokens per second. On a GPU attention is the variable-length kernel of torch in bfloat16. On a CPU
it is dense in rows of the longest document. ``gain`` compares the best of both ways.
"""

import argparse
import json
import re
import tempfile
import time
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measuring import report
from ddlib_models import DiT
from recipes.data import Batch, Prepared, examples, local, prepare
from recipes.data.text import load_speeches

WARM_UP = 3
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


class StepTiming(NamedTuple):
    """One step: its seconds, its real tokens, and these with the padding."""

    seconds: float
    real: int
    places: int


def sentences() -> list[str]:
    """Return all sentences of the speeches, oldest first."""
    return [
        s
        for speech in load_speeches()
        for line in speech.text.splitlines()
        for s in SENTENCE_END.split(line)
    ]


def step(model: DiT, batch: Batch, mask_state: int, generator: torch.Generator) -> Tensor:
    """Compute nats per real token of a masked batch, and its gradient."""
    packed = batch.cu_seqlens is not None
    t = torch.rand(len(batch.index), generator=generator).to(batch.x.device)
    owner = torch.arange(len(t), device=t.device).repeat_interleave(
        batch.cu_seqlens.diff() if packed else torch.full_like(batch.index, batch.x.shape[1])
    )
    noise = torch.rand(batch.x.shape, generator=generator).to(batch.x.device)
    z = torch.where(noise < t[owner].view_as(batch.x), mask_state, batch.x)
    with torch.autocast(z.device.type, torch.bfloat16, enabled=z.device.type == "cuda"):
        logits = model(z.view(1, -1), t, batch.cu_seqlens) if packed else model(z, t)
    loss = F.cross_entropy(logits.flatten(0, 1)[batch.mask.flatten()].float(), batch.x[batch.mask])
    loss.backward()
    return loss.detach()


def measure(prepared: Prepared, rows: int, options: argparse.Namespace) -> list[dict[str, float]]:
    """Measure padding and speed of both ways, step by step in turn, so that disturbances affect
    both.
    """
    device = torch.device(options.device)
    words = prepared.vocab_size
    attention = "varlen" if device.type == "cuda" else "sdpa"
    torch.manual_seed(0)
    model = DiT(
        words + 1, words, options.dim, options.depth, options.dim // 64, attention=attention
    ).to(device)
    generator = torch.Generator().manual_seed(0)
    shape = dict(length=options.length, pad_id=prepared.pad_id, batch_size=rows, seed=0)
    ways = [
        islice(examples(prepared.train, packed=packed, **shape), options.steps + WARM_UP)
        for packed in (False, True)
    ]
    timings: tuple[list[StepTiming], list[StepTiming]] = ([], [])
    for pair in zip(*ways, strict=True):
        for batch, so_far in zip(pair, timings, strict=True):
            moved = batch.to(device)
            _wait(device)
            began = time.perf_counter()
            step(model, moved, words, generator)
            _wait(device)
            so_far.append(
                StepTiming(time.perf_counter() - began, int(batch.mask.sum()), batch.mask.numel())
            )
    return [
        {
            "packed": packed,
            "rows": rows,
            "padding": round(1 - sum(s.real for s in steps) / sum(s.places for s in steps), 4),
            "real_tokens_per_second": round(median(s.real / s.seconds for s in steps[WARM_UP:])),
            "tokens_per_second": round(median(s.places / s.seconds for s in steps[WARM_UP:])),
        }
        for packed, steps in zip((False, True), timings, strict=True)
    ]


def main() -> None:
    """Measure both ways and print JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--words", type=int, default=8192)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--rows", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "sentences.txt"
        text.write_text("\n".join(sentences()), encoding="utf-8")
        prepared = prepare(
            local(str(text), f"train:{options.words}", 1000), Path(folder) / "tokens"
        )
        ways = [way for rows in options.rows for way in measure(prepared, rows, options)]
    best = {
        p: max(way["real_tokens_per_second"] for way in ways if way["packed"] == p)
        for p in (False, True)
    }
    run = {
        "ratios": {"gain": best[True] / best[False]},
        "settings": vars(options) | {"threads": torch.get_num_threads()},
        "documents": len(prepared.train),
        "tokens_per_document": round(float(prepared.train.lengths.mean()), 2),
        "measured": ways,
    }
    report("packing_gpu" if options.device == "cuda" else "packing_cpu", [run], options.device)
    print(json.dumps(run, indent=1))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
