"""Properties of a process that ddlib reads: levels, hierarchy, modes; never the class."""

import ast
import copy
from pathlib import Path

import pytest
import torch
from ddlib_ragged import Bands, LogOdds, Ragged
from zoo.processes import EVERY_KIND, RING, Plain
from zoo.trees import XI_TREE

import ddlib as dd
from ddlib import registry
from ddlib.objective.training import check_mode
from ddlib.plot import colors, curves
from ddlib.processes import (
    GIDD,
    ForwardProcess,
    Hierarchical,
    LevelProcess,
    Masked,
    Product,
    RateMatrix,
    Uniform,
)
from ddlib.schedules import Cosine, Linear
from ddlib.typing import HasLevelWeights
from ddlib.vocabulary import fingerprint
from ddlib.weightings import PerLevel

REGISTERED = {
    f"{name}-{i}": process
    for name in registry.available("processes")
    for i, process in enumerate(registry.get("processes", name).examples())
}
EVERY = {
    **EVERY_KIND,
    **REGISTERED,
    **{f"ragged-{i}": process for i, process in enumerate(Ragged.examples())},
}
every = pytest.mark.parametrize("process", EVERY.values(), ids=EVERY)
RAGGED = Ragged(Bands([5, 1, 4], 2), [0], LogOdds())


class Firm(Plain):
    """A user's process that has a hard mode: twice its bound."""

    modes = ("standard", "hard")

    def hard_weighted_divergence(self, logits, x, z, t):
        weight = self.loss_weight(x, z, t)
        value = dd.nelbo(self, logits, x, z, t)
        return weight, 2 * torch.where(
            weight > 0, value / torch.where(weight > 0, weight, 1.0), 0.0
        )


class Stern(GIDD):
    """A subclass with a hard mode that it does not inherit."""

    modes = ("standard", "hard")

    def hard_weighted_divergence(self, logits, x, z, t):
        weight, divergence = self.weighted_divergence(logits, x, z, t)
        return weight, 3 * divergence


class Severe(Hierarchical):
    """A hierarchy with another hard mode than the paper's."""

    def hard_weighted_divergence(self, logits, x, z, t):
        weight, divergence = self.weighted_divergence(logits, x, z, t)
        return weight, 5 * divergence


class Staged(Plain):
    """A user's process whose levels have occupancies and weights, and which has a hierarchy."""

    def __init__(self, inner):
        super().__init__(inner)
        self.hierarchy = inner.hierarchy

    def level_of(self, z):
        return self.inner.level_of(z)

    @property
    def levels(self):
        return self.inner.levels

    def occupancies(self, t):
        return self.inner.occupancies(t)

    def weights(self, t):
        return self.inner.weights(t)


def batch(process, rows=32):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(process.vocab_size, (rows, 3), generator=generator)
    t = dd.sample_times(rows, generator=generator)
    logits = torch.randn(rows, 3, process.vocab_size, dtype=torch.float64, generator=generator)
    return logits, x, process.sample(x, t, generator), t


def test_a_process_requires_two_functions_of_a_scalar_time():
    assert ForwardProcess.__abstractmethods__ == {"rate_matrix", "transition"}


class TwoFunctions(ForwardProcess):
    """The fewest methods of a process: uniform noise from its rate matrix and transition matrix
    alone.
    """

    def __init__(self):
        super().__init__(3, 3)
        self.inner = Uniform(3, Linear())

    def rate_matrix(self, t):
        return self.inner.rate_matrix(t)

    def transition(self, s, t):
        return self.inner.transition(s, t)


def test_the_default_marginal_is_the_transition_from_time_zero():
    process = TwoFunctions()
    x = torch.tensor([[0, 2]])
    for t in (
        torch.tensor([0.3], dtype=torch.float64),
        torch.tensor([[0.3, 0.9]], dtype=torch.float64),
    ):
        assert torch.allclose(process.marginal(x, t), process.inner.marginal(x, t), atol=1e-15)


def test_what_a_process_implements_is_what_it_has():
    class Own(TwoFunctions):
        def weighted_divergence(self, logits, x, z, t):
            return self.loss_weight(x, z, t), torch.ones(z.shape)

        def hard_weighted_divergence(self, logits, x, z, t):
            return self.loss_weight(x, z, t), torch.ones(z.shape)

    own = Own()
    assert own.closed_form and own.modes == ("standard", "hard")
    without = TwoFunctions()
    assert not without.closed_form and without.modes == ("standard",)
    x, t = torch.tensor([[0, 2]]), torch.tensor([0.4])
    z = own.sample(x, t)
    logits = torch.zeros(1, 2, 3)
    used = dd.nelbo(own, logits, x, z, t)
    torch.testing.assert_close(used, own.loss_weight(x, z, t).float())
    both = Product({"a": own, "b": Masked(3, Linear())}, ["a", "b"])
    assert both.closed_form and both.modes == ("standard", "hard")
    assert not Product({"a": own, "b": without}, ["a", "b"]).closed_form


