"""Public names of ``ddlib``, and suggestions for misplaced or unknown names."""

import ast
import inspect
import sys

import pytest

import ddlib as dd
from ddlib.config.suggestions import ALIASES, missing


def test_dir_is_the_surface():
    assert set(dir(dd)) == {*dd.__all__, "__version__"}
    assert all(hasattr(dd, name) for name in dir(dd))


MEANT = {
    "Linear": "did you mean dd.schedules.Linear?",
    "Masked": "did you mean dd.processes.Masked?",
    "Tree": "did you mean dd.hierarchies.Tree?",
    "mdlm": "did you mean dd.presets.mdlm?",
    "GIDD": "did you mean dd.presets.gidd or dd.processes.GIDD?",
    "elbo": "did you mean dd.bound or dd.nelbo?",
    "loss": "did you mean dd.training_loss or dd.reward_loss or dd.preference_loss?",
    "trainingLoss": "did you mean dd.training_loss?",
    "first_hitting": "did you mean dd.samplers.FirstHitting?",
    "verfy": "did you mean dd.verify?",
    "ClassifierFree": "did you mean dd.guidance.ClassifierFree?",
    "log_likelihood": "did you mean dd.Likelihood or dd.likelihood?",
    "Polinomial": "did you mean dd.schedules.Polynomial?",
    "DiT": "did you mean ddlib_models.DiT?",
    "LogOdds": "did you mean ddlib_ragged.LogOdds?",  # of the plug-in of the tests
    "xyzzy": "dir(ddlib) lists its attributes",
    "t": "dir(ddlib) lists its attributes",
}


@pytest.mark.parametrize("name", MEANT)
def test_a_name_that_is_not_there_is_answered_by_where_it_is(name):
    with pytest.raises(AttributeError) as error:
        getattr(dd, name)
    assert str(error.value) == f"module 'ddlib' has no attribute {name!r}; {MEANT[name]}"
    assert not hasattr(dd, name)


@pytest.mark.parametrize("room", ["schedules", "hierarchies", "processes", "samplers", "presets"])
def test_every_name_of_a_package_is_found_from_the_top(room):
    module = getattr(dd, room)
    own = (
        name
        for name, found in vars(module).items()
        if name[0] != "_" and inspect.getmodule(found) is module
    )
    for name in getattr(module, "__all__", own):
        assert hasattr(dd, name) or f"dd.{room}.{name}" in missing(name)


@pytest.mark.parametrize("word", ALIASES)
def test_terms_of_the_field_have_suggestions(word):
    meant = missing(word).split("did you mean ")[1].removesuffix("?").split(" or ")
    assert len(meant) == len(ALIASES[word]) and all(eval(place) for place in meant)


@pytest.mark.parametrize(
    ("room", "name", "meant"),
    [
        ("samplers", "ReMDM", "dd.samplers.Remask"),
        ("times", "low_discrepancy", "dd.sample_times"),
        ("presets", "hldm", "dd.presets.hdlm"),
        ("paces", "BlockDiffusion", "dd.paces.Blocks"),
        ("samplers", "Psi", "dd.contrib.Psi"),
        ("samplers.controls", "RhoEOS", "dd.contrib.RhoEOS"),
    ],
)
def test_packages_suggest_names_like_the_top_level(room, name, meant):
    with pytest.raises(
        AttributeError, match=rf"'ddlib\.{room}' has no attribute '{name}'; did you mean {meant}\?"
    ):
        getattr(sys.modules[f"ddlib.{room}"], name)


def test_modules_that_nothing_imported_yet_can_be_imported_from_ddlib(monkeypatch):
    from ddlib import testing

    assert testing.check
    monkeypatch.delattr(dd, "testing")
    with pytest.raises(AttributeError, match=r"before it is imported: import ddlib\.testing"):
        dd.testing.check  # noqa: B018


def test_special_attributes_of_a_module_cost_no_search():
    with pytest.raises(AttributeError, match=r"^module 'ddlib' has no attribute '__wrapped__'$"):
        dd.__wrapped__  # noqa: B018


def test_type_checkers_see_no_module_getattr():
    """A module with ``__getattr__`` has every name in mypy's eyes, so it must not see it."""
    tree = ast.parse(inspect.getsource(dd))
    assert not [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
