"""Run of the study of pictures beside their labels, and its table in docs/studies/mixed.md.

    python -m studies.mixed.run                # what the result file lacks, then the table
    python -m studies.mixed.run --pages        # the table alone
    python -m studies.mixed.run --tiny FOLDER  # all of it, in seconds

The same command continues after a kill. The protocol is protocol.md. One thread.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from recipes.engine.provenance import provenance
from studies.mixed.models import MODELS, TINY, Sizes, measure, of_data, one_thread, train
from studies.mixed.pages import BEGIN, PAGE, SEEDS, tables
from studies.page import page
from studies.tables import END

RESULTS = Path(__file__).parent / "results.json"


def run(out: Path, sizes: Sizes, seeds: Sequence[int]) -> None:
    """Measure what the result file lacks."""
    result: dict[str, Any] = {"starts": [], "sizes": asdict(sizes), "runs": {}}
    if out.exists():
        result = json.loads(out.read_text(encoding="utf-8"))
    result["starts"].append(provenance())
    for seed in seeds:
        for name in MODELS:
            key = f"{name} | {seed}"
            if key in result["runs"]:
                continue
            begin = time.process_time()
            network = train(name, seed, sizes)
            seconds = round(time.process_time() - begin, 1)
            result["runs"][key] = measure(name, network, seed, sizes) | {"seconds": seconds}
            _write(out, result)
            print(key, result["runs"][key], flush=True)
    if "data" not in result:
        result["data"] = of_data(sizes)
    _write(out, result)


def _write(out: Path, result: dict[str, Any]) -> None:
    partial = out.with_suffix(".part")
    partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    partial.replace(out)


def page_of(path: Path, out: Path) -> str:
    """Return the page with the table of the result file."""
    result = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    return page(path.read_text(encoding="utf-8"), tables(result), BEGIN, END)


def main(words: Sequence[str] | None = None) -> None:
    """Run the study, and write its table into the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="result file")
    parser.add_argument("--page", type=Path, default=PAGE, help="page with the markers")
    parser.add_argument("--pages", action="store_true", help="write the table alone")
    parser.add_argument("--tiny", type=Path, metavar="FOLDER", help="all of it at tiny sizes")
    options = parser.parse_args(words)
    if options.tiny is not None:
        options.out = options.tiny / "results.json"
        options.page = options.tiny / "mixed.md"
        options.page.write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    if not options.pages:
        with one_thread():
            tiny = options.tiny is not None
            run(options.out, TINY if tiny else Sizes(), SEEDS[:2] if tiny else SEEDS)
    options.page.write_text(page_of(options.page, options.out), encoding="utf-8")


if __name__ == "__main__":
    main()
