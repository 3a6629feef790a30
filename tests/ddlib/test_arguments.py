"""Identity of a part: its arguments as plain values, which rebuild it and are compared with a state
dict.
"""

import copy
import json
import pickle
import warnings
from array import array

import pytest
import sympy
import torch
import yaml
from cases import examples
from ddlib_ragged import Bands, LogOdds, Ragged
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused_with, refuses
from safetensors.torch import load_model, save_file, save_model
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

import ddlib as dd
from ddlib import registry
from ddlib.config.comparison import apart
from ddlib.config.part import Part
from ddlib.config.plain import describe
from ddlib.hierarchies import Flat, Tree
from ddlib.processes import GIDD, Hierarchical, Masked, Noisy, PerWord, RateMatrix
from ddlib.schedules import Cosine, Linear, Polynomial, Symbolic
from ddlib.testing import strategies
from ddlib.utils.precision import Float64Module

F64 = torch.float64
WORDS = [0, 0, 1, 1, 2, 3]
ABOVE = [0, 1, 1, 0]
OTHER = [0, 0, 1, 2, 2, 3]
REGISTERED = [
    pytest.param(kind, example, id=f"{kind}-{name}-{i}")
    for kind in registry.PROVED
    for name in registry.available(kind)
    for i, example in enumerate(registry.get(kind, name).examples())
]
PROCESSES = [case.values[1] for case in REGISTERED if case.values[0] == "processes"]


class Net(nn.Module):
    """A network that has its process as a submodule, as a trainer of others wants it."""

    def __init__(self, process):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.process = process

    def forward(self, labels):
        loss = self.linear(labels.float().expand(-1, 2)).square().mean()
        return {
            "loss": loss
            + 0 * self.process.marginal(labels, torch.full((len(labels),), 0.5)).sum().float()
        }


def same(kind, part):
    """The part made again from its values, by way of JSON."""
    values = json.loads(json.dumps(dd.values(part)))
    other = dd.build(kind, values)
    assert (
        values == dd.values(part) == dd.values(other)
        and apart(part, other) == ""
        and type(other) is type(part)
    )
    return other


def dense(size, seed=0):
    """A generator whose numbers have all digits of float64."""
    rates = torch.rand(
        size, size, dtype=F64, generator=torch.Generator().manual_seed(seed)
    ).fill_diagonal_(0)
    return rates - torch.diag(rates.sum(1))


