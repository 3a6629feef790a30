"""Runs with ``loss.memory``: two passes in training, resumed, in any layout, sampled with memory;
refusals.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from training_runs import check_layout, check_resumption, loss_of, losses, objective, trains
from zoo.runs import batch_of, exact, quiet, recipe_in, text

import ddlib as dd
from ddlib_models import DiT
from recipes import frontier
from recipes.config import Hardware
from recipes.engine import train
from recipes.engine.memory import estimate
from recipes.engine.objectives.noising import add_noise
from recipes.evaluation import frontier as quality
from recipes.generate import Options, generate
from recipes.generation.sampling import NOISE, Sampling, draw
from recipes.model_io import open_saved, publish

HALF = dict(kind="memory", share=0.5)


def memory_run(folder, name, loss=HALF, model=None, **changes):
    run = exact(recipe_in(folder, name, steps=8, loss=loss, **changes))
    return replace(run, model=run.model | (dict(memory=True) if model is None else model))


whole = trains(memory_run)


def batch(rows=slice(0, 64), length=6):
    x = torch.arange(64 * length).view(64, length) % 5
    return batch_of(x[rows], torch.arange(64)[rows])


def remembering(share, noisy, part, step=0):
    """The noisy batch with the sequences that get memory, and its objective."""
    given = objective(kind="memory", share=share)
    given.setting = SimpleNamespace(recipe=SimpleNamespace(seed=0))
    return given, given.recalling(noisy, part, step)


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_each_example_gets_memory_by_its_own_chance(share):
    process = dd.presets.mdlm(5)

    def recalls(rows, step=3):
        part = batch(rows)
        return remembering(share, add_noise(process, part, 0, step), part, step)[1].recalls

    whole = recalls(slice(0, 64))
    assert torch.equal(torch.cat([recalls(slice(i, i + 16)) for i in range(0, 64, 16)]), whole)
    assert share == 1 or not torch.equal(recalls(slice(0, 64), 4), whole)
    many = torch.cat([recalls(slice(0, 64), step) for step in range(40)]).double().mean()
    assert abs(float(many) - share) < 4 * (share * (1 - share) / 2560) ** 0.5 + 1e-9


class Recorder(torch.nn.Module):
    """Network whose features are a parameter times (1 + memory); it keeps what it is given."""

    takes_memory = True

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(5))
        self.given = []

    def features(self, z, t, *, memory=None):
        self.given.append(memory)
        dropped = torch.rand(z.shape)[..., None]
        return (1 if memory is None else 1 + memory) * self.weight + dropped

    def output_weights(self):
        return torch.eye(5), None

    def forward(self, z, t):
        return self.features(z, t)


@pytest.mark.parametrize("half", [False, True])
def test_the_first_pass_has_no_gradient_and_the_same_dropout(half):
    process = dd.presets.mdlm(5)
    network = Recorder()
    given, noisy = remembering(0.5, add_noise(process, batch(), 0, 0), batch())
    torch.manual_seed(0)
    dropped = torch.rand(64, 6)[..., None]
    torch.manual_seed(0)
    total, _ = loss_of(given, network, process, noisy, torch.tensor(1.0), half)
    first, memory = network.given
    assert first is None and not memory.requires_grad
    assert torch.equal(
        memory, torch.where(noisy.recalls[:, None, None], 1 + dropped, 0.0).expand(64, 6, 5)
    )
    total.backward()
    gradient = network.weight.grad.clone()
    # of the same second pass alone, with the memory as a constant
    network.weight.grad = None
    features = (1 + memory) * network.weight + dropped
    loss = dd.training_loss(
        process,
        features,
        noisy.x,
        noisy.z,
        dd.paces.Draw(noisy.t, noisy.measure),
        objective().rule,
        mask=noisy.mask,
        reduction="none",
    )
    loss.sum().backward()
    torch.testing.assert_close(
        gradient, network.weight.grad, rtol=2e-2 if half else 1e-5, atol=1e-4
    )


@pytest.mark.parametrize("half", [False, True])
def test_all_weights_get_a_gradient_after_the_first_pass(folder, whole, half):
    """Weights that the first pass casts to bfloat16 must not be those of the second."""
    saved = open_saved(whole.output.folder)
    model = saved.model.train()
    x = torch.randint(saved.process.vocab_size, (8, 16))
    part = batch_of(x)
    given, noisy = remembering(0.5, add_noise(saved.process, part, 0, 0), part)
    loss_of(given, model, saved.process, noisy, torch.tensor(1.0), half)[0].backward()
    lacking = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert not lacking


def test_a_run_resumes_with_the_same_numbers(folder, whole):
    weights = check_resumption(whole, memory_run(folder, "again"), 8, 4)
    assert weights["memory.weight"].abs().max() > 0


LAYOUTS = {
    "accumulated": (1, Hardware(micro_batch=2, threads=1)),
    "copies": (2, Hardware(threads=1)),
    "shards, accumulated": (2, Hardware(shard=True, micro_batch=2, threads=1)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_layout_changes_no_number(folder, whole, name):
    size, hardware = LAYOUTS[name]
    run = replace(memory_run(folder, name.replace(", ", "-")), hardware=hardware)
    check_layout(run, size, whole)


PLAIN = dict(memory=True, dropout=0.0)
KINDS = {
    "gidd": dict(process=dict(kind="gidd", p_uniform=0.2)),
    "children": dict(process=dict(kind="hdlm", clusters=6), model=PLAIN | dict(tree="run")),
    "ramp": dict(pace="ramp:lag=1"),
    "edges": dict(loss=HALF | dict(mode="edges")),
}


@pytest.mark.parametrize("name", KINDS)
def test_memory_trains_with_other_losses(folder, name):
    train(memory_run(folder, f"kind-{name}", **KINDS[name]))
    made = losses(folder / f"kind-{name}")
    assert len(made) == 8 and all(0 < loss < 60 for loss in made)


def test_packed_rows(folder):
    run = memory_run(folder, "packed")
    run = replace(run, data=replace(run.data, packed=True, length=48))
    train(run)
    again = replace(
        run,
        output=replace(run.output, folder=folder / "packed-2"),
        hardware=Hardware(micro_batch=2),
    )
    check_layout(again, 1, run)


def test_labels_are_dropped_from_both_passes():
    process = dd.presets.mdlm(5)
    network = DiT(6, 5, 16, 1, 2, cond_dim=8, num_classes=3, label_dropout=0.5, memory=True)
    seen = []
    network.labels.register_forward_hook(lambda module, classes, vectors: seen.append(vectors))
    part = replace(batch(), labels=torch.arange(64) % 3)
    given, noisy = remembering(1.0, add_noise(process, part, 0, 0), part)
    loss_of(given, network, process, noisy, torch.tensor(1.0))
    assert len(seen) == 2 and torch.equal(*seen)
    assert 0 < (seen[0] == network.labels.weight[3]).all(1).sum() < 64


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_samples_are_drawn_with_memory_on_request(whole, precision):
    saved = open_saved(whole.output.folder, precision=precision)
    torch.nn.init.normal_(saved.model.memory.weight)
    index = torch.arange(4)
    without, with_memory = (
        draw(saved, Sampling(steps=8, memory=memory), 0, index, 16) for memory in (False, True)
    )
    assert not torch.equal(without, with_memory)
    assert torch.equal(
        draw(saved, Sampling(steps=8, memory=True), 0, index[1:3], 16), with_memory[1:3]
    )


def test_a_network_of_a_custom_loop_is_published_with_it(folder, whole, tmp_path):
    process = dd.presets.mdlm(open_saved(whole.output.folder).process.vocab_size)
    network = DiT(process.num_states, process.vocab_size, 16, 1, 2, cond_dim=8, memory=True).eval()
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    publish(tmp_path / "own", network, process, text(folder / "data"), length=16)
    drawn = draw(
        open_saved(tmp_path / "own"), Sampling(steps=8, memory=True), 0, torch.arange(4), 16
    )
    noise = dd.KeyedGenerator(0, NOISE, torch.arange(4))
    wanted = dd.sample(
        process, network, (4, 16), steps=8, generator=noise, controls=[dd.controls.Memory()]
    )
    assert torch.equal(drawn, wanted)


def test_a_run_with_memory_starts_from_weights_without(folder):
    """The first loss is that of the same start without memory.

    A start in the other direction is refused.
    """
    plain = dict(memory=False, dropout=0.0)
    before = memory_run(folder, "before", {}, plain)
    assert train(replace(before, steps=2))
    start = dict(start=str(before.output.folder), steps=1)
    runs = (
        replace(memory_run(folder, "with"), **start),
        replace(memory_run(folder, "plain", {}, plain), **start),
    )
    assert all(map(train, runs)) and losses(runs[0].output.folder) == losses(runs[1].output.folder)
    with pytest.raises(ValueError, match="the model has no memory"):
        train(memory_run(folder, "back", {}, plain, start=str(runs[0].output.folder)))


def test_the_frontier_draws_with_memory_on_request(whole, folder, tmp_path):
    """The cells are those of ``generate``.

    A network without memory is refused before anything is drawn.
    """
    found = {}
    asked = frontier.Options(
        run=str(whole.output.folder),
        scorer="none",
        samplers=("ancestral",),
        samples=8,
        calls=(4,),
        length=16,
    )
    for memory in (False, True):
        given = replace(asked, memory=memory, out=tmp_path / f"{memory}.json")
        found[memory] = frontier.frontier(given, quiet())
    saved = open_saved(whole.output.folder)
    drawn = draw(saved, Sampling(steps=4, memory=True), 0, torch.arange(8), 16).tolist()
    assert found[True]["protocol"]["memory"] and not found[False]["protocol"]["memory"]
    (cell,) = found[True]["cells"]
    judged = quality.judge_documents(saved, [saved.document(row) for row in drawn], None, False)
    assert cell["entropy"] == judged["entropy"]
    process = saved.process
    plain = DiT(process.num_states, process.vocab_size, 16, 1, 2)
    publish(tmp_path / "plain", plain, process, text(folder / "data"), length=16)
    with pytest.raises(ValueError, match="memory=True"):
        frontier.frontier(replace(asked, run=str(tmp_path / "plain"), memory=True), quiet())


def test_generate_writes_the_option_down(whole, tmp_path):
    sampling = Sampling(steps=4, memory=True)
    out = tmp_path / "x.jsonl"
    generate(
        Options(run=str(whole.output.folder), samples=2, sampling=sampling, out=out),
        quiet(),
    )
    assert '"memory": true' in out.read_text()


def test_the_estimate_includes_the_first_pass(folder):
    assert "peak of a training step" in estimate(memory_run(folder, "estimated"))


def test_the_description_of_the_loss_names_the_option():
    assert "memory from a first pass in 0.5 of the rows" in objective(**HALF).about()
    assert "first pass" not in objective().about()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(model=dict(memory=False)),
            "loss.kind=memory: not with DiT, which does not set takes_memory = True",
        ),
        (dict(loss={}), "loss.kind: must be memory with this DiT"),
        (dict(pace="blocks:size=4"), "loss.kind=memory: not with pace=Blocks"),
    ],
)
def test_mismatches_are_refused_before_training(folder, changes, message):
    with pytest.raises(ValueError, match=message):
        train(memory_run(folder, "refused", **changes))


@pytest.mark.parametrize("share", [-0.1, 0.0, 1.5])
def test_a_share_is_a_probability(share):
    with pytest.raises(ValueError, match=rf"share={share}: must lie in \(0, 1\]"):
        objective(kind="memory", share=share)


def test_sampling_that_has_no_memory_is_refused(folder, whole):
    other = memory_run(folder, "without", loss={}, model={})
    train(replace(other, steps=1))
    index = torch.arange(2)
    with pytest.raises(
        ValueError,
        match="memory=True: controls holds Memory\\(\\), and the denoiser DiT does not support it",
    ):
        draw(open_saved(other.output.folder), Sampling(steps=2, memory=True), 0, index, 16)
    with pytest.raises(
        ValueError, match="memory=True: controls holds Memory\\(\\), and pace is Blocks"
    ):
        draw(
            open_saved(whole.output.folder),
            Sampling(steps=2, memory=True, pace="blocks:size=4"),
            0,
            index,
            16,
        )
