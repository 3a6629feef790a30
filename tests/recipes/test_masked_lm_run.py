"""A masked language model of Hugging Face's as the network of a run, clusters and all."""

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from pretrained_by_others import SHORT, small_tokenizer, write_small
from training_runs import curve
from zoo.runs import write_texts

import ddlib as dd
from recipes import train
from recipes.data import local, prepare
from recipes.model_io import open_saved


@pytest.fixture
def bert(tmp_path, monkeypatch):
    """A folder with a tiny BERT and its tokenizer, and text in its tokens."""
    monkeypatch.chdir(tmp_path)
    write_texts(Path("text.jsonl"), SHORT)
    write_small("bert", small_tokenizer(), mask_token="[MASK]")
    prepare(local("text.jsonl", "bert", held_out=10), Path("data"))
    return Path("bert")


def recipe(**changes):
    corpus = {
        "train": {"path": "text.jsonl", "split": "train[:-10]"},
        "validation": {"path": "text.jsonl", "split": "train[-10:]"},
        "tokenizer": "bert",
    }
    values = {
        "data": {"corpus": corpus, "folder": "data", "length": 16},
        "process": {"kind": "hdlm", "clusters": 6},
        "model": {"kind": "masked_lm", "name_or_path": "bert"},
        "optimizer": {"lr": 1e-3, "warmup": 2, "ema": 0.9},
        "output": {
            "folder": "runs/bert",
            "log_every": 1,
            "validate_every": 4,
            "validate_sequences": 8,
            "sample_every": 8,
            "sample_steps": 4,
            "samples": 1,
            "save_every": 4,
            "tensorboard": False,
        },
        "hardware": {"threads": 1},
        "batch": 8,
        "steps": 8,
    }
    Path("mine.yaml").write_text(yaml.safe_dump(values | changes))
    return "mine.yaml"


def test_it_trains_resumes_and_loads_without_the_folder_that_it_came_from(bert):
    train.main([recipe()])
    whole = curve(Path("runs/bert"))
    shutil.rmtree("runs/bert/checkpoints/step_00000008")
    train.main(["mine.yaml"])
    assert curve(Path("runs/bert")) == whole
    shutil.rmtree(bert)
    saved = open_saved("runs/bert")
    assert type(saved.model).__name__ == "MaskedLM" and saved.process.levels == (274, 6, 1)
    tokens = dd.sample(
        saved.process, saved.denoiser, (2, 12), steps=4, generator=torch.Generator().manual_seed(0)
    )
    assert tokens.shape == (2, 12) and tokens.max() < 274


def test_options_that_the_model_lacks_are_refused_by_name(bert):
    for flags, message in (
        (["--data.packed"], r"data.packed=True: not with MaskedLM, which has no pack"),
        (["--start", "text"], r"start='text': not with MaskedLM, which has no start_at"),
        (
            ["--loss.kind", "auxiliary"],
            r"loss.kind=auxiliary: not with masked_lm, which has no head over clusters",
        ),
        (
            ["--model.name-or-path", "nowhere/here/none"],
            r"model: name_or_path='nowhere/here/none': not a folder with a model",
        ),
    ):
        with pytest.raises(SystemExit, match=f"error: {message}"):
            train.main([recipe(), *flags])
