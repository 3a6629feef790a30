"""Files of recorded paths: the same numbers to the bit, and refusals of what they do not fit."""

import pytest
import torch
from safetensors.torch import save_file
from shapes import unchecked
from test_rewards import GIDD, LENGTH, MASKS, PROCESSES, STEPS, Table, record
from zoo.block_networks import ByBlocks
from zoo.calls import seeded

import ddlib as dd
from ddlib.paces import Blocks, RandomOrder
from ddlib.samplers import Ancestral, Confidence, FirstHitting, LeftToRight, Remask
from ddlib.samplers.runtime.context import MemoryContext


def cooler(t):
    """A temperature that falls in the course of sampling."""
    return 0.5 + t / 2


TREE = PROCESSES["tree-xi"]
CALLS = {
    "masks": (MASKS, None, {}),
    "tree": (TREE, Confidence(threshold=0.4), {}),
    "levels": (PROCESSES["levels-xi"], FirstHitting(), {}),
    "gidd": (GIDD, None, {}),
    "noisy": (PROCESSES["noisy"], Ancestral(), {}),
    "remasked": (TREE, Remask(0.5), {}),
    "prompt": (GIDD, None, {"prompt": torch.tensor([1])}),
    "temperature": (
        TREE,
        LeftToRight(),
        {
            "temperature": cooler,
            "controls": [
                dd.controls.Truncation(top_k=2),
                dd.controls.Forbidden([1]),
                dd.controls.RepetitionPenalty(1.5),
            ],
        },
    ),
    "blocks": (TREE, None, {"pace": Blocks(1)}),
    "times": (MASKS, None, {"pace": RandomOrder()}),
    "times-gidd": (GIDD, None, {"pace": RandomOrder()}),
    "posterior": (GIDD, None, {"parameterization": "posterior"}),
}


def plan(process, network, sampler=None, rows=16, **options):
    return dd.plan(process, network, (rows, LENGTH), sampler, STEPS, **options)


def again(trajectory, call, folder):
    """The trajectory, written and read."""
    dd.save_trajectory(trajectory, folder / "path.safetensors")
    return dd.load_trajectory(folder / "path.safetensors", call)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_path_that_was_read_has_the_same_numbers(tmp_path, name, dtype):
    process, sampler, options = CALLS[name]
    network, reference = Table(process, dtype=dtype), Table(process, seed=5, dtype=dtype)
    tokens, path = record(process, network, 16, sampler, **options)
    options = {key: value for key, value in options.items() if key != "prompt"}
    read = again(path, plan(process, network, sampler, **options), tmp_path)
    assert repr(read) == repr(path)
    assert torch.equal(read.log_probs, path.log_probs)
    assert torch.equal(read.drawn, path.drawn)
    assert torch.equal(read.states, path.states)
    assert torch.equal(read.states[-1], tokens)
    for other in (network, reference):
        one, two = (dd.log_prob(process, other, each, per_draw=True) for each in (read, path))
        assert torch.equal(one, two)
        gradients = [torch.autograd.grad(each.sum(), other.weight) for each in (one, two)]
        assert torch.equal(*(gradient for (gradient,) in gradients))
    assert path.log_probs.any()
    if name != "temperature":  # truncated, the reference has probability 0 somewhere
        one, two = (dd.path_kl(process, network, reference, each) for each in (read, path))
        assert torch.equal(one, two)


def test_chosen_steps_keep_their_weight(tmp_path):
    network = Table(TREE)
    _, path = record(TREE, network, 16)
    some = path.choose(2, seeded(3))
    read = again(some, plan(TREE, network), tmp_path)
    assert read.weight == some.weight > 1
    assert torch.equal(dd.log_prob(TREE, network, read), dd.log_prob(TREE, network, some))