def test_a_sampler_names_the_class_of_processes_that_it_requires():
    class OnlyUniform(dd.samplers.Ancestral):
        requires = Uniform
        instead = "use Ancestral"

    dd.samplers.EdgeBalance().check(Masked(3, Linear()))
    OnlyUniform().check(Uniform(3, Linear()))
    with pytest.raises(
        TypeError, match=r"OnlyUniform needs a Uniform, GIDD\(.*\) is not one: use Ancestral"
    ):
        OnlyUniform().check(GIDD(3, 0.2))


def test_levels_that_disagree_with_level_of_are_refuted():
    class Forgetful(Plain):
        def level_of(self, z):
            return self.inner.level_of(z)

    report = dd.verify(Forgetful(Hierarchical(dd.hierarchies.Tree([[0, 0, 1, 1]]), Linear())))
    (check,) = [check for check in report.failures if check.name == "answers"]
    assert "levels is (4, 3), level_of has (4, 2, 1)" in str(check)


def test_methods_of_levels_are_those_of_level_processes():
    own = {name for name, member in vars(LevelProcess).items() if name[0] != "_"}
    new = {name for name in own if not hasattr(ForwardProcess, name)}
    assert new == {
        "sample_level",
        "max_remask_prob",
        "level_transition",
        "expected_level",
        "ascend",
        "descend",
        "subtree_logits_suffice",
        "sample_jump_times",
        "occupancies",
        "weights",
        "level_posterior",
    }
    for process, kind in (
        ("mdlm", Masked),
        ("levels", Hierarchical),
        ("gidd", GIDD),
        ("uniform", Uniform),
    ):
        assert issubclass(kind, LevelProcess) == (process in ("mdlm", "levels"))


@pytest.mark.parametrize("kind", [Hierarchical, Masked, GIDD, Uniform, RateMatrix])
def test_the_bases_of_a_process_are_few(kind):
    assert (
        len([base for base in kind.__mro__ if base.__module__.startswith("ddlib.processes")]) <= 4
    )


@every
def test_levels_count_the_states_of_each_level_tokens_first(process):
    level = process.level_of(torch.arange(process.num_states)[None])[0]
    assert process.levels == tuple(torch.bincount(level).tolist())
    assert process.levels[0] == process.vocab_size and sum(process.levels) == process.num_states
    assert (level.diff() >= 0).all()


def test_levels_of_processes_without_a_hierarchy():
    assert Uniform(5, Linear()).levels == (5,)
    assert GIDD(5, 0.2).levels == Masked(5, Linear()).levels == (5, 1)
    assert RateMatrix(RING, Linear()).levels == (4,) and RateMatrix(RING, Linear(), 2).levels == (
        2,
        2,
    )
    assert RAGGED.levels == (4, 2, 1)
    assert Staged(Hierarchical(XI_TREE, Linear())).levels == XI_TREE.levels == (6, 4, 2, 1)


@every
def test_the_hierarchy_of_a_process_moves_with_it(process):
    if "hierarchy" in dict(process.named_children()):
        assert process.hierarchy is dict(process.named_children())["hierarchy"]
        moved = copy.deepcopy(process).to(torch.bfloat16).to("meta")
        assert moved.hierarchy.starts.device.type == "meta" and moved.levels == process.levels
    else:
        assert (
            process.hierarchy is None
            and copy.deepcopy(process).to(torch.bfloat16).hierarchy is None
        )


@pytest.mark.usefixtures("compilable")
@pytest.mark.parametrize(
    "process", [Hierarchical(XI_TREE, Linear()), GIDD(5, 0.2), Uniform(5, Linear())], ids=str
)
def test_the_properties_can_be_read_in_a_compiled_function(process):
    def properties(z):
        return z * len(process.levels) + (process.hierarchy is None) + len(process.modes)

    z = torch.arange(3)
    assert torch.equal(torch.compile(properties, backend="eager", fullgraph=True)(z), properties(z))


@every
def test_a_process_has_the_modes_that_it_lists(process):
    logits, x, z, t = batch(process, rows=4)
    assert process.modes[0] == "standard"
    for mode in ("standard", "hard", "edges"):
        if mode in process.modes:
            check_mode(process, mode)
            assert dd.training_loss(process, logits, x, z, t, mode=mode).isfinite()
        else:
            with pytest.raises(
                TypeError, match=f"mode is '{mode}', which {type(process).__name__} does not have"
            ):
                dd.training_loss(process, logits, x, z, t, mode=mode)
            with pytest.raises(TypeError, match=r"\w+ has no (hard mode|edges)"):
                getattr(process, f"{mode}_weighted_divergence")(logits, x, z, t)


def test_the_papers_hard_mode_and_edges_are_those_of_hierarchies():
    found = {isinstance(each, Hierarchical): each.modes for each in EVERY.values()}
    assert found == {True: ("standard", "hard", "edges"), False: ("standard",)}


