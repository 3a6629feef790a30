"""A network from one's own loop: published, then opened, sampled and measured by the recipes'
commands.
"""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer
from torch import nn

import ddlib as dd
from ddlib.hierarchies import Tree
from ddlib.schedules import Linear
from ddlib_models import DiT
from recipes import evaluate, generate
from recipes.data import open_prepared, prepare_ids
from recipes.data.text import train_tokenizer
from recipes.model_io import open_saved, publish
from recipes.model_io.reading import open_held_out

SIZE = dict(dim=16, depth=1, heads=2, cond_dim=8)


class Dots(nn.Module):
    """A network of another author: no base class of ddlib_models, and no record of its arguments.

    Args:
        num_states: number of input states.
        vocab_size: number of tokens.
        width: number of channels.
        gain: factor of the logits, which has no weight.
    """

    def __init__(self, num_states: int, vocab_size: int, width: int = 8, gain: float = 1.0) -> None:
        super().__init__()
        self.embedding, self.head, self.gain = (
            nn.Embedding(num_states, width),
            nn.Linear(width, vocab_size),
            gain,
        )

    def forward(self, z, t):
        return self.gain * self.head(self.embedding(z))


def diverged(network):
    """Return the network with NaN in one weight."""
    with torch.no_grad():
        network.embedding.weight[0, 0] = torch.nan
    return network


class Lambda(dd.processes.Masked):
    """A process of another author, whose argument is not a plain value."""

    def __init__(self, vocab_size: int, function) -> None:
        super().__init__(vocab_size, Linear())
        self.function = function


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures") / "data"
    drawn = np.random.default_rng(0).integers(0, 6, (40, 4, 4))
    return prepare_ids(
        drawn, 8, 6, folder, values=range(0, 256, 51), labels=[n % 3 for n in range(40)]
    )


def trained(process, **options):
    torch.manual_seed(0)
    network = DiT(process.num_states, process.vocab_size, **SIZE, **options)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network.eval()


def tree():
    return dd.processes.Hierarchical(Tree([[0, 0, 1, 1, 2, 2]], xi=0.9), "linear")


def same_logits(one, other, length=16):
    z = torch.arange(length)[None] % 6
    t = torch.tensor([0.3])
    torch.testing.assert_close(one(z, t), other(z, t), rtol=0, atol=0)


def test_a_published_network_is_opened_with_its_process_its_data_and_the_same_logits(
    tmp_path, pictures
):
    noise = dd.processes.Hierarchical(Tree([[0, 0, 1, 1, 2, 2]], speed=[2.0, 1.0]), Linear())
    process = dd.build("processes", dd.values(noise))
    network = trained(process, positions="rope2d", shape=[4, 4], num_classes=3)
    weights = publish(
        tmp_path / "mine", network, process, pictures.folder, training={"steps": 70, "batch": 5}
    )
    assert weights == tmp_path / "mine" / "weights"
    saved = open_saved(tmp_path / "mine")
    same_logits(saved.model, network)
    assert dd.values(saved.process) == dd.values(process)
    assert saved.process.hierarchy.speeds == process.hierarchy.speeds
    assert saved.length == 16 and saved.rows == "exact" and saved.layout.shape == (4, 4)
    assert saved.layout.classes == ("0", "1", "2") and saved.parameterization == "cavity"
    assert (saved.recipe.steps, saved.recipe.batch) == (70, 5) and saved.ema is None
    assert saved.recipe.data.folder == pictures.folder


def test_the_meaning_of_logits_that_the_network_states_is_published(tmp_path, pictures):
    process = dd.presets.mdlm(6)
    network = trained(process)
    network.parameterization = "posterior"
    with pytest.raises(ValueError, match=r"parameterization='cavity': the network states 'post"):
        publish(tmp_path / "mine", network, process, pictures, parameterization="cavity")
    publish(tmp_path / "mine", network, process, pictures)
    assert open_saved(tmp_path / "mine").parameterization == "posterior"


def test_generate_and_evaluate_take_it(tmp_path, pictures, capsys):
    process = dd.presets.mdlm(6)
    publish(tmp_path / "mine", trained(process, num_classes=3), process, pictures)
    out = tmp_path / "samples.png"
    mine = str(tmp_path / "mine")
    generate.main(
        ["--model", mine, "--samples", "2", "--steps", "4", "--label", "1", "--out", str(out)]
    )
    assert out.stat().st_size
    evaluate.main(
        [mine, "--replicates", "1", "--scorer", "none", "--out", str(tmp_path / "found.json")]
    )
    found = json.loads((tmp_path / "found.json").read_text())
    assert (
        0 < found["bound"]["nats_per_token"]["value"] < 20 and found["protocol"]["sequences"] == 8
    )
    shown = capsys.readouterr().out
    assert (
        "bits per dimension" in shown and "validation in training" not in shown
    )  # nothing was validated


