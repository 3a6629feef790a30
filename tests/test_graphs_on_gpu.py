"""CUDA graphs of functions, of sampling and of training steps: the numbers of the same work without
a graph.

    pytest -m gpu tests/test_graphs_on_gpu.py

With ``GRAPHS_ON=cpu`` the same runs without graphs, to check the tests themselves.
"""

import os
import threading
from dataclasses import replace

import pytest
import torch
from zoo import steps
from zoo.networks import Halves
from zoo.processes import LEVELS
from zoo.steps import SCHEDULE, STEP, STEPS, train_steps

import ddlib as dd
from benchmarks import hub_decoding, ladder, sampling_steps
from benchmarks.profile import run
from ddlib.contrib import Captured, CaptureError, FixedCapacity
from ddlib.samplers import Ancestral, Confidence, FirstHitting, LeftToRight, Remask
from ddlib_models import DiT
from recipes.engine import NonFiniteError, graph

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("as_users_call")]

DEVICE = os.environ.get("GRAPHS_ON", "cuda")
on_cuda = pytest.mark.skipif(DEVICE != "cuda", reason="about graphs themselves")
SAMPLERS = [
    Ancestral(),
    Remask(0.5),
    Remask(1.0, "loop", plateau=0.4),
    FirstHitting(),
    Confidence(),
    Confidence("probability", threshold=0.4),
    LeftToRight(),
]
SIZE = steps.SIZE._replace(device=DEVICE)


def halves(process):
    """The network of the tests on a CPU, on the device."""
    network = Halves(process)
    for name in ("table", "weight", "bias"):
        setattr(network, name, getattr(network, name).to(DEVICE))
    return network


def generate(process, network, sampler, controls=(), **options):
    """Tokens of a call whose batch is whole, so that products are rounded alike."""
    options = {"steps": 6, "generator": torch.Generator(DEVICE).manual_seed(0)} | options
    controls = controls or [dd.controls.WholeBatch()]
    return dd.sample(process, network, (3, 10), sampler, controls=controls, **options)


def test_a_replay_reads_new_inputs_and_weights():
    weight = torch.ones(4, device=DEVICE)
    captured = Captured(lambda x, y: {"sum": x + y, "product": [x * weight]})
    for number in range(4):
        x = torch.full((4,), float(number), device=DEVICE)
        y = torch.arange(4.0, device=DEVICE)
        results = captured(x, y)
        assert torch.equal(results["sum"], x + y)
        assert torch.equal(results["product"][0], x * weight)
        weight.add_(1)
    assert captured.number == 1


@on_cuda
def test_a_function_that_waits_has_no_graph():
    captured = Captured(lambda x: x[x > 0])
    with pytest.raises(CaptureError, match="no CUDA graph can be made"):
        captured(torch.ones(3, device=DEVICE))
    assert torch.equal(torch.ones(2, device=DEVICE) + 1, torch.full((2,), 2.0, device=DEVICE))


@on_cuda
def test_a_graph_is_recorded_while_another_thread_copies():
    """As the data of the next step, on a stream beside the current one."""
    done = threading.Event()

    def copy():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            while not done.is_set():
                torch.ones(1000).pin_memory().to(DEVICE, non_blocking=True).sum()

    thread = threading.Thread(target=copy)
    thread.start()
    try:
        for number in range(20):
            captured = Captured(lambda x: (x @ x).relu())
            x = torch.eye(64 + number, device=DEVICE)
            assert torch.equal(captured(x), x)
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("recorded", [False, True], ids=["called", "recorded"])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
@pytest.mark.parametrize("name", LEVELS)
def test_tokens_of_steps_of_fixed_sizes_are_those_of_the_plain_call(name, sampler, recorded):
    process = dd.build("processes", dd.values(LEVELS[name])).to(DEVICE)
    network = halves(process)
    plain = generate(process, network, sampler)
    fixed = generate(process, network, sampler, [FixedCapacity(graph=recorded)])
    assert torch.equal(fixed, plain)