@pytest.mark.parametrize(
    ("process", "times"),
    [(Firm(GIDD(4, 0.3)), 2), (Stern(4, 0.3), 3), (Severe(XI_TREE, Linear()), 5)],
    ids=["own", "leaf", "hierarchy"],
)
def test_a_custom_process_has_its_hard_mode(process, times):
    logits, x, z, t = batch(process)
    standard, hard = (
        dd.training_loss(process, logits, x, z, t, mode=mode) for mode in ("standard", "hard")
    )
    assert torch.allclose(hard, times * standard)
    weight = torch.eye(process.vocab_size, dtype=torch.float64)
    fused = dd.training_loss(process, dd.Hidden(logits, weight), x, z, t, mode="hard")
    assert torch.allclose(fused, hard)


class Halved(Masked):
    """A user's loss in place of that of a class with a fused one."""

    def integrand(self, logits, x, z, t):
        return super().integrand(logits, x, z, t) / 2


def test_a_loss_that_a_subclass_overrides_is_that_of_hidden_states():
    process = Halved(4, Linear())
    logits, x, z, t = batch(process)
    bound = dd.training_loss(Masked(4, Linear()), logits, x, z, t)
    for output in (logits, dd.Hidden(logits, torch.eye(4, dtype=torch.float64))):
        assert torch.allclose(2 * dd.training_loss(process, output, x, z, t), bound)


@pytest.mark.parametrize(
    "process", [GIDD(5, 0.2), Masked(5, Linear()), RAGGED, Plain(GIDD(4, 0.3))], ids=repr
)
def test_every_process_with_a_level_above_its_tokens_takes_factors_of_levels(process):
    logits, x, z, t = batch(process)
    plain = dd.training_loss(process, logits, x, z, t, reduction="none")
    factors = [2.0, 0.5][: len(process.levels) - 1]
    weight = torch.eye(process.vocab_size, dtype=torch.float64)
    expected = (
        torch.tensor([1.0, *factors])[process.level_of(z)] * plain
    )  # tokens keep the weight they have
    for loss in (
        dd.training_loss(process, logits, x, z, t, weighting=PerLevel(factors), reduction="none"),
        dd.training_loss(
            process,
            dd.Hidden(logits, weight),
            x,
            z,
            t,
            weighting=PerLevel(factors),
            reduction="none",
        ),
    ):
        assert torch.allclose(loss, expected)
    with pytest.raises(
        ValueError, match=rf"factors has 3 entries, must have {len(factors)}: one per level"
    ):
        dd.training_loss(process, logits, x, z, t, weighting=PerLevel([1.0, 1.0, 1.0]))


def test_tokens_alone_have_no_level_to_weigh():
    for process in (Uniform(5, Linear()), RateMatrix(RING, Linear())):
        logits, x, z, t = batch(process, rows=4)
        with pytest.raises(
            TypeError,
            match=f"{type(process).__name__} has only tokens: no level above them to weight",
        ):
            dd.training_loss(process, logits, x, z, t, weighting=PerLevel([1.0]))


@every
def test_levels_with_occupancies_and_weights_are_those_of_hierarchies(process):
    assert isinstance(process, HasLevelWeights) == isinstance(process, LevelProcess)


def test_a_custom_process_is_sampled_and_verified_by_its_levels_and_hierarchy():
    tokens = {token: i for i, token in enumerate("abcd")}
    tree = dd.hierarchies.Tree([[0, 0, 1, 1]], fingerprint=fingerprint(tokens))
    inner = Hierarchical(tree, Cosine())
    process = Staged(inner)
    t = torch.tensor([0.2, 0.7], dtype=torch.float64)
    assert isinstance(process, HasLevelWeights) and colors.bands(process) == colors.bands(inner)
    assert colors.state_names(process) == colors.state_names(inner)
    for series in (curves.occupancy_series, curves.weight_series):
        for ours, theirs in zip(series(process, t), series(inner, t), strict=True):
            assert ours.band == theirs.band and torch.equal(ours.values, theirs.values)
    assert [check.name for check in dd.verify(process).checks if check.topic == "hierarchy"]
    dd.check_vocabulary(process, tokens)
    with pytest.raises(ValueError, match="another tokenizer"):
        dd.check_vocabulary(process, {**tokens, "a": 1, "b": 0})


def test_no_module_outside_processes_tests_for_the_class_hierarchical():
    root = Path(dd.__file__).parent
    found = []
    for path in root.rglob("*.py"):
        text = path.read_text()
        if root / "processes" in path.parents or "Hierarchical" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            name = (
                node.func.id
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
                else ""
            )
            if name in ("isinstance", "issubclass", "cast") and "Hierarchical" in ast.unparse(node):
                found.append(f"{path.relative_to(root)}:{node.lineno}")
    assert not found