def test_a_network_of_another_class_is_built_from_the_values_that_are_given(tmp_path, pictures):
    process = dd.presets.gidd(6, 0.2)
    network = Dots(7, 6, width=12, gain=2.0)
    values = {"kind": "test_publish:Dots", "width": 12, "gain": 2.0}
    publish(tmp_path / "mine", network, process, pictures.folder, model=values)
    same_logits(open_saved(tmp_path / "mine").model, network)
    saved = open_saved(tmp_path / "mine" / "weights", trust=["test_publish"])
    same_logits(saved.model, network)
    with pytest.raises(PermissionError, match="--trust test_publish"):
        open_saved(tmp_path / "mine" / "weights")


def text_tokenizer(*special):
    tokenizer = train_tokenizer("To be or not to be, that is the question. " * 9, 260)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in special])
    return tokenizer


def test_a_tokenizer_is_enough_and_data_is_prepared_with_it_later(tmp_path, capsys):
    tokenizer = text_tokenizer("<s>", "</s>", "[PAD]")
    process = dd.presets.mdlm(tokenizer.get_vocab_size())
    publish(tmp_path / "mine", trained(process), process, tokenizer, length=12, packed=True)
    generate.main(
        ["--model", str(tmp_path / "mine"), "--samples", "1", "--steps", "3", "--prompt", "To be"]
    )
    assert "To be" in capsys.readouterr().out
    saved = open_saved(tmp_path / "mine")
    assert (saved.length, saved.rows) == (
        12,
        "packed",
    ) and saved.tokenizer.to_str() == tokenizer.to_str()
    found = pytest.importorskip("recipes.harness").DiffusionLM(str(tmp_path / "mine"), samples=2)
    assert found.length == 12 and found.saved.process.vocab_size == process.vocab_size
    with pytest.raises(SystemExit) as stopped:
        evaluate.main(["--model", str(tmp_path / "mine"), "--scorer", "none"])
    assert f"--out {tmp_path / 'mine' / 'data'}" in str(stopped.value) + capsys.readouterr().err


def test_a_tokenizer_without_padding_serves_packed_rows(tmp_path):
    tokenizer = text_tokenizer("<s>", "</s>")
    process = dd.presets.mdlm(tokenizer.get_vocab_size())
    network = trained(process)
    publish(tmp_path / "mine", network, process, tokenizer, length=12, packed=True)
    saved = open_saved(tmp_path / "mine")
    assert saved.special.pad == saved.special.eos == tokenizer.token_to_id("</s>")
    publish(tmp_path / "padded", network, process, tokenizer, length=12, pad="<s>")
    assert open_saved(tmp_path / "padded").special.pad == tokenizer.token_to_id("<s>")


