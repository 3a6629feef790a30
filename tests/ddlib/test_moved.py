"""Former module paths: they give the module at its present path, with a warning, and hide
nothing.
"""

import pickle
import sys
import warnings
from functools import partial
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

import ddlib as dd
from ddlib.utils import moved
from ddlib.utils.renamed import Renamed, renamed_attribute
from ddlib_models import DiT
from ddlib_models.io import moved as moved_models


@pytest.mark.parametrize(("old", "new"), [*moved.MOVED.items(), *moved_models.MOVED.items()])
def test_a_former_path_gives_the_module_with_a_warning(old, new, monkeypatch):
    with warnings.catch_warnings(action="ignore"):
        import_module(old.rpartition(".")[0])  # a package that has moved itself warns too
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=rf"^{old} is {new} now"):
        assert import_module(old) is import_module(new)


def test_a_former_path_is_an_attribute_too(monkeypatch):
    monkeypatch.delitem(sys.modules, "ddlib.noise", raising=False)
    vars(dd).pop("noise", None)
    with pytest.warns(DeprecationWarning, match="ddlib.utils.random"):
        assert dd.noise.KeyedGenerator is dd.KeyedGenerator
    monkeypatch.delattr(dd, "noise")


@pytest.mark.parametrize("name", ["bound", "nelbo", "likelihood"])
def test_functions_are_not_hidden_by_modules_of_their_name(name):
    module = import_module(f"ddlib.{name}")
    assert getattr(module, name) is getattr(dd, name) and callable(getattr(dd, name))


def test_a_pickle_of_a_class_at_a_former_path_loads():
    old = pickle.dumps(dd.Bound(*[torch.zeros(1, 1)] * 3), 0).replace(
        b"ddlib.objective.bound", b"ddlib.bound"
    )
    assert isinstance(pickle.loads(old), dd.Bound)


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        (dd, "word_logits", "token_logits"),
        (dd.processes, "Mixing", "Interpolating"),
        (dd.processes, "beside", "unsqueeze_times"),
        (dd.processes, "into", "gather_columns"),
        (dd.samplers, "Order", "OrderedSampler"),
        (dd.samplers, "Run", "SamplingContext"),
        (dd.typing, "Levelled", "HasLevelWeights"),
        (dd.typing, "StateLaw", "StateProbs"),
        (dd.typing, "WordLaw", "TokenProbs"),
        (dd.utils.precision, "ExactModule", "Float64Module"),
        (dd.utils.positive, "Learned", "PositiveParameter"),
    ],
)
def test_a_former_name_gives_the_same_object_with_a_warning(module, old, new):
    with pytest.warns(DeprecationWarning, match=rf"\.{old} is {module.__name__}\.{new} now"):
        assert getattr(module, old) is getattr(module, new)
    assert old not in dir(module)


def test_a_removed_name_gives_the_reason():
    with pytest.raises(
        AttributeError, match=r"dd\.mirrored was removed after 0\.1\.0, .*levels='balanced'"
    ):
        _ = dd.mirrored
    assert "mirrored" not in dir(dd)


@pytest.mark.parametrize(
    "made", [dd.presets.mdlm(5), dd.samplers.Ancestral(), dd.hierarchies.Flat(5)], ids=repr
)
def test_a_former_attribute_is_the_present_one_with_a_warning(made):
    former = {
        name: one
        for base in type(made).__mro__
        for name, one in vars(base).items()
        if isinstance(one, Renamed)
    }
    assert former
    for name, one in former.items():
        with pytest.warns(DeprecationWarning, match=rf"\.{name} is \w+\.{one.present} now"):
            assert getattr(made, name) == getattr(made, one.present)


@pytest.mark.parametrize(
    ("make", "former", "present", "value"),
    [
        (dd.samplers.EndOfText, "word", "token", 3),
        (partial(dd.Children, dd.hierarchies.Flat(3)), "law", "parameterization", "posterior"),
    ],
    ids=["EndOfText", "Children"],
)
def test_a_former_argument_is_the_present_one_with_a_warning(make, former, present, value):
    with pytest.warns(
        DeprecationWarning, match=rf"\({former}=\.\.\.\) is \w+\({present}=\.\.\.\) now"
    ):
        made = make(**{former: value})
    assert repr(made) == repr(make(**{present: value})) and getattr(made, present) == value


class FormerHalves:
    """A split denoiser of a user, whose method has its former name."""

    def features(self, z, t):
        return torch.zeros(*z.shape, 2)

    def words(self):
        return torch.zeros(5, 2), None

    def __call__(self, z, t):
        return torch.zeros(*z.shape, 5)


def test_former_methods_and_values_of_networks_clusters_and_guidance_warn():
    with pytest.warns(
        DeprecationWarning, match=r"FormerHalves\.words is FormerHalves\.output_weights now"
    ):
        halves = FormerHalves()
        assert dd.typing.implements(halves, dd.typing.SplitDenoiser)
    assert halves.output_weights()[0].shape == (5, 2)
    process = dd.presets.mdlm(5)
    network = DiT(6, 5, 8, 1, 2, block_size=2)
    with pytest.warns(DeprecationWarning, match=r"DiT\.words is DiT\.output_weights now"):
        assert torch.equal(network.words()[0], network.output_weights()[0])
    cache = network.eval().prefill(torch.zeros(1, 2, dtype=torch.int64))
    with pytest.warns(DeprecationWarning, match=r"\.words is KVCacheBase\.tokens now"):
        assert cache.words is cache.tokens
    with pytest.warns(
        DeprecationWarning, match=r"SimpleNamespace\.words is SimpleNamespace\.tokens now"
    ):
        assert (
            renamed_attribute(SimpleNamespace(words=cache.tokens), "words", "tokens")
            is cache.tokens
        )
    with pytest.warns(DeprecationWarning, match="on='words' is on='tokens' now"):
        assert dd.guidance.ClassifierFree(process, network, network, 2.0, on="words").on == "tokens"
    clusters = dd.hierarchies.semantic_clusters(torch.randn(6, 2), 2)
    with pytest.warns(DeprecationWarning, match=r"Clusters\.words is Clusters\.of_tokens now"):
        assert torch.equal(clusters.words(), clusters.of_tokens())


def test_the_class_keyword_of_times_per_position_has_no_effect_and_warns():
    with pytest.warns(DeprecationWarning, match=r"class Mine\(own_times=\.\.\.\) has no effect"):

        class Mine(dd.processes.Masked, own_times=True):
            pass

    assert Mine(3, dd.schedules.Linear()).vocab_size == 3
