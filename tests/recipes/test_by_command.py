"""Third-party packages, by command lines alone: prepared, trained, killed, resumed, evaluated,
published.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from training_runs import curve, steps_made

import ddlib as dd
from recipes.model_io import open_saved

ROOT = Path(__file__).parent.parent.parent
SPEECHES = ["speeches", "--words", "300"]
RECIPE = {
    "data": {
        "corpus": {
            "train": {"path": "sotu", "split": "train[:-1000]"},
            "validation": {"path": "sotu", "split": "train[-1000:]"},
            "tokenizer": "train:300",
        },
        "folder": "data",
        "length": 16,
    },
    "optimizer": {"lr": 3e-3, "warmup": 4, "ema": 0.9},
    "hardware": {"threads": 1},
    "batch": 8,
    "steps": 24,
}
OUTPUT = {
    "log_every": 1,
    "validate_every": 12,
    "validate_sequences": 24,
    "sample_every": 24,
    "sample_steps": 4,
    "samples": 1,
    "save_every": 4,
    "tensorboard": False,
}
RAGGED = {
    "process": {"kind": "punctuated", "bands": 12, "xi": 0.9, "schedule": "log_odds:1.5"},
    "model": {"kind": "neighbours", "width": 16},
}
WANDER = {
    "process": {"kind": "ddlib_wander:ring", "gamma": 2.0, "schedule": "cosine"},
    "model": {"kind": "own_net:Net", "width": 16},
}
NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self, num_states, vocab_size, width: int = 8):
        super().__init__()
        self.embed = torch.nn.Embedding(num_states, width)
        self.head = torch.nn.Linear(width, vocab_size)

    def forward(self, z, t):
        near = self.embed(z)
        return self.head(near + near.roll(1, 1) + near.roll(-1, 1) + t[:, None, None])
"""
CASES = {
    "plug-in": (RAGGED, "restart", []),
    "module": (WANDER, "ancestral", ["own_net", "ddlib_wander"]),
}


def wander(folder):
    """Tutorial 5's package, as the page writes it."""
    page = (ROOT / "docs" / "tutorials" / "5_plugin.md").read_text(encoding="utf-8")
    for block in re.findall(r"^% runs\n+```bash\n(.*?)^```", page, re.S | re.M):
        if "verify" not in block:
            subprocess.run(["bash", "-ec", block], cwd=folder, check=True, capture_output=True)
    return folder / "my_plugin"


class Place:
    """A folder with prepared text and a recipe, and commands that run in it."""

    def __init__(self, folder, parts):
        self.folder = folder
        self.parts = parts
        path = [str(ROOT), str(wander(folder)), str(folder), os.environ.get("PYTHONPATH", "")]
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path),
            "OMP_NUM_THREADS": "1",
        }
        (folder / "own_net.py").write_text(NET)
        self.run("recipes.prepare", *SPEECHES, "--out", "data")

    def recipe(self, name):
        """A recipe file whose run is called so."""
        values = RECIPE | self.parts | {"output": OUTPUT | {"folder": f"runs/{name}"}}
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(values))
        return f"{name}.yaml"

    def start(self, *words, ranks=1):
        launch = (
            ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
            if ranks > 1
            else []
        )
        return subprocess.Popen(
            [sys.executable, *launch, "-m", *words],
            cwd=self.folder,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, *words, ranks=1, status=0):
        process = self.start(*words, ranks=ranks)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == status, output
        return output


@pytest.fixture(scope="module", params=["plug-in", "module"])
def case(request, tmp_path_factory):
    parts, sampler, modules = CASES[request.param]
    place = Place(tmp_path_factory.mktemp(request.param), parts)
    place.run("recipes.train", place.recipe("whole"))
    return place, sampler, modules