def test_later_weights_of_the_same_model_replace_the_earlier_and_no_other_model_does(
    tmp_path, pictures
):
    process = dd.presets.mdlm(6)
    place = tmp_path / "mine"
    publish(place, trained(process), process, pictures.folder)
    later = trained(process)
    later.head.bias.data.add_(1.0)
    (place / "evaluation.json").write_text("{}")
    publish(place, later, process, pictures.folder, training={"steps": 9})
    same_logits(open_saved(place).model, later)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    other = dd.presets.gidd(6, 0.2)
    with pytest.raises(
        ValueError, match=r"holds another model: process.kind is 'gidd', was 'masked'"
    ):
        publish(place, trained(other), other, pictures.folder)
    with pytest.raises(ValueError, match=r"holds another model: model.dim is 32, was 16"):
        publish(place, DiT(7, 6, **SIZE | {"dim": 32}), process, pictures.folder)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "model.safetensors").write_bytes(b"theirs")
    with pytest.raises(ValueError, match="exists and contains no published model"):
        publish(tmp_path / "theirs", later, process, pictures.folder)
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def refused(pictures):
    process = dd.presets.mdlm(6)
    network = trained(dd.presets.mdlm(6))
    local = type("Local", (Dots,), {"__module__": "__main__"})(7, 6)
    ragged = text_tokenizer("<s>", "</s>")
    return {
        "no plain values": (
            network,
            Lambda(6, lambda t: t),
            pictures,
            {},
            TypeError,
            "Lambda.function is",
        ),
        "main": (
            local,
            process,
            pictures,
            {"model": "__main__:Local"},
            TypeError,
            "other programs cannot import it",
        ),
        "arguments": (
            Dots(7, 6),
            process,
            pictures,
            {},
            TypeError,
            "Dots does not record the arguments",
        ),
        "wrapper": (
            nn.Sequential(network),
            process,
            pictures,
            {},
            TypeError,
            "Sequential does not record",
        ),
        "width": (
            Dots(7, 6),
            process,
            pictures,
            {"model": "test_publish:Dots:9"},
            ValueError,
            "no module|has no",
        ),
        "weights": (
            Dots(7, 6),
            process,
            pictures,
            {"model": {"kind": "test_publish:Dots", "width": 9}},
            ValueError,
            r"embedding.weight is \(7, 8\), in the built network \(7, 9\)",
        ),
        "logits": (
            Dots(7, 6, gain=3.0),
            process,
            pictures,
            {"model": "test_publish:Dots"},
            ValueError,
            "other logits",
        ),
        "NaN": (
            diverged(Dots(7, 6)),
            process,
            pictures,
            {"model": "test_publish:Dots"},
            ValueError,
            r"network: embedding.weight holds NaN or infinity, must be finite",
        ),
        "states": (
            trained(dd.presets.gidd(5, 0.1)),
            process,
            pictures,
            {},
            ValueError,
            "vocab_size=5, the process 6",
        ),
        "vocabulary": (
            trained(dd.presets.mdlm(9)),
            dd.presets.mdlm(9),
            pictures,
            {},
            ValueError,
            "6 tokens",
        ),
        "length": (network, process, pictures, {"length": 9}, ValueError, "which cannot be cut"),
        "pace": (network, process, pictures, {"pace": "blocks:5"}, ValueError, "5"),
        "key": (
            network,
            process,
            pictures,
            {"training": {"step": 9}},
            ValueError,
            "did you mean steps",
        ),
        "part": (
            network,
            process,
            pictures,
            {"training": {"model": "dit"}},
            ValueError,
            "do not describe",
        ),
        "special": (
            network,
            process,
            pictures,
            {"eos": "0"},
            ValueError,
            "only for a tokenizer alone",
        ),
        "no padding": (
            network,
            process,
            ragged,
            {"length": 9},
            ValueError,
            r"pad='\[PAD\]': the tokenizer has",
        ),
        "no end": (
            network,
            process,
            text_tokenizer(),
            {"length": 9},
            ValueError,
            "the tokenizer has no token",
        ),
        "no length": (
            network,
            process,
            text_tokenizer("<s>", "</s>", "[PAD]"),
            {},
            ValueError,
            "length=None",
        ),
        "data": (network, process, 7, {}, TypeError, "data is int"),
        "network": (lambda z, t: z, process, pictures, {}, TypeError, "must be a torch.nn.Module"),
    }


@pytest.mark.parametrize("name", refused(Tokenizer.from_str(text_tokenizer().to_str())))
def test_networks_that_cannot_be_reopened_are_refused_before_anything_is_written(
    name, tmp_path, pictures
):
    network, process, data, options, error, message = refused(pictures)[name]
    with pytest.raises(error, match=message):
        publish(tmp_path / "mine", network, process, data, **options)
    assert not list(tmp_path.iterdir())


def test_full_attention_trained_with_a_pace_of_blocks_stays_full_attention(tmp_path, pictures):
    process = dd.presets.mdlm(6)
    network = trained(dd.presets.mdlm(6), num_classes=3, label_dropout=0.0)
    publish(tmp_path / "mine", network, process, pictures, pace="blocks:size=4")
    saved = open_saved(tmp_path / "mine")
    z = torch.arange(16)[None] % 6
    t = torch.tensor([0.3])
    assert saved.pace.block == 4 and saved.model.block_size == 16
    torch.testing.assert_close(
        saved.model(z, t, label=1), network(z, t, label=1), rtol=0, atol=1e-6
    )
    denoiser = saved.model.with_label(1)
    assert dd.sample(process, denoiser, (2, 16), steps=8, pace=saved.pace).max() < 6
    publish(
        tmp_path / "blocks", trained(process, block_size=4), process, pictures, pace="blocks:size=4"
    )
    assert open_saved(tmp_path / "blocks").model.block_size == 4
    values = {"kind": "dit", **SIZE, "num_classes": 3, "label_dropout": 0.0, "heads": 4}
    with pytest.raises(
        ValueError, match="network with other logits"
    ):  # of a class that records its arguments too
        publish(tmp_path / "other", network, process, pictures, model=values)