def large():
    """50,257 words, each with a cluster of a thousand, these in 30."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randperm(50_257, generator=generator) % 1000,
        torch.randperm(1000, generator=generator) % 30,
    ]


@pytest.mark.parametrize(("kind", "part"), REGISTERED)
def test_every_registered_part_is_made_again_from_its_values(kind, part):
    if isinstance(part, dd.samplers.Particles):
        with pytest.raises(TypeError, match=r"Particles\.reward is Constant\(\), must be a number"):
            dd.values(part)
    else:
        same(kind, part)
        assert yaml.safe_load(yaml.safe_dump(dd.values(part))) == dd.values(part)


@given(
    strategies.processes(strategies.all_schedules()), st.floats(1e-8, 1 - 1e-8), st.floats(0.0, 1.0)
)
@settings(max_examples=examples(60), deadline=None)
def test_processes_are_made_again_to_the_bit(process, t, share):
    other = same("processes", process)
    assert torch.equal(other.transition(share * t, t), process.transition(share * t, t))
    assert torch.equal(other.rate_matrix(t), process.rate_matrix(t))
    other.load_state_dict(process.state_dict())


@given(strategies.hierarchies(), strategies.time_densities(), strategies.all_schedules())
@settings(max_examples=examples(40), deadline=None)
def test_parts_are_made_again_to_the_bit(hierarchy, density, schedule):
    same("hierarchies", hierarchy)
    same("schedules", schedule)
    same("times", density)


def test_large_parts_are_made_again_to_the_bit():
    for process in (
        Hierarchical(Tree(large(), xi=[0.9, 1.0], speed=[0.7, 1.3, 2.0]), Cosine()),
        Noisy(
            Tree(large()),
            Linear(),
            [0.1, 0.0, 0.2],
            torch.rand(50_257, generator=torch.Generator().manual_seed(1)),
        ),
        PerWord(
            Polynomial(2.0),
            torch.rand(50_257, dtype=F64, generator=torch.Generator().manual_seed(2)) + 0.5,
        ),
        RateMatrix(dense(300), Linear(), vocab_size=299),
    ):
        same("processes", process).load_state_dict(process.state_dict())


def test_extra_state_of_a_large_vocabulary_is_small():
    """The parents alone were 0.4 MB, and were there three times."""
    state = Hierarchical(Tree(large()), Linear()).state_dict()
    assert list(state) == ["_extra_state", "hierarchy._extra_state"]
    assert all(value.dtype == torch.uint8 and value.numel() < 130_000 for value in state.values())


def test_values_hold_arguments_as_they_were_given():
    speed = [2.0, 1.0]
    parents = torch.tensor(WORDS)
    tree = Tree(parents, xi=0.9, speed=speed)
    speed[0] = 7.0
    parents[0] = 3
    assert dd.values(tree) == {
        "kind": "tree",
        "parents": WORDS,
        "xi": 0.9,
        "speed": [2.0, 1.0],
        "vocab_size": None,
        "fingerprint": None,
        "masks": 1,
        "names": None,
    }
    assert dd.values(Hierarchical(tree, Linear()))["hierarchy"] == dd.values(tree)
    assert dd.values(dd.presets.hdlm(WORDS, gamma=2.0))["kind"] == "hierarchical"


MADE_OF_TENSORS = [
    (
        lambda table: dd.times.Tabulated(*table),
        [torch.linspace(0, 1, 3).double(), torch.tensor([1.0, 3.0]).double()],
    ),
    (lambda table: Tree(table), [torch.tensor(WORDS), torch.tensor(ABOVE)]),
    (lambda table: Bands(table[0], 2), [torch.tensor([5.0, 1.0, 4.0], dtype=F64)]),
    (
        lambda table: Noisy(Flat(3), Linear(), *table),
        [torch.tensor([0.2]), torch.tensor([1.0, 2.0, 3.0]).double()],
    ),
    (lambda table: PerWord(Linear(), table[0]), [torch.tensor([0.5, 1.0], dtype=F64)]),
    (lambda table: RateMatrix(table[0], Linear()), [dense(4)]),
]


@pytest.mark.parametrize(("make", "table"), MADE_OF_TENSORS)
def test_a_tensor_that_its_owner_changes_later_changes_no_part(make, table):
    part = make(table)
    before = make([value.clone() for value in table])
    for value in table:
        value.copy_(value.flip(0))
    assert apart(part, before) == "" and dd.values(part) == dd.values(before)


def test_a_map_keeps_its_parents():
    parents = torch.tensor([0, 1, 1])
    edge = dd.hierarchies.Map(parents, 2)
    parents[0] = 1
    assert edge.parents.tolist() == [0, 1, 1]


def test_values_of_a_formula_have_all_its_digits():
    t = sympy.Symbol("t")
    for formula in (
        (1 - t) ** (0.1 + 0.2),
        (1 - t) * sympy.exp(-t * sympy.E),
        (1 - t) ** sympy.sqrt(2),
        "1 - t**2.5",
    ):
        assert same("schedules", Symbolic(formula)).expression() == Symbolic(formula).expression()
    with pytest.raises(TypeError, match=r"formula .* changes when it is converted to a string"):
        dd.values(Symbolic((1 - t) ** sympy.Float("1.1", 40)))


class Given(Masked):
    """A process of a plug-in whose constructor takes an argument more."""

    def __init__(self, about, vocab_size, schedule):
        super().__init__(vocab_size, schedule)
        self.about = about


class Forgetful(Masked):
    """A process that stores nothing of its argument."""

    def __init__(self, rule):
        super().__init__(3, Linear())


def test_values_of_strange_objects():
    class Local(Masked):
        pass

    one = Given(lambda x: x, vocab_size=3, schedule=Linear())
    refused_with(hollow=Flat.__new__(Flat), Local=Local, one=one)(r"""
        dd.values(3) | TypeError | part is 3, must be a process|part=3 violates
        dd.values(hollow) | TypeError
            | Flat has no attribute 'vocab_size', must have .*: create it by Flat\(\.\.\.\)
        dd.values(Forgetful(1)) | TypeError
            | has no attribute 'rule', .* under its name or passes it to self.declare
        dd.values(Local(3, Linear())) | TypeError
            | <locals>\.Local, must be at the top level of a module
        dd.values(one) | TypeError | Given\.about is <function .*, must be a number
    """)
    one.load_state_dict(one.state_dict())  # saved and compared all the same
    assert dd.values(Given("masks", vocab_size=3, schedule=Linear()))["vocab_size"] == 3
    assert dd.values(Given(dense, vocab_size=3, schedule=Linear()))["about"] == f"{__name__}:dense"


def test_reductions_have_values():
    for process in (Hierarchical(Tree(large(), xi=[0.9, 1.0]), Linear()), Masked(1000, Cosine())):
        small = process.small_copy(24)
        other = dd.build("processes", dd.values(small))
        assert apart(small, other) == "" and torch.equal(
            small.transition(0.1, 0.4), other.transition(0.1, 0.4)
        )
        with pytest.raises(ValueError, match=r"kind is ddlib\.processes\.base:reduction there"):
            process.load_state_dict(small.state_dict())


def tree(parents=(WORDS, ABOVE), xi=(0.5, 1.0), speed=(1.0, 1.0, 1.0), **more):
    return Tree(list(parents), xi=list(xi), speed=list(speed), **more)


def levels(schedule=None, **changed):
    return Hierarchical(tree(**changed), schedule or Linear())


DIFFERENT = {
    "xi": (
        levels(),
        levels(xi=(0.9, 1.0)),
        r"another Hierarchical: hierarchy\.xi\[0\] is 0\.9 there, 0\.5 here",
    ),
    "speeds": (
        levels(),
        levels(speed=(4.0, 1.0, 1.0)),
        r"hierarchy\.speed\[0\] is 4\.0 there, 1\.0 here",
    ),
    "schedule": (levels(), levels(Cosine()), r"schedule\.kind is cosine there, linear here"),
    "power": (
        Masked(5, Polynomial(2.0)),
        Masked(5, Polynomial(2.5)),
        r"schedule\.power is 2\.5 there, 2\.0 here",
    ),
    "parents": (
        levels(),
        levels(parents=(OTHER, ABOVE)),
        r"hierarchy\.parents\[0\]\[3\] is 2 there, 1 here",
    ),
    "depth": (
        levels(),
        Hierarchical(Tree([WORDS]), Linear()),
        r"hierarchy\.parents has 1 entries there, 2 here",
    ),
    "class": (
        Hierarchical(Flat(5), Linear()),
        Masked(5, Linear()),
        r"kind is masked there, hierarchical here",
    ),
    "hierarchy": (
        Hierarchical(Flat(5), Linear()),
        Hierarchical(Tree([[0, 0, 1, 1, 1]]), Linear()),
        r"hierarchy\.kind is tree there, flat here",
    ),
    "share": (GIDD(5, 0.2), GIDD(5, 0.5), r"p_uniform is 0\.5 there, 0\.2 here"),
    "frequency": (
        Noisy(Flat(3), Linear(), 0.2, [1, 2, 4]),
        Noisy(Flat(3), Linear(), 0.2, [1, 3, 4]),
        r"frequency\[1\] is 3 there, 2 here",
    ),
    "powers": (
        PerWord(Linear(), [1.0, 2.0, 1.0]),
        PerWord(Linear(), [1.0, 4.0, 1.0]),
        r"powers\[1\] is 4\.0 there, 2\.0 here",
    ),
    "plug-in": (
        Ragged(Bands([5, 1, 4], 2), [0], LogOdds(2.0)),
        Ragged(Bands([5, 1, 4], 2), [0], LogOdds(1.0)),
        r"schedule\.steepness is 1\.0 there, 2\.0 here",
    ),
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", DIFFERENT)
def test_the_state_of_another_process_is_refused_with_the_first_difference(name, strict):
    mine, other, message = DIFFERENT[name]
    net = Net(copy.deepcopy(mine))
    state = Net(other).state_dict()
    with pytest.raises(ValueError, match=message):
        net.load_state_dict(state, strict)
    assert apart(net.process, mine) == ""
    net.load_state_dict(Net(copy.deepcopy(mine)).state_dict(), strict)


def test_the_same_process_by_other_arguments_is_taken():
    plain = Hierarchical(Tree([WORDS]), Linear())
    for other in (
        Tree(WORDS, xi=[1.0]),
        Tree(torch.tensor(WORDS), speed=[1, 1]),
        Tree([WORDS], vocab_size=6),
    ):
        plain.load_state_dict(Hierarchical(other, Linear()).state_dict())
    Noisy(Flat(3), Linear(), 0.2).load_state_dict(Noisy(Flat(3), Linear(), [0.2]).state_dict())


class Hidden(dd.schedules.Schedule):
    """A schedule whose argument is declared, and no attribute."""

    def __init__(self, power):
        self.declare(power=power)
        self._alpha = lambda t: (1 - t) ** power

    def alpha(self, t, xp=torch):
        return self._alpha(t)


def with_array(*powers):
    return PerWord(Linear(), array("d", powers))


test_other_arguments_are_refused = refuses(r"""
    Tree(WORDS).load_state_dict(Tree(OTHER).state_dict())
        | ValueError | another Tree: parents\[3\] is 2 there, 1 here
    Masked(5, Hidden(2)).load_state_dict(Masked(5, Hidden(3)).state_dict())
        | ValueError | schedule\.power is 3 there, 2 here
    Tree({0: WORDS}.values()).load_state_dict(Tree({0: OTHER}.values()).state_dict())
        | ValueError | another Tree: parents\[0\]\[3\] is 2 there, 1 here
    with_array(1, 2).load_state_dict(with_array(1, 3).state_dict())
        | ValueError | another PerWord: powers\[1\] is 3\.0 there, 2\.0 here