OPTIONS = {
    "prompt": {"prompt": torch.tensor([1, 4, 0])},
    "seeds": {"generator": [3, 1, 4]},
    "temperature": {"temperature": 0.5, "top_p": 0.9},
    "greedy": {"temperature": 0.0},
    "annealed": {"temperature": lambda t: 0.5 + t},
    "many steps": {"steps": 60},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("sampler", [Ancestral(), Remask(0.5), Confidence()], ids=repr)
def test_options_of_a_recorded_call(sampler, option):
    process = dd.presets.hdlm_levels([[0, 0, 1, 1, 2, 2], [0, 1, 1]], xi=[0.5, 0.6]).to(DEVICE)
    options = dict(OPTIONS[option])
    if "prompt" in options:
        options["prompt"] = options["prompt"].to(DEVICE)
    plain = generate(process, halves(process), sampler, **options)
    control = FixedCapacity(graph=True)
    assert torch.equal(generate(process, halves(process), sampler, [control], **options), plain)


@pytest.mark.parametrize("tree", [False, True], ids=["tokens", "children"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_network_in_bfloat16_is_recorded(compiled, tree):
    parents = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3])
    process = dd.presets.hdlm(parents).to(DEVICE)
    torch.manual_seed(0)
    sizes = dict(dim=64, depth=2, heads=2, tree=[parents] if tree else None)
    model = DiT(process.num_states, process.vocab_size, **sizes).to(DEVICE).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    if compiled and DEVICE == "cuda":
        model.compile_trunk()
    half = sampling_steps.Half(model)
    if tree:
        half.tree = model.tree
        half.siblings = model.siblings
    meaning = dd.Children.of(model) if tree else "cavity"
    draws = {}
    for name, control in sampling_steps.WAYS.items():
        draws[name] = generate(
            process, half, Ancestral(), [control()], steps=40, parameterization=meaning
        )
    assert torch.equal(draws["recorded"], draws["fixed"])
    if not tree or DEVICE == "cuda":
        assert torch.equal(draws["fixed"], draws["called"])


TRAINED = steps.OPTIONS | {
    "float32": ("hdlm", {"hardware.bf16": False}),
    "compiled": ("hdlm", {"hardware.compile": DEVICE == "cuda"}),
    "not ahead": ("hdlm", {"hardware.ahead": False}),
}


@pytest.mark.parametrize("option", TRAINED)
def test_recorded_steps_are_those_that_are_not_recorded(option, monkeypatch):
    """Up to the order of atomic sums."""
    kind, toggles = TRAINED[option]
    results, recorded = train_steps(kind, toggles | STEP, SIZE)
    assert recorded.compute.captured.number == 1
    monkeypatch.setattr(graph, "ORDINARY", STEPS)
    expected, ordinary = train_steps(kind, toggles | STEP, SIZE)
    assert ordinary.compute.captured.number == 0
    for one, other in zip(results, expected, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-3)
        assert one.rate == other.rate
    assert len({one.loss for one in results}) == STEPS
    pairs = zip(recorded.network.parameters(), ordinary.network.parameters(), strict=True)
    for value, wanted in pairs:
        torch.testing.assert_close(value, wanted, rtol=1e-2, atol=1e-4)
    averages = (one.state.average.weights.values() for one in (recorded, ordinary))
    for value, wanted in zip(*averages, strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("option", ["hdlm", "gidd", "float32"])
def test_losses_are_those_of_the_ordinary_engine(option):
    kind, toggles = TRAINED[option]
    results, _ = train_steps(kind, toggles | STEP, SIZE)
    expected, _ = train_steps(kind, toggles, SIZE)
    for one, other in zip(results, expected, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-2)


@on_cuda
def test_a_recorded_step_launches_few_operations():
    size = ladder.GPU.sizes["laptop"]._replace(compile=False)
    launches = {}
    for name in ("blocks", "step"):
        trained = run(size, {"hardware.graph": name})
        with ladder.launching(trained) as step:
            for _ in range(6):
                float(step())
            launches[name] = ladder.profile_steps(step, 3, DEVICE)["launches"]
    assert launches["step"] < 0.3 * launches["blocks"]


def test_a_nan_in_a_recorded_step_changes_nothing_and_its_batch_is_saved(tmp_path):
    """The weights of the draws are too large for float32."""
    trained = run(SIZE, SCHEDULE | STEP)
    trained.recipe = replace(trained.recipe, output=replace(trained.recipe.output, folder=tmp_path))
    number = graph.ORDINARY + 1
    stream = trained.batches()
    parts = [trained.ready(next(stream), k) for k in range(number + 2)]
    for k in range(number):
        trained.finish(trained.launch(parts[k], False))
    before = [value.detach().clone() for value in trained.network.parameters()]
    (noisy,) = parts[number]
    lost = [replace(noisy, measure=torch.full_like(noisy.measure, 1e300))]
    broken = trained.launch(lost, False)
    trained.launch(parts[number + 1], False)
    for value, wanted in zip(trained.network.parameters(), before, strict=True):
        assert torch.equal(value, wanted)
    with pytest.raises(NonFiniteError, match=f"step {number}: "):
        trained.finish(broken)


@on_cuda
def test_a_process_whose_loss_waits_is_refused_by_name():
    words = SIZE.vocabulary.words
    rates = torch.full((words, words), 0.125).fill_diagonal_(0)
    rates -= rates.sum(1).diag()
    process = dict(kind="rate_matrix", matrix=rates.tolist(), schedule=dict(kind="linear"))
    with pytest.raises(ValueError, match=r"hardware.graph='step': not with this process"):
        train_steps("mdlm", {"process": process} | STEP, SIZE)


def test_rows_of_the_ladder():
    setting = ladder.TINY._replace(device=DEVICE)
    sampled = sampling_steps.measure(setting.text._replace(device=DEVICE), backend="aot_eager")
    assert sampled["same_tokens"]["recorded"] == 1.0
    decoded = hub_decoding.measure(setting.hub._replace(device=DEVICE), 2)
    assert decoded["same_tokens"] > 0.9