def test_the_network_and_its_mode_are_left_as_they_were(tmp_path, pictures):
    process = dd.presets.mdlm(6)
    network = Dots(7, 6).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    publish(
        tmp_path / "mine",
        network,
        process,
        open_prepared(pictures.folder),
        model="test_publish:Dots",
    )
    assert network.training and all(
        torch.equal(before[name], value) for name, value in network.state_dict().items()
    )


def test_an_order_takes_the_shape_of_the_data_and_is_refused_where_there_is_none(
    tmp_path, pictures, capsys
):
    process = dd.presets.mdlm(6)
    publish(tmp_path / "mine", trained(process), process, pictures)
    order = "in_order:patches:[2,2]"
    common = ["--samples", "1", "--steps", "16"]
    generate.main(["--model", str(tmp_path / "mine"), "--sampler", order, *common, "--trajectory"])
    assert "samples" not in capsys.readouterr().err
    whole = [
        "--replicates",
        "1",
        "--scorer",
        "none",
        "--sequences",
        "4",
        "--out",
        str(tmp_path / "found.json"),
    ]
    evaluate.main([str(tmp_path / "mine"), "--likelihood", order, *whole])
    assert (
        json.loads((tmp_path / "found.json").read_text())["likelihood"]["nats_per_token"]["value"]
        > 0
    )
    capsys.readouterr()
    plain = prepare_ids(np.random.default_rng(0).integers(0, 6, (40, 16)), 8, 6, tmp_path / "plain")
    publish(tmp_path / "flat", trained(process), process, plain)
    with pytest.raises(
        SystemExit, match=r"sampler.pace.shape: the sequences of .*flat have no shape"
    ):
        generate.main(["--model", str(tmp_path / "flat"), "--sampler", order, *common])
    with pytest.raises(
        SystemExit, match=r"sampler: pace is Together.*must be one whose positions move in turn"
    ):
        generate.main(
            ["--model", str(tmp_path / "flat"), "--sampler", "in_order:together", *common]
        )


OWN_LOOP = """
import numpy as np
import torch

import ddlib as dd
from my_net import Dots
from recipes.data import prepare_ids
from recipes.model_io import publish

rows = np.arange(60)[:, None] % 4 + np.arange(8) % 2
prepare_ids(rows, 10, 5, "data/rows")
process = dd.presets.hdlm([0, 0, 1, 1, 1], names=["low", "high"])
network = Dots(process.num_states, 5, width=8)
optimizer = torch.optim.Adam(network.parameters(), 1e-2)
for step in range(20):
    x, t = torch.from_numpy(rows[:32]), dd.sample_times(32)
    z = process.sample(x, t)
    loss = dd.training_loss(process, network(z, t), x, z, t).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
publish("runs/mine", network, process, "data/rows", model={"kind": "my_net:Dots", "width": 8})
"""


def test_the_commands_take_a_published_folder_and_a_run_continues_from_it(tmp_path):
    source = inspect.getsource(Dots)
    (tmp_path / "my_net.py").write_text(f"import torch\nfrom torch import nn\n\n\n{source}")
    (tmp_path / "loop.py").write_text(OWN_LOOP)
    paths = [str(tmp_path), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]

    def run(*words):
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("loop.py")
    shown = run(
        "-m",
        "recipes.generate",
        "--model",
        "runs/mine",
        "--samples",
        "2",
        "--steps",
        "8",
        "--trajectory",
    )
    assert "‹low›" in shown or "‹high›" in shown
    assert "nats per token" in run(
        "-m", "recipes.evaluate", "runs/mine", "--replicates", "1", "--scorer", "none"
    )
    recipe = "runs/mine/weights/recipe.yaml"
    more = [
        "--steps",
        "3",
        "--batch",
        "8",
        "--optimizer.lr",
        "0.001",
        "--output.folder",
        "runs/more",
    ]
    shown = run(
        "-m",
        "recipes.train",
        recipe,
        *more,
        "--output.no-tensorboard",
        "--output.validate-sequences",
        "4",
    )
    assert (
        "step 3/3" in shown
        and (tmp_path / "runs" / "more" / "weights" / "model.safetensors").is_file()
    )


def test_symbols_beyond_the_models_are_refused_before_anything_is_measured(tmp_path):
    for vocab in (4, 5):
        prepare_ids(np.arange(40).reshape(10, 4) % vocab, 2, vocab, tmp_path / f"data-{vocab}")
    process = dd.presets.mdlm(4)
    publish(tmp_path / "run", trained(process), process, tmp_path / "data-4")
    with pytest.raises(
        ValueError,
        match=r"another tokenizer.*id 4 is '4' of the data's and no token of the model's",
    ):
        open_held_out(open_saved(tmp_path / "run"), tmp_path / "data-5")
