"""Folders, and what is read from the published run of a module."""

import datasets
import pytest
from zoo.runs import tiny_scorer

from recipes.model_io import open_saved


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of all runs of a module."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A working folder, where ``datasets`` has its cache too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    datasets.disable_progress_bars()
    return tmp_path


@pytest.fixture(scope="module")
def run(published):
    """Folder of the module's published run."""
    return published.run


@pytest.fixture(scope="module")
def saved(run):
    """The module's published run, opened."""
    return open_saved(run)


@pytest.fixture(scope="module")
def scorer(published, tmp_path_factory):
    """Folder of a judge of samples with the tokenizer of the published run."""
    return tiny_scorer(tmp_path_factory.mktemp("scorer"), published.data.tokenizer)