def test_cached_blocks_and_a_path_without_steps(tmp_path):
    network = ByBlocks(MASKS.num_states, 3, 2)
    _, path = record(MASKS, network, 4, steps=3, length=6, pace=Blocks(2))
    call = dd.plan(MASKS, network, (4, 6), steps=3, pace=Blocks(2))
    read = again(path, call, tmp_path)
    assert torch.equal(dd.log_prob(MASKS, network, read), dd.log_prob(MASKS, network, path))
    table = Table(MASKS)
    tokens, path = record(MASKS, table, 3, prompt=torch.tensor([1, 2]))
    read = again(path, plan(MASKS, table, rows=3), tmp_path)
    assert torch.equal(read.states, tokens[None])
    assert not dd.log_prob(MASKS, table, read).any()


TREE_PATH = record(TREE, Table(TREE), 16)[1]
OTHERS = {
    "class": (GIDD, None, {}, "is of Hierarchical.*, and the process of call is GIDD"),
    "clusters": (dd.presets.hdlm([0, 1, 1], gamma=1.5, xi=0.9), None, {}, "must be the same"),
    "xi": (dd.presets.hdlm([0, 0, 1], gamma=1.5, xi=0.8), None, {}, "xi.* is 0.9 there, 0.8 here"),
    "sampler": (TREE, Confidence(), {}, "call.sampler.kind is ancestral there, confidence here"),
    "shape": (TREE, None, {"rows": 8}, r"call.shape\[0\] is 16 there, 8 here"),
    "temperature": (
        TREE,
        None,
        {"temperature": 0.5},
        "call.controls has 0 entries there, 1 here, with .*:Truncation', 'temperature': 0.5",
    ),
    "pace": (TREE, None, {"pace": Blocks(1)}, "call.pace.kind is together there, blocks here"),
    "meaning": (TREE, None, {"parameterization": "posterior"}, "call.parameterization is"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_path_of_another_call_is_refused(tmp_path, name):
    process, sampler, options, message = OTHERS[name]
    with pytest.raises(ValueError, match=message):
        again(TREE_PATH, plan(process, Table(process), sampler, **options), tmp_path)


def test_another_number_of_steps_is_refused(tmp_path):
    call = dd.plan(TREE, Table(TREE), (16, LENGTH), steps=STEPS + 1)
    with pytest.raises(ValueError, match=r"call\.times has 4 entries there, 5 here"):
        again(TREE_PATH, call, tmp_path)


def test_a_process_whose_parameters_were_trained_is_another(tmp_path):
    process = dd.presets.mdlm(3)
    process.learned = torch.nn.Parameter(torch.zeros(2))
    network = Table(process)
    _, path = record(process, network, 4)
    call = plan(process, network, rows=4)
    assert again(path, call, tmp_path).log_probs.any()
    with torch.no_grad():
        process.learned.add_(0.1)
    with pytest.raises(ValueError, match="must be the same: learned has other values"):
        dd.load_trajectory(tmp_path / "path.safetensors", call)


def test_files_of_something_else_are_refused(tmp_path):
    call = plan(TREE, Table(TREE))
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        dd.load_trajectory(tmp_path / "nothing", call)
    (tmp_path / "text").write_text("tokens")
    with pytest.raises(ValueError, match="is not a file of save_trajectory"):
        dd.load_trajectory(tmp_path / "text", call)
    save_file({"weight": torch.zeros(2)}, tmp_path / "weights")
    with pytest.raises(ValueError, match="has format None, must be 'ddlib trajectory 2'"):
        dd.load_trajectory(tmp_path / "weights", call)
    with (
        unchecked(),
        pytest.raises(TypeError, match=r"call is a Hierarchical.* result of dd\.plan"),
    ):
        dd.load_trajectory(tmp_path / "text", TREE)
    with unchecked(), pytest.raises(TypeError, match="trajectory is a Tensor, must be the second"):
        dd.save_trajectory(torch.zeros(2), tmp_path / "path")
    assert not (tmp_path / "path").exists()


def test_inputs_that_have_no_file_are_refused(tmp_path):
    steps = tuple(step._replace(context=MemoryContext()) for step in TREE_PATH.steps)
    path = dd.samplers.Trajectory(TREE_PATH.call, steps, TREE_PATH.log_probs)
    with pytest.raises(TypeError, match="inputs of the network of type MemoryContext"):
        dd.save_trajectory(path, tmp_path / "path")
