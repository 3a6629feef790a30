"""Folders with a tiny model of others, which a test may change."""

import shutil

import pytest
from hf_checkpoints import CONFIGS, write


@pytest.fixture(scope="session")
def saved_bert(tmp_path_factory):
    return write(tmp_path_factory.mktemp("saved") / "bert", CONFIGS["bert"]())


@pytest.fixture
def bert(saved_bert, tmp_path):
    return shutil.copytree(saved_bert, tmp_path / "bert")
