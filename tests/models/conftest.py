"""Folders with a tiny third-party model, which a test may change."""

import shutil

import pytest
import torch
from hf_checkpoints import CONFIGS, write


@pytest.fixture(scope="session")
def saved_bert(tmp_path_factory):
    return write(tmp_path_factory.mktemp("saved") / "bert", CONFIGS["bert"]())


@pytest.fixture
def bert(saved_bert, tmp_path):
    return shutil.copytree(saved_bert, tmp_path / "bert")


@pytest.fixture
def compiled_anew(compilable):
    """No compiled code of other tests, whose shapes count towards torch's limit of recompilations,
    and none left.
    """
    torch.compiler.reset()
    yield
    torch.compiler.reset()
