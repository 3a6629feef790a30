"""The recipes of the papers: their numbers, every variant on local text, the command line,
files.
"""

import dataclasses
import json
import re
from dataclasses import replace
from functools import reduce
from operator import getitem

import pytest
import yaml
from pydantic import TypeAdapter
from refusals import refused_with, refuses
from training_runs import loss, objective  # noqa: F401 # objective: in a table
from zoo.runs import read_lines, smoke_text

from ddlib import registry
from recipes import adapt, lm1b, mnist, owt
from recipes.config import Hardware, Optimizer, Recipe, differences, read_recipe, recipe_yaml
from recipes.config.command import choose
from recipes.config.files import _leaves as leaves
from recipes.config.flags import split, with_flags
from recipes.config.validation import ELSEWHERE
from recipes.model_io import open_saved
from recipes.papers import smoke

MODULES = {"owt": owt, "lm1b": lm1b}
NAMES = ("mdlm", "gidd", "hdlm", "hdlm-levels", "noisy", "bd3lm-16")


def chosen(*flags, module=owt):
    return choose(module.recipes(), smoke, "test", [*flags])


def stored(folder, changes):
    """A file with the recipe of HDLM and other values; None leaves the key out."""
    values = yaml.safe_load(recipe_yaml(owt.recipes()["hdlm"][1]))
    for key, value in changes.items():
        *parents, last = key.split(".")
        inner = reduce(getitem, parents, values)
        if value is None:
            del inner[last]
        else:
            inner[last] = value
    (folder / "recipe.yaml").write_text(yaml.safe_dump(values))
    return folder / "recipe.yaml"


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder that all smoke runs share, so that the text is prepared once."""
    folder = tmp_path_factory.mktemp("smoke")
    smoke_text(folder)
    return folder


@pytest.mark.parametrize(
    ("module", "name"),
    [
        *(("owt", name) for name in ("mdlm", "gidd", "hdlm-levels", "mdlm-paper")),
        ("lm1b", "mdlm"),
        *(pytest.param("owt", name) for name in ("hdlm", "noisy", "bd3lm-16")),
        *(pytest.param("lm1b", name) for name in NAMES[1:]),
    ],
)
def test_smoke(here, monkeypatch, module, name):
    monkeypatch.chdir(here)
    MODULES[module].main([name, "--smoke", "--output.folder", f"runs/{module}-{name}"])
    run = here / "runs" / f"{module}-{name}"
    records = read_lines(run / "metrics.jsonl")
    assert sum(record["kind"] == "train" for record in records) == 20
    assert records[-1]["step"] == 20 and {"train", "bound", "weights"} == {
        record["kind"] for record in records
    }
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
    assert (optimizer.warmup, optimizer.final, optimizer.weight_decay, optimizer.max_grad_norm) == (
        1e4,
        0.1,
        0.02,
        1.0,
    )
    assert recipe.loss == loss(weighting="clip:2") and recipe.loss["count_padding"]
    assert recipe.process == dict(kind="hdlm", clusters=64, gamma=1.0, xi=1.0)
    assert {"kind": "dit", "dim": 768, "depth": 12, "heads": 12}.items() <= recipe.model.items()
    assert recipe.hardware.bf16 and recipe.data.corpus.tokenizer == "gpt2"
    assert recipe.data.corpus.validation.split == "train[-100000:]"


@pytest.mark.parametrize(("module", "length"), [(owt, 1024), (lm1b, 128)])
def test_blocks_have_the_numbers_of_bd3lm(module, length):
    found = {
        name: recipe for name, (_, recipe) in module.recipes().items() if name.startswith("bd3lm")
    }
    start = found.pop("bd3lm-start")
    assert (
        start.order().block is None
        and start.loss["interval"] == [0, 1]
        and start.loss["weigh_times"]
    )
    intervals = {4: (0.45, 0.95), 8: (0.3, 0.8), 16: (0.3, 0.8)}
    assert {
        recipe.order().block: tuple(recipe.loss["interval"]) for recipe in found.values()
    } == intervals
    assert all(
        one.data.wrap and not one.loss["count_padding"] for one in (start, *found.values())
    )  # `wrap: True` there
    assert start.start == "random" and {one.start for one in found.values()} == {
        str(start.output.folder)
    }
    for recipe in found.values():
        assert (
            recipe.network["block_size"] == recipe.order().block and not recipe.loss["weigh_times"]
        )
        assert (recipe.data.length, recipe.batch, recipe.steps + start.steps) == (
            length,
            512,
            1_000_000,
        )
        assert (recipe.optimizer.lr, recipe.optimizer.warmup, recipe.optimizer.final) == (
            3e-4,
            2500,
            1.0,
        )
        assert (recipe.optimizer.betas, recipe.optimizer.weight_decay) == ((0.9, 0.999), 0)
        assert recipe.optimizer.ema == 0.9999
        assert recipe.loss["weighting"] == {"kind": "clip", "high": None, "low": 0.0}
        assert not recipe.model["time_conditioned"] and recipe.model["dropout"] == 0.1


def test_blocks_without_the_weights_that_they_begin_at_are_refused(here, monkeypatch):
    monkeypatch.chdir(here)
    flags = [
        "--smoke",
        "--output.folder",
        "runs/blocks",
        "--start",
        owt.recipes()["bd3lm-16"][1].start,
    ]
    with pytest.raises(
        SystemExit, match=r"start='runs/owt/bd3lm-start': must be .*, and there is no such folder"
    ):
        owt.main(["bd3lm-16", *flags])


def test_mdlm_paper_has_the_numbers_of_mdlm():
    recipe = owt.recipes()["mdlm-paper"][1]
    assert (recipe.batch, recipe.data.length, recipe.steps, recipe.data.wrap) == (
        512,
        1024,
        1_000_000,
        True,
    )
    optimizer = recipe.optimizer
    assert (optimizer.lr, optimizer.warmup, optimizer.final) == (3e-4, 2500, 1.0)
    assert (optimizer.betas, optimizer.eps, optimizer.weight_decay) == ((0.9, 0.999), 1e-8, 0)
    assert (optimizer.ema, optimizer.max_grad_norm) == (0.9999, 1.0)
    assert (
        recipe.process["kind"] == "mdlm"
        and recipe.loss["interval"] == [1e-3, 1]
        and not recipe.loss["count_padding"]
    )
    assert (
        recipe.loss["weighting"] == {"kind": "clip", "high": None, "low": 0.0}
        and recipe.loss["weigh_times"]
    )
    size = dict(dim=768, depth=12, heads=12, cond_dim=128, dropout=0.1, time_conditioned=False)
    assert size.items() <= recipe.model.items()
    assert recipe.output.folder.name == "mdlm-paper" and not owt.recipes()["mdlm"][1].data.wrap


def test_lm1b_has_the_papers_numbers():
    recipe = lm1b.recipes()["hdlm"][1]
    assert (recipe.data.length, recipe.steps, recipe.data.packed) == (128, 1_000_000, False)
    assert recipe.batch * recipe.data.length * recipe.steps == pytest.approx(65.5e9, rel=0.001)
    assert (recipe.optimizer.lr, recipe.optimizer.warmup, recipe.optimizer.final) == (
        3e-4,
        2500,
        1.0,
    )
    assert recipe.loss["weighting"] == {"kind": "clip", "high": 10.0, "low": 0.0}
    assert recipe.data.corpus.tokenizer == "bert-base-uncased"


@pytest.mark.parametrize("module", MODULES)
def test_gidd_trains_with_the_weights_of_its_paper(module):
    losses = {name: recipe.loss for name, (_, recipe) in MODULES[module].recipes().items()}
    assert (
        losses.pop("gidd")
        == loss(weighting="dynamic")
        == loss(weighting={"kind": "dynamic", "high": 2.0})
    )
    assert {values["weighting"]["kind"] for values in losses.values()} == {"clip"}


def test_the_command_line_changes_single_values():
    flags = ["--process.xi", "0.9", "--process.clusters", "my/clusters", "--seed", "3"]
    recipe, switches = chosen("hdlm", *flags)
    assert recipe.process == dict(kind="hdlm", clusters="my/clusters", gamma=1.0, xi=0.9)
    assert recipe.seed == 3
    assert not switches.smoke and not switches.accept_changes
    recipe, _ = chosen("hdlm-levels", "--process.clusters", "512", "64", "--loss.mode", "hard")
    assert recipe.process["clusters"] == [512, 64] and recipe.loss["mode"] == "hard"


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--batch 64 128", r"--batch: .* integer, got \[64, 128\]"),
        ("--steps 100 000", r"--steps: .* integer.*, got \[100, '000'\]"),
        ("--data.folder data/a data/b", r"--data.folder: .* path.*, got \['data/a', 'data/b'\]"),
        ("--start runs/a runs/b", r"--start: .* string, got \['runs/a', 'runs/b'\]"),
        ("--data.length 128 long", r"--data.length: .* integer, got \[128, 'long'\]"),
        ("--output.no-tensorboard false", "--output.no-tensorboard: takes no value, got false"),
    ],
)
def test_values_that_a_flag_does_not_take_are_refused(flag, message):
    with pytest.raises(ValueError, match=message):
        with_flags(MODULES["owt"].recipes()["mdlm"][1], split(flag.split(), {})[1])


def test_a_flag_takes_the_value_of_the_run_and_a_value_in_its_place():
    flags = ["--model.num-classes", "run", "--model.positions", "rope2d", "--model.shape=run"]
    recipe, _ = chosen("mdlm", *flags)
    assert (recipe.model["num_classes"], recipe.model["shape"]) == ("run", "run")
    recipe, _ = chosen(
        "masks", "--model.num-classes", "3", "--model.shape", "14", "14", module=mnist
    )
    assert (recipe.model["num_classes"], recipe.model["shape"]) == (3, [14, 14])


SHAPES = [["--model.shape", "16"], ["--model.shape=16"], ["--model.shape", "[16]"]]


@pytest.mark.parametrize("flag", SHAPES, ids=" ".join)
def test_a_list_of_one_element_is_a_list_on_the_command_line(flag):
    for module, name in ((owt, "mdlm"), (mnist, "masks")):  # without a value before, and with one
        recipe, _ = chosen(name, "--model.positions", "learned", *flag, module=module)
        assert recipe.model["shape"] == [16]


def test_a_smoke_run_logs_to_no_project():
    recipe = owt.small()
    recipe = replace(recipe, output=replace(recipe.output, wandb="papers"))
    assert smoke(recipe).output.wandb is adapt.smoke(recipe).output.wandb is None


WEIGHTINGS = {
    "limit": (["--loss.weighting.high", "5"], {"kind": "clip", "high": 5.0, "low": 0.0}),
    "short": (["--loss.weighting", "clip:5"], {"kind": "clip", "high": 5.0, "low": 0.0}),
    "none": (["--loss.weighting", "clip"], {"kind": "clip", "high": None, "low": 0.0}),
    "kind": (
        ["--loss.weighting.kind=optimal", "--loss.weighting.length", "512"],
        {"kind": "optimal", "length": 512},
    ),
    "inner": (
        [
            "--loss.weighting",
            "per-level",
            "--loss.weighting.factors",
            "2",
            "0.5",
            "--loss.weighting.weighting",
            "clip:2",
        ],
        {
            "kind": "per_level",
            "factors": [2.0, 0.5],
            "weighting": {"kind": "clip", "high": 2.0, "low": 0.0},
        },
    ),
}


@pytest.mark.parametrize(("flags", "values"), WEIGHTINGS.values(), ids=WEIGHTINGS)
def test_weightings_are_parts_on_the_command_line_and_on_disk(tmp_path, flags, values):
    edges = ["--loss.mode", "1", "0.5"]
    recipe, _ = chosen("hdlm", *flags, *edges)
    assert recipe.loss["weighting"] == values
    assert recipe.loss["mode"] == [1.0, 0.5]
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe_yaml(recipe))
    assert read_recipe(path) == recipe
    stored = yaml.safe_load(path.read_text())
    stored["loss"]["weighting"] = "optimal:512"
    path.write_text(yaml.safe_dump(stored))
    assert read_recipe(path).objective().rule.length == 512


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["hdlm", "--process.gama", "2"],
            "--process.gama: no such flag; did you mean --process.gamma?",
        ),
        (["hdlm", "--optimizer.lrr", "2"], "--optimizer.lrr: no such flag; did you mean --opti"),
        # the key of the kind before is not suggested
        (
            ["hdlm", "--loss.kind", "reward", "--loss.weighting.low", "2"],
            "--loss.weighting.low: no such flag; --help-all lists every one",
        ),
        (
            ["hdlm", "--loss.kind", "reward", "--loss.count-paddin", "2"],
            "--loss.count-paddin: no such flag; --help-all lists every one",
        ),
        (["hdlm", "--batch", "many"], "--batch: Input should be a valid integer"),
        (["hdlm", "--batch"], "--batch: has no value"),
        (["hdlm", "twice"], "twice: must be a flag"),
        (["hdlmm"], "got hdlmm, did you mean hdlm?"),
        (
            ["hdlm", "--process.xi", "much"],
            "--process.xi: Input should be a valid number",
        ),
        (
            ["hdlm", "--model.heads", "7.5"],
            "--model.heads: Input should be a valid integer",
        ),
        (["hdlm", "--optimizer.final", "2"], "final=2.0: must lie in [0, 1]"),
    ],
)
def test_the_command_line_refuses_by_name(arguments, message):
    with pytest.raises((SystemExit, ValueError), match=re.escape(message)):
        chosen(*arguments)


def test_help_names_every_value(capsys):
    with pytest.raises(SystemExit):
        chosen("hdlm", "--help-all")
    output = capsys.readouterr().out
    for flag in (
        "--process.gamma",
        "--optimizer.warmup",
        "--hardware.shard",
        "--output.keep",
        "--data.packed",
    ):
        assert flag in output


VARIANTS = (
    {"kind": "mdlm"},
    {"kind": "gidd", "p_uniform": 0.2},
    {"kind": "hdlm", "clusters": "a/b", "xi": 0.9},
    {"kind": "hdlm-levels"},
    "mdlm",
    {
        "kind": "hierarchical",
        "hierarchy": {"kind": "tree", "clusters": [8, 2]},
        "schedule": "polynomial:2",
    },
)


@pytest.mark.parametrize("process", VARIANTS, ids=str)
@pytest.mark.parametrize("module", MODULES)
def test_a_recipe_on_disk_is_the_recipe(tmp_path, module, process):
    recipe = replace(
        MODULES[module].small(), process=process, hardware=Hardware(micro_batch=4, shard=True)
    )
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(recipe))
    assert read_recipe(tmp_path / "recipe.yaml") == recipe
    chosen, _ = choose({}, smoke, "owt", ["--recipe", str(tmp_path / "recipe.yaml"), "--seed", "5"])
    assert chosen == replace(recipe, seed=5)
    assert differences(recipe, chosen) == ["seed is 5, was 0"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"process.gama": 2}, "gama: no such key; did you mean gamma?"),
        ({"optimizer.warm_up": 2}, "optimizer.warm_up: no such key; did you mean warmup?"),
        (
            {"optimizer.learning_rate": 1e-3},
            r"optimizer.learning_rate: no such key; did you mean optimizer.lr\?",
        ),
        ({"batch": "many"}, "batch: .*got 'many'"),
        ({"batch": 0}, "batch=0: must be at least 1"),
        ({"steps": None}, "steps"),
    ],
)
def test_a_file_is_refused_by_name(tmp_path, change, message):
    with pytest.raises(ValueError, match=rf"recipe\.yaml: .*{message}"):
        read_recipe(stored(tmp_path, change))


def test_the_command_names_the_error_of_a_file(tmp_path):
    with pytest.raises(SystemExit, match=r"error: .*none.yaml"):
        owt.main(["--recipe", str(tmp_path / "none.yaml")])


def test_a_file_that_is_not_yaml(tmp_path):
    (tmp_path / "recipe.yaml").write_text("a: [")
    with pytest.raises(ValueError, match=r"recipe.yaml is not YAML"):
        read_recipe(tmp_path / "recipe.yaml")


test_bad_values_are_refused_by_name = refuses(r"""
    objective(weighting={"kind": "clip", "high": 1.0, "low": 2.0}) | ValueError
        | loss.weighting: low is 2.0, high 1.0
    loss(weighting="clop") | ValueError
        | loss.weighting.kind: nothing in weightings is called 'clop', did you mean
    loss(weighting="per_level") | ValueError | loss.weighting.factors: is missing
    replace(owt.small().data, length=1) | ValueError | length=1: must be at least 2
    objective(kind="auxiliary", weight=-1.0) | ValueError | weight=-1.0: must be at least 0
    Optimizer(lr=1.0, ema=1.0) | ValueError | ema=1.0
    Optimizer(lr=1.0, final=2.0) | ValueError | final=2.0
    Optimizer(lr=1.0, max_grad_norm=0.0) | ValueError | max_grad_norm=0.0
    Optimizer(lr=nan) | ValueError | lr=nan: must be at least 0
    Hardware(micro_batch=0) | ValueError | micro_batch=0
    replace(owt.small(), model={"kind": "neighbours"}, loss=dict(kind="auxiliary")) | ValueError
        | loss.kind=auxiliary: not with neighbours, which has no head over clusters \(no argument
            num_clusters\)
    replace(owt.small(), data=replace(owt.small().data, packed=True), loss=dict(levels="balanced"))
        | ValueError | loss.levels='balanced': not with data.packed
    replace(owt.small(), optimizer=replace(owt.small().optimizer, muon=True),
        hardware=Hardware(shard=True))
        | ValueError | optimizer.muon: not with hardware.shard
