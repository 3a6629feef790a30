"""The recipes of the papers: their numbers, every variant on local text, the command line, files."""

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from cases import slow_but
from pydantic import TypeAdapter

from recipes import lm1b, owt
from recipes.cli import choose, differences, read_recipe, recipe_yaml
from recipes.config import Hardware, Loss, Model, Optimizer, Recipe
from recipes.papers import smoke
from recipes.saved import open_saved
from recipes.variants import GIDD, HDLM, MDLM, HDLMLevels

MODULES = {"owt": owt, "lm1b": lm1b}
NAMES = ("mdlm", "gidd", "hdlm", "hdlm-levels")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder that all smoke runs share, so that the text is prepared once."""
    return tmp_path_factory.mktemp("smoke")


@pytest.mark.parametrize("name", slow_but(NAMES, "hdlm"))
@pytest.mark.parametrize("module", MODULES)
def test_smoke(here, monkeypatch, module, name):
    monkeypatch.chdir(here)
    MODULES[module].main([name, "--smoke", "--output.folder", f"runs/{module}-{name}"])
    run = here / "runs" / f"{module}-{name}"
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum(record["kind"] == "train" for record in records) == 20
    assert records[-1]["step"] == 20 and {"train", "bound", "weights"} == {record["kind"] for record in records}
    assert len(list((run / "samples").iterdir())) == 1 and (run / "tensorboard").is_dir()
    start = json.loads((run / "starts.jsonl").read_text())
    assert start["step"] == 0 and {"commit", "versions", "command", "device"} <= start.keys()
    assert read_recipe(run / "recipe.yaml") == open_saved(run).recipe


def test_owt_has_the_papers_numbers():
    recipe = owt.recipes()["hdlm"][1]
    assert (recipe.batch, recipe.data.length, recipe.steps) == (512, 512, 500_000)
    assert recipe.batch * recipe.data.length * recipe.steps == pytest.approx(131e9, rel=0.001)
    optimizer = recipe.optimizer
    assert (optimizer.lr, optimizer.betas, optimizer.eps) == (5e-4, (0.9, 0.99), 1e-9)
    assert (optimizer.warmup, optimizer.final, optimizer.weight_decay, optimizer.max_grad_norm) == (1e4, 0.1, 0.02, 1.0)
    assert recipe.loss == Loss(weight_clip=(0.0, 2.0)) and recipe.loss.count_padding
    assert recipe.process == HDLM(clusters=64, gamma=1.0, xi=1.0)
    assert (recipe.model.dim, recipe.model.depth, recipe.model.heads) == (768, 12, 12)
    assert recipe.hardware.bf16 and recipe.data.corpus.tokenizer == "gpt2"
    assert recipe.data.corpus.validation.split == "train[-100000:]"


def test_lm1b_has_the_papers_numbers():
    recipe = lm1b.recipes()["hdlm"][1]
    assert (recipe.data.length, recipe.steps, recipe.data.packed) == (128, 1_000_000, False)
    assert recipe.batch * recipe.data.length * recipe.steps == pytest.approx(65.5e9, rel=0.001)
    assert (recipe.optimizer.lr, recipe.optimizer.warmup, recipe.optimizer.final) == (3e-4, 2500, 1.0)
    assert recipe.loss.weight_clip == (0.0, 10.0) and recipe.data.corpus.tokenizer == "bert-base-uncased"


def test_the_command_line_changes_single_values():
    recipe, switches = choose(
        owt.recipes(), smoke, "owt", ["hdlm", "--process.xi", "0.9", "--process.clusters", "my/clusters", "--seed", "3"]
    )
    assert recipe.process == HDLM(clusters=Path("my/clusters"), xi=0.9) and recipe.seed == 3
    assert not switches.smoke and not switches.accept_changes
    recipe, _ = choose(
        owt.recipes(), smoke, "owt", ["hdlm-levels", "--process.clusters", "512", "64", "--loss.mode", "hard"]
    )
    assert recipe.process.clusters == (512, 64) and recipe.loss.mode == "hard"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["hdlm", "--process.gama", "2"], "--process.gamma"),
        (["hdlm", "--batch", "many"], "many"),
        (["hdlmm"], "hdlm"),
        (["hdlm", "--process.xi", "1.5"], "xi=1.5: must lie in (0, 1]"),
        (["hdlm", "--model.heads", "7"], "heads=7: dim must be an even multiple of heads"),
    ],
)
def test_the_command_line_refuses_by_name(arguments, said, capsys):
    with pytest.raises(SystemExit):
        choose(owt.recipes(), smoke, "owt", arguments)
    told = capsys.readouterr()
    assert said in " ".join((told.err + told.out).replace("│", " ").split())


def test_help_names_every_value(capsys):
    with pytest.raises(SystemExit):
        choose(owt.recipes(), smoke, "owt", ["hdlm", "--help"])
    told = capsys.readouterr().out
    for flag in ("--process.gamma", "--optimizer.warmup", "--hardware.shard", "--output.keep", "--data.packed"):
        assert flag in told


VARIANTS = (MDLM(), GIDD(p_uniform=0.2), HDLM(clusters=Path("a/b"), xi=0.9), HDLMLevels())


@pytest.mark.parametrize("process", VARIANTS, ids=lambda variant: variant.kind)
@pytest.mark.parametrize("module", MODULES)
def test_a_recipe_on_disk_is_the_recipe(tmp_path, module, process):
    recipe = replace(MODULES[module].small(), process=process, hardware=Hardware(micro_batch=4, shard=True))
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(recipe))
    assert read_recipe(tmp_path / "recipe.yaml") == recipe
    chosen, _ = choose({}, smoke, "owt", ["--recipe", str(tmp_path / "recipe.yaml"), "--seed", "5"])
    assert chosen == replace(recipe, seed=5)
    assert differences(recipe, chosen) == ["seed is 5, was 0"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda values: values["process"].update(gama=2), "gama: no such key; did you mean gamma?"),
        (lambda values: values["optimizer"].update(warm_up=2), "optimizer.warm_up: no such key; did you mean warmup?"),
        (lambda values: values.update(batch="many"), "batch: .*got 'many'"),
        (lambda values: values.update(batch=0), "batch=0: must be at least 1"),
        (lambda values: values.pop("steps"), "steps"),
    ],
)
def test_a_file_is_refused_by_name(tmp_path, change, said):
    values = yaml.safe_load(recipe_yaml(owt.recipes()["hdlm"][1]))
    change(values)
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(ValueError, match=said):
        read_recipe(path)


def test_the_command_says_what_is_wrong_with_a_file(tmp_path):
    with pytest.raises(SystemExit, match=r"error: .*none.yaml"):
        owt.main(["--recipe", str(tmp_path / "none.yaml")])


def test_a_file_that_is_not_yaml(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("a: [")
    with pytest.raises(ValueError, match=r"recipe.yaml is not YAML"):
        read_recipe(path)


MODEL = dict(dim=32, depth=1, heads=2)
BAD = {
    "dim": (lambda: Model(**MODEL | dict(dim=30, heads=4)), "dim=30, heads=4"),
    "dropout": (lambda: Model(**MODEL, dropout=1.0), r"dropout=1.0: must lie in \[0, 1\)"),
    "clip": (lambda: Loss(weight_clip=(2.0, 1.0)), "weight_clip"),
    "auxiliary": (lambda: Loss(auxiliary=-1.0), "auxiliary=-1.0: must be at least 0"),
    "ema": (lambda: Optimizer(lr=1.0, ema=1.0), "ema=1.0"),
    "final": (lambda: Optimizer(lr=1.0, final=2.0), "final=2.0"),
    "norm": (lambda: Optimizer(lr=1.0, max_grad_norm=0.0), "max_grad_norm=0.0"),
    "nan": (lambda: Optimizer(lr=float("nan")), "lr=nan: must be at least 0"),
    "micro": (lambda: Hardware(micro_batch=0), "micro_batch=0"),
    "levels": (lambda: HDLMLevels(xi=(1.0,)), "needs one xi per level"),
    "speed": (lambda: HDLMLevels(speed=(1.0, 1.0)), "needs one xi per level"),
    "gamma": (lambda: HDLM(gamma=0.0), "gamma=0.0: must be positive"),
    "uniform": (lambda: GIDD(p_uniform=1.0), "p_uniform=1.0"),
    "hard": (lambda: replace(owt.small(), loss=Loss(mode="hard")), "loss.mode='hard': the process has no clusters"),
    "head": (lambda: replace(owt.small(), loss=Loss(auxiliary=1.0)), "loss.auxiliary: the process has no clusters"),
    "muon": (
        lambda: replace(
            owt.small(), optimizer=replace(owt.small().optimizer, muon=True), hardware=Hardware(shard=True)
        ),
        "optimizer.muon: not with hardware.shard",
    ),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_bad_values_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_recipe_is_frozen_plain_values():
    recipe = owt.small()
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.steps = 3
    assert TypeAdapter(Recipe).validate_json(TypeAdapter(Recipe).dump_json(recipe)) == recipe