""")


def test_parents_given_as_clusters_are_recorded_as_lists():
    draws = (torch.randn(12, 3, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    first, second = (dd.hierarchies.semantic_clusters(vectors, 3) for vectors in draws)
    one = dd.presets.hdlm_levels(first)
    other = dd.presets.hdlm_levels(second)
    assert dd.values(one)["hierarchy"]["parents"] == [first.parents[0].tolist()]
    same("processes", one)
    with pytest.raises(ValueError, match=r"of another Hierarchical: hierarchy\.parents\[0\]"):
        other.load_state_dict(one.state_dict())


def test_state_that_cannot_be_read_is_refused():
    net = Net(GIDD(5, 0.2))
    state = net.state_dict()
    net.load_state_dict(
        {name: value.half().bfloat16() for name, value in state.items()}
    )  # 0 to 255 are exact
    state["process._extra_state"] = state["process._extra_state"] // 2
    with pytest.raises(ValueError, match=r"extra state of GIDD cannot be read .* not averaged"):
        net.load_state_dict(state)


LOOPS = {
    "mean": {},
    "ema": {"avg_fn": get_ema_avg_fn(0.9)},
    "emas": {"multi_avg_fn": get_ema_multi_avg_fn(0.9)},
}


@pytest.mark.parametrize("loop", LOOPS)
def test_an_average_of_weights_leaves_the_process_as_it_is(loop):
    """Levels of 6, 3 and 1 states began at [0, 5, 8, 10] in place of [0, 6, 9, 10]."""
    for process in [
        *PROCESSES,
        Hierarchical(Tree([[0, 0, 1, 1, 2, 2]], xi=0.7, speed=[0.7, 1.1]), Linear()),
    ]:
        net = Net(process)
        average = AveragedModel(net, use_buffers=True, **LOOPS[loop])
        for _ in range(5):
            with torch.no_grad():
                net.linear.weight += 1
            average.update_parameters(net)
        mean = average.module.process
        assert apart(mean, process) == "" and not list(process.buffers())
        if not list(process.parameters()):
            assert torch.equal(mean.transition(0.1, 0.7), process.transition(0.1, 0.7))
    assert mean.hierarchy.starts.tolist() == [0, 6, 9, 10]


def test_safetensors_holds_a_network_with_a_process(tmp_path):
    """Storage that names share is refused by ``save_file``; parents had two names."""
    for i, process in enumerate([*PROCESSES, levels()]):
        path = tmp_path / f"{i}.safetensors"
        save_file(Net(process).state_dict(), path)
        save_model(Net(process), str(path))
        assert not any(load_model(Net(copy.deepcopy(process)), str(path)))
    with pytest.raises(ValueError, match=r"hierarchy\.xi\[0\] is 0\.5 there, 0\.7 here"):
        load_model(Net(levels(xi=(0.7, 1.0))), str(path))


def test_a_trainer_of_transformers_saves_and_resumes_a_network_with_a_process(tmp_path):
    transformers = pytest.importorskip("transformers")
    rows = [{"labels": torch.tensor([i % 6])} for i in range(8)]

    def trainer(process, steps):
        options = transformers.TrainingArguments(
            str(tmp_path),
            max_steps=steps,
            save_steps=2,
            per_device_train_batch_size=4,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            logging_strategy="no",
            dataloader_pin_memory=False,
        )
        return transformers.Trainer(Net(process), options, train_dataset=rows)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", (DeprecationWarning, FutureWarning))  # of the trainer's own
        trainer(levels(), 2).train()
        trainer(levels(), 4).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        with pytest.raises(ValueError, match=r"hierarchy\.xi\[0\] is 0\.5 there, 0\.7 here"):
            trainer(levels(xi=(0.7, 1.0)), 6).train(
                resume_from_checkpoint=str(tmp_path / "checkpoint-4")
            )


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_copies_and_pickles_are_the_same_and_have_the_same_values(process):
    for other in (copy.deepcopy(process), pickle.loads(pickle.dumps(process)), copy.copy(process)):
        assert apart(process, other) == "" and describe(other) == describe(process)
        other.load_state_dict(process.state_dict())


def test_constants_move_in_lists_and_in_modules_within_and_keep_their_digits():
    class Constants(Float64Module):
        def __init__(self):
            super().__init__()
            self.one, self.many = (
                torch.tensor([0.7], dtype=F64),
                (torch.arange(3), [torch.ones(1)], "a"),
            )
            self.named = {"two": torch.zeros(2, dtype=F64)}

    moved = nn.ModuleList([Constants()]).to(torch.bfloat16)[0]
    assert moved.one.dtype == F64 and float(moved.one) == 0.7 and moved.many[0].dtype == torch.int64
    away = moved.to("meta")
    assert (
        away.one.is_meta
        and away.many[0].is_meta
        and away.named["two"].is_meta
        and away.many[2] == "a"
    )
    with pytest.raises(
        RuntimeError,
        match="constants of Constants are on the meta device, where they have no values",
    ):
        away.to_empty(device="cpu")


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_a_network_laid_out_on_meta_has_a_process_with_numbers(process):
    values = dd.values(process)
    with torch.device("meta"):
        net = Net(dd.build("processes", values))
    assert net.linear.weight.is_meta and net.process.device.type == "cpu"
    net.to_empty(device="cpu")
    if not list(process.parameters()):
        assert apart(net.process, process) == ""
    net.load_state_dict(Net(process).state_dict())
    assert torch.equal(net.process.transition(0.2, 0.6), process.transition(0.2, 0.6))


def test_every_part_but_guidance_is_recorded():
    """No base class of a kind is left out.

    A guidance is made of networks, which are not plain values.
    """
    assert all(issubclass(registry.base_of(kind), Part) for kind in registry.PROVED)


def test_the_rates_of_a_float32_matrix_are_made_again():
    process = RateMatrix(torch.full((60, 60), 1 / 60) - torch.eye(60), Linear())
    again = same("processes", process)
    assert torch.equal(again.matrix, process.matrix)
    again.load_state_dict(process.state_dict())