""")


def test_a_recipe_is_frozen_plain_values():
    recipe = owt.small()
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.steps = 3
    assert TypeAdapter(Recipe).validate_json(TypeAdapter(Recipe).dump_json(recipe)) == recipe


REFUSED = {
    "xi": (["--process.xi", "1.5"], "process: xi of parents[0] is 1.5, must be in (0, 1]"),
    "gamma": (["--process.gamma", "0"], "process: gamma is 0.0, must be in [0.001, 1000]"),
    "levels": (
        ["--process.clusters", "8", "4"],
        "process: parents holds 2 levels of clusters, must hold one",
    ),
    "words": (["--process.clusters", "2000"], "every level must be coarser"),
    "heads": (["--model.heads", "7"], "model: dim=32, heads=7"),
    "dropout": (["--model.dropout", "1"], "model: dropout=1.0: must lie in [0, 1)"),
    "uniform": (
        ["--process", "gidd:p_uniform=1.0"],
        "process: p_uniform is 1.0, must be in [0, 1)",
    ),
    "edges": (["--process", "gidd:0.1", "--loss.mode", "edges"], "loss.mode='edges': GIDD("),
    "weighting": (
        ["--loss.weighting", "dynamic"],
        "loss: Dynamic(high=2.0, released=False) requires the mixing",
    ),
    "factors": (
        ["--loss.weighting", "per_level", "--loss.weighting.factors", "[1]"],
        "loss: factors has 1 entries",
    ),
    "weights": (
        ["--loss.mode", "[1.0]"],
        "loss: mode has 1 factors, must have 2",
    ),
    "hard": (
        ["--process", "mdlm", "--loss.mode", "hard", "--process.kind", "gidd:0.1"],
        "loss.mode='hard': GIDD(",
    ),
    "head": (
        ["--process", "mdlm", "--loss.kind", "auxiliary"],
        "model.num_clusters: the process has no clusters",
    ),
    "means": (
        ["--process", "mdlm", "--model.parents", "run"],
        "model.parents: the process has no clusters",
    ),
    "muon": (
        ["--model.kind", "neighbours", "--optimizer.muon"],
        "optimizer.muon=True: not with Neighbours",
    ),
    "packs": (
        ["--model", "neighbours", "--data.packed"],
        "data.packed=True: not with Neighbours, which has no pack",
    ),
    "recompute": (
        ["--model", "neighbours", "--hardware.recompute"],
        "hardware.recompute=True: not with Neighbours",
    ),
    "start": (
        ["--model", "neighbours", "--start", "text"],
        "start='text': not with Neighbours, which has no start_at",
    ),
}


EARLY = [pytest.param(*case, id=name) for name, case in REFUSED.items()]


@pytest.mark.parametrize(("flags", "message"), EARLY)
def test_errors_of_parts_are_raised_before_the_first_step(here, monkeypatch, flags, message):
    monkeypatch.chdir(here)
    with pytest.raises(SystemExit) as caught:
        owt.main(["hdlm", "--smoke", "--output.folder", "runs/refused", *flags])
    assert message in str(caught.value) and str(caught.value).startswith("error: ")
    assert not list(here.glob("runs/refused/*"))
    assert not list(here.glob("runs/smoke/data/clusters-2000*"))  # nor was anything clustered


FORMS = {
    "polynomial": "polynomial:2.0",
    "symbolic": "symbolic:(1 - t)**2 * exp(-t)",
    "rate": "rate:2/(1 - t)",
    "window": "window:schedule=cosine,start=0.0,end=1.0",
}
"""Values for those that need some."""
TREE = "--process.kind hierarchical --process.hierarchy tree --process.hierarchy.clusters"
NOISES = {
    "masks": "--process.kind masked",
    "uniform": "--process.kind uniform",
    "two levels": f"{TREE} 8",
    "three levels": f"{TREE} 16 4 --process.hierarchy.xi 0.9 1.0",
}


PAIRS = [(alpha, noise) for alpha in sorted(registry.available("schedules")) for noise in NOISES]


@pytest.mark.parametrize(("alpha", "noise"), PAIRS)
def test_every_schedule_trains_on_every_noise_that_takes_one(here, monkeypatch, alpha, noise):
    monkeypatch.chdir(here)
    place = f"runs/{alpha}-{noise}"
    words = [
        "mdlm",
        "--smoke",
        *NOISES[noise].split(),
        "--process.schedule",
        FORMS.get(alpha, alpha),
    ]
    owt.main([*words, "--output.folder", place, "--output.no-tensorboard"])
    saved = open_saved(here / place)
    assert saved.recipe.process["schedule"]["kind"] == alpha
    kind = registry.get("schedules", alpha)
    levels = {"masks": 2, "uniform": 1, "two levels": 3, "three levels": 4}
    assert type(saved.process.schedule) is kind and len(saved.process.levels) == levels[noise]


MINE = {"kind": "hierarchical", "hierarchy": {"kind": "bands", "bands": 4}, "schedule": "log_odds"}


def test_a_file_names_the_packages_of_its_parts(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(recipe_yaml(replace(owt.small(), process=MINE)))
    values = yaml.safe_load(path.read_text())
    ragged = {"package": "ddlib-ragged", "version": "0.1.0"}
    assert values["plugins"] == {"bands": ragged, "log_odds": ragged}
    assert "plugins" not in yaml.safe_load(recipe_yaml(owt.small()))
    values["plugins"]["bands"] = ragged | {"version": "0.0.9"}
    path.write_text(yaml.safe_dump(values))
    with pytest.warns(UserWarning, match=r"bands was made with ddlib-ragged 0.0.9, here is 0.1.0"):
        read_recipe(path)
    values["plugins"]["bands"] = {"package": "no-such-package", "version": "2.0"}
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(
        ValueError,
        match=r"bands comes from no-such-package 2.0, .*pip install no-such-package==2.0",
    ):
        read_recipe(path)


def test_the_error_names_missing_packages_also_without_a_version(tmp_path):
    values = yaml.safe_load(recipe_yaml(owt.small())) | {"process": {"kind": "their_noise:make"}}
    values["plugins"] = {"their_noise:make": {"package": "their_noise", "version": None}}
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(
        ValueError, match=r"process.kind: 'their_noise:make': No module named 'their_noise'"
    ):
        read_recipe(tmp_path / "theirs.yaml")


def test_names_of_other_codebases_are_answered_by_ours():
    known = {name for name, _ in leaves(yaml.safe_load(recipe_yaml(owt.recipes()["mdlm"][1])))}
    assert set(ELSEWHERE.values()) <= known | {"hardware.micro_batch"}
    for flag, ours in {
        "--hardware.dtype": "--hardware.bf16",
        "--grad-accum": "--hardware.micro-batch",
        "--learning-rate=1e-3": "--optimizer.lr",
    }.items():
        with pytest.raises(
            ValueError, match=f"{flag.partition('=')[0]}: no such flag; did you mean {ours}\\?"
        ):
            chosen("mdlm", flag, "4")


def test_a_file_without_an_optimizer_has_its_defaults(tmp_path):
    assert read_recipe(stored(tmp_path, {"optimizer": None})).optimizer == Optimizer()


def test_other_kinds_on_the_command_line():
    network = ["--model", "neighbours", "--model.width", "8"]
    noise = [
        *TREE.split(),
        "32",
        "--process.schedule=polynomial:2",
        "--process.hierarchy.xi",
        "0.9",
    ]
    recipe, _ = chosen("hdlm", *network, *noise)
    assert recipe.process == {
        "kind": "hierarchical",
        "hierarchy": {
            "kind": "tree",
            "clusters": 32,
            "xi": 0.9,
            "speed": None,
            "masks": 1,
        },
        "schedule": {"kind": "polynomial", "power": 2.0},
    }
    assert recipe.model == {"kind": "neighbours", "width": 8, "reach": 2, "layers": 2}
    refused_with()(r"""
        chosen("hdlm", "--process.kind", "masked") | ValueError | process.schedule: is missing
        chosen("hdlm", "--process.kind", "maskd") | ValueError
            | process.kind: .* called 'maskd', did you mean 'masked'
    """)


def test_an_order_of_keys_is_no_difference():
    one = replace(owt.small(), process={"kind": "gidd", "p_uniform": 0.1, "gamma": 1.0})
    assert (
        differences(
            one, replace(owt.small(), process={"gamma": 1, "kind": "gidd", "p_uniform": 0.1})
        )
        == []
    )