def test_killed_it_goes_on_to_the_same_bits(case):
    place = case[0]
    name = place.recipe("killed")
    process = place.start("recipes.train", name)
    end = time.monotonic() + 120
    while steps_made(place.folder / "runs" / "killed") < 9:
        assert time.monotonic() < end and process.poll() is None, process.communicate()[0]
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    place.run("recipes.train", name)
    assert curve(place.folder / "runs" / "killed") == curve(place.folder / "runs" / "whole")
    starts = (place.folder / "runs" / "killed" / "starts.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] > 0 for line in starts] == [False, True]
    if place.parts is RAGGED:
        assert json.loads(starts[0])["versions"]["ddlib-ragged"] == "0.1.0"


def test_two_ranks_make_the_same_run_but_for_rounding(case):
    place = case[0]
    place.run("recipes.train", place.recipe("pair"), ranks=2)
    both = [
        [r["loss"] for r in curve(place.folder / "runs" / name) if "loss" in r]
        for name in ("pair", "whole")
    ]
    assert both[0] == pytest.approx(both[1], rel=1e-4) and len(both[0]) == 24


def test_it_is_measured_sampled_and_drawn(case):
    place, sampler, _ = case
    place.run(
        "recipes.evaluate",
        "runs/whole",
        "--scorer",
        "none",
        "--sequences",
        "32",
        "--replicates",
        "2",
    )
    found = json.loads((place.folder / "runs" / "whole" / "evaluation.json").read_text())
    assert 2 < found["bound"]["nats_per_token"]["value"] < 9
    how = [
        "--sampler",
        sampler,
        "--steps",
        "4",
        "--samples",
        "1",
        "--length",
        "8",
        "--out",
        "s.jsonl",
    ]
    place.run("recipes.generate", "runs/whole", "--prompt", "We", "--trajectory", *how)
    line = json.loads((place.folder / "s.jsonl").read_text())
    assert line["text"].startswith("We") and line["protocol"]["sampler"] == sampler
    place.run("recipes.plot", "runs/whole", "--out", "whole.png")
    assert (place.folder / "whole.png").stat().st_size > 10_000


def test_weights_alone_are_untrusted_until_their_modules_are_trusted(case, tmp_path):
    place, _, modules = case
    copied = tmp_path / "published"
    (place.folder / "runs" / "whole" / "weights").rename(copied)
    try:
        measure = [
            "recipes.evaluate",
            str(copied),
            "--scorer",
            "none",
            "--sequences",
            "8",
            "--out",
            "e.json",
        ]
        if modules:
            output = place.run(*measure, status=1)
            assert f"--trust {modules[1]}" in output and "importing a module executes it" in output
        trust = ["--trust", *modules] if modules else []
        assert "nats per token" in place.run(*measure, *(trust if modules else []))
        values = yaml.safe_load((copied / "recipe.yaml").read_text())["plugins"]
        assert values.keys() == (
            {"ddlib_wander:ring", "own_net:Net"}
            if modules
            else {"punctuated", "neighbours", "log_odds"}
        )
    finally:
        copied.rename(place.folder / "runs" / "whole" / "weights")


@pytest.mark.parametrize("case", ["plug-in"], indirect=True)
def test_it_trains_where_the_papers_do_too(case):
    place = case[0]
    output = place.run("recipes.owt", "--recipe", place.recipe("small"), "--smoke", "--steps", "2")
    assert (
        "2/2" in output
        and (place.folder / "runs" / "smoke" / "runs" / "small" / "weights").is_dir()
    )


def test_a_plug_in_trains_resumes_and_opens(tmp_path, monkeypatch):
    """The short form of all of the above, in this process."""
    from recipes import prepare, train

    monkeypatch.chdir(tmp_path)
    prepare.main([*SPEECHES, "--out", "data"])
    values = RECIPE | RAGGED | {"output": OUTPUT | {"folder": "runs/short"}, "steps": 8}
    Path("mine.yaml").write_text(yaml.safe_dump(values))
    train.main(["mine.yaml", "--output.save-every", "4", "--output.keep", "2"])
    first = curve(Path("runs/short"))
    shutil.rmtree("runs/short/checkpoints/step_00000008")
    train.main(["mine.yaml"])
    assert curve(Path("runs/short")) == first
    saved = open_saved("runs/short")
    assert type(saved.process).__name__ == "Ragged" and type(saved.model).__name__ == "Neighbours"
    again = open_saved("runs/short/weights")
    z = saved.process.sample_prior((2, 16), torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(
            saved.model(z, torch.rand(2) * 0 + 0.5), again.model(z, torch.rand(2) * 0 + 0.5)
        )
    tokens = dd.sample(
        again.process, again.denoiser, (2, 8), dd.build("samplers", "restart"), steps=4
    )
    assert tokens.shape == (2, 8) and tokens.max() < again.process.vocab_size
