"""Preferences between pairs: the loss is its formula, the margin rises, runs resume, refusals."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_engine_reliability import killed_and_finished
from torch import nn
from training_runs import check_resumption, curve, losses, objective, trained
from zoo.runs import recipe, text

import ddlib as dd
from recipes.config import Hardware, Optimizer
from recipes.data import open_prepared, read_pairs
from recipes.data.layout import Layout
from recipes.data.sequences import Sequences
from recipes.data.symbols import InMemory, SymbolCorpus, _prepare
from recipes.engine import train
from recipes.engine.network import Network
from recipes.engine.objectives.preference import Paired
from recipes.model_io import open_saved

F64 = torch.float64
QUICK = Optimizer(lr=1e-2, warmup=2, ema=0.0)
PROMPT = [7, 8, 9]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("preference")


@pytest.fixture(scope="module")
def data(folder):
    return text(folder / "data")


@pytest.fixture(scope="module")
def begun(folder, data):
    """Folder of a short run, from which others start."""
    run = recipe(data, folder / "begun", steps=2)
    train(run)
    return str(run.output.folder)


def written(path, lines):
    """File of pairs with these lines."""
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(path)


def pairs_of(folder):
    """Pairs of lists of ids: an answer with small ids is preferred."""
    lines = [
        dict(prompt=PROMPT, chosen=[20 + i, 21, 22], rejected=[220, 221 + i, 222, 223])
        for i in range(6)
    ]
    return written(folder / "pairs.jsonl", lines)


def preferring(data, begun, folder, name, **changes):
    """Run on the pairs; ``loss`` holds changed keys of the loss."""
    loss = dict(kind="preference", pairs=pairs_of(folder)) | changes.pop("loss", {})
    options = dict(start=begun, steps=8) | changes
    return recipe(data, folder / name, loss=loss, **options)


# the loss


class Table(nn.Module):
    """Network whose logits depend on all states, and on the time."""

    own_times = False

    def __init__(self, process, length, seed):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        shape = (length, process.num_states, length, process.vocab_size)
        self.weight = nn.Parameter(torch.randn(shape, generator=generator, dtype=F64))

    def forward(self, z, t):
        rows = self.weight[torch.arange(z.shape[1]), z]
        return (rows * (1 + t.to(F64)[:, None, None, None])).sum(1)


LENGTH = 4
PROCESSES = {
    "masks": dd.presets.mdlm(5),
    "tree-xi": dd.presets.hdlm([0, 0, 1, 1, 1], xi=0.9),
    "gidd": dd.presets.gidd(5, 0.3),
}


def tiny(process, draws=1, beta=0.5):
    """Objective with a table as network and another as reference, and a batch of pairs.

    The first token is the prompt, the last one of the rejected answers is padding.
    """
    made = objective(kind="preference", pairs="none", draws=draws, beta=beta)
    network, base = (Network(Table(process, LENGTH, seed)) for seed in (1, 2))
    made.setting = SimpleNamespace(
        process=process,
        network=network,
        pace=dd.paces.Together(),
        recipe=SimpleNamespace(seed=3),
    )
    made.base = base.requires_grad_(False)
    made.density = None
    made.at_once = False
    made._sums = torch.zeros(4, dtype=F64)
    chosen = torch.tensor([[0, 1, 2, 3], [4, 4, 0, 1], [2, 2, 2, 2]])
    rejected = torch.tensor([[0, 3, 3, 0], [4, 1, 1, 0], [2, 0, 1, 0]])
    x = torch.cat([chosen, rejected])
    free = (torch.arange(LENGTH) > 0).expand(x.shape)
    counted = torch.ones_like(free).clone()
    counted[3:, -1] = False
    zeros = torch.zeros(len(x))
    return made, Paired(
        x=x,
        z=x,
        t=zeros,
        measure=zeros,
        mask=torch.ones_like(free),
        free=free,
        counted=counted,
        index=torch.tensor([10, 11, 12]),
    )


def log_ratio(process, networks, x, counted, free, index, draw):
    """The difference of bounds of one draw, term by term by the generic formula of the bound."""
    noise = dd.KeyedGenerator(3, draw, index)
    t, measure = (part.to(F64) for part in dd.paces.Together().draw(*x.shape, noise)[:2])
    z = torch.where(free, process.sample(x, t.float(), noise), x)
    values = []
    for network in networks:
        logits = network.model(z, t.float())
        nats = dd.nelbo(process, logits, x, z, t.float(), method="generic")
        values.append((measure[:, None] * nats * (counted & free)).sum(1))
    return values[1] - values[0]


@pytest.mark.parametrize("kind", PROCESSES)
def test_the_loss_is_its_formula(kind):
    process = PROCESSES[kind]
    made, noisy = tiny(process, draws=2)
    network = made.setting.network
    total, values = made.loss(noisy, network, torch.tensor(1 / noisy.x.numel()))
    ratios = []
    for half in (slice(0, 3), slice(3, 6)):
        parts = noisy.x[half], noisy.counted[half], noisy.free[half], noisy.index
        draws = [log_ratio(process, (network, made.base), *parts, draw) for draw in (0, 1)]
        ratios.append(sum(draws).detach() / 2)
    margin = 0.5 * (ratios[0] - ratios[1])
    want = -torch.sigmoid(margin).log()
    assert torch.allclose(total, want.mean(), rtol=1e-5)
    assert values.shape == noisy.x.shape
    assert torch.allclose(values[:3], want[:, None].expand(3, LENGTH), rtol=1e-5)
    assert torch.equal(values[:3], values[3:])
    made.setting.world = SimpleNamespace(sum=lambda value: value)
    numbers = made.numbers_to_log()
    assert numbers["margin"] == pytest.approx(float(margin.mean()), rel=1e-4)
    assert numbers["accuracy"] == pytest.approx(float((margin > 0).double().mean()))
    assert numbers["chosen"] == pytest.approx(float(0.5 * ratios[0].mean()), rel=1e-4)


@pytest.mark.parametrize("kind", PROCESSES)
def test_the_gradient_is_that_of_differences(kind):
    made, noisy = tiny(PROCESSES[kind])
    network = made.setting.network
    scale = torch.tensor(1 / noisy.x.numel(), dtype=F64)
    made.loss(noisy, network, scale)[0].backward()
    weight = network.model.weight
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(5), dtype=F64)
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            weight += sign * 1e-4 * direction
            values.append(float(made.loss(noisy, network, scale)[0]))
            weight -= sign * 1e-4 * direction
    got = float((weight.grad * direction).sum())
    assert (values[0] - values[1]) / 2e-4 == pytest.approx(got, rel=1e-5)
    assert abs(got) > 1e-2
    assert made.base.model.weight.grad is None


@pytest.mark.parametrize("kind", PROCESSES)
def test_equal_networks_have_no_margin(kind):
    made, noisy = tiny(PROCESSES[kind])
    made.base.load_state_dict(made.setting.network.state_dict())
    total, _ = made.loss(noisy, made.setting.network, torch.tensor(1 / noisy.x.numel()))
    assert float(total.detach()) == pytest.approx(np.log(2))
    assert made._sums.tolist() == [3, 1.5, 0, 0]


# runs


@pytest.fixture(scope="module")
def whole(folder, data, begun):
    """The run that nothing happened to."""
    run = preferring(data, begun, folder, "whole", loss=dict(draws=2))
    train(run)
    return run


@pytest.mark.parametrize("kind", ["hdlm", "gidd"])
def test_training_raises_the_margin(folder, data, begun, kind):
    options = {"hdlm": dict(clusters=6, xi=0.9), "gidd": dict(p_uniform=0.2)}[kind]
    process = dict(kind=kind) | options
    if kind != "hdlm":
        run = recipe(data, folder / "begun-gidd", steps=2, process=process)
        train(run)
        begun = str(run.output.folder)
    run = preferring(
        data,
        begun,
        folder,
        f"raised-{kind}",
        process=process,
        optimizer=QUICK,
        steps=16,
    )
    train(run)
    records = [one for one in curve(run.output.folder) if one["kind"] == "train"]
    assert records[0]["margin"] == 0 and records[0]["accuracy"] == 0.5
    assert records[0]["loss"] == pytest.approx(np.log(2))
    assert sum(one["margin"] for one in records[-4:]) / 4 > 0.5
    assert sum(one["accuracy"] for one in records[-4:]) / 4 > 0.8
    assert records[-1]["loss"] < 0.6


def test_blocks_take_the_clean_sequence(folder, data):
    """A network made for its blocks, and a larger one as reference that is not."""
    blocks = dict(pace="blocks:size=4", model=dict(kind="dit", dim=16, depth=1, heads=2, pad_to=1))
    first = recipe(data, folder / "begun-blocks", steps=1, **blocks)
    train(first)
    model = dict(kind="dit", dim=32, depth=2, heads=2, pad_to=1)
    other = recipe(data, folder / "larger", steps=1, model=model)
    train(other)
    start = str(first.output.folder)
    for name, loss in (("own", {}), ("larger", dict(reference=str(other.output.folder)))):
        run = preferring(
            data, start, folder, f"blocks-{name}", loss=loss, optimizer=QUICK, steps=12, **blocks
        )
        train(run)
        records = [one for one in curve(run.output.folder) if one["kind"] == "train"]
        assert (records[0]["margin"] == 0) == (name == "own")
        gain = records[-1]["margin"] + records[-2]["margin"] - 2 * records[0]["margin"]
        assert gain > 0.5


def test_it_goes_on_from_a_checkpoint(folder, whole):
    again = replace(whole, output=replace(whole.output, folder=folder / "again"))
    check_resumption(whole, again, 8, 4)


def test_killed_and_started_again_it_makes_the_same_run(folder, whole):
    killed = replace(whole, output=replace(whole.output, folder=folder / "killed"))
    assert killed_and_finished(killed, 1, 5, in_a_save=False) > 0
    assert curve(folder / "killed") == curve(whole.output.folder)


@pytest.mark.parametrize("shard", [False, True], ids=["copies", "shards"])
def test_two_processes_make_the_run_of_one(folder, whole, begun, shard):
    together = replace(
        whole,
        loss=whole.loss | dict(reference=begun),
        hardware=Hardware(threads=1, shard=shard),
        output=replace(whole.output, folder=folder / f"two-{shard}"),
    )
    trained(together, 2)
    assert losses(together.output.folder) == pytest.approx(losses(whole.output.folder), rel=1e-4)


def test_other_pairs_do_not_continue_a_run(folder, data, begun):
    run = preferring(data, begun, folder, "changed/run", steps=2)
    train(run)
    lines = [dict(prompt=[], chosen=[1, 2], rejected=[3])]
    path = written(folder / "pairs2.jsonl", lines)
    shutil.copy(path, folder / "pairs.jsonl")
    with pytest.raises(ValueError, match="holds other pairs than when the checkpoint was written"):
        train(replace(run, steps=4), accept_changes=True)


def test_another_reference_does_not_continue_a_run(folder, data, begun):
    other = recipe(data, folder / "other", steps=1, seed=5)
    train(other)
    loss = dict(reference=begun)
    run = preferring(data, begun, folder, "referred", loss=loss, steps=1)
    train(run)
    for reference, message in (
        (str(other.output.folder), "loss.reference=.*other': holds other weights than when"),
        (None, r"lacks the state of objective \(loss\.kind, its keys"),
    ):
        changed = replace(run, steps=2, loss=run.loss | dict(reference=reference))
        with pytest.raises(ValueError, match=message):
            train(changed, accept_changes=True)
    moved = shutil.copytree(begun, folder / "moved")
    train(replace(run, steps=2, loss=run.loss | dict(reference=str(moved))), accept_changes=True)


def test_a_trained_run_is_read_without_its_pairs(folder, data, begun):
    run = preferring(data, begun, folder, "read/run", steps=1)
    train(run)
    (folder / "pairs.jsonl").unlink()
    assert open_saved(run.output.folder).model is not None


# pairs


def test_texts_and_ids_of_a_file(folder, data):
    prepared = open_prepared(data)
    lines = [
        dict(prompt="to", chosen="of the", rejected="of"),
        dict(prompt=[5], chosen=[6, 7], rejected="the"),
        dict(prompt="", chosen="of the", rejected="the"),
    ]
    pairs = read_pairs(folder / written(folder / "texts.jsonl", lines), prepared, 16)
    assert len(pairs) == 3

    def ids(words):
        return prepared.tokenizer.encode(words, add_special_tokens=False).ids

    begin, end = prepared.bos_id, prepared.eos_id
    assert pairs.chosen[0].tolist() == [begin, *ids("to"), *ids("of the"), end]
    assert pairs.rejected[0].tolist() == [begin, *ids("to"), *ids("of"), end]
    marks = [True] * (1 + len(ids("to")))
    assert pairs.chosen.given(0).tolist()[: len(marks)] == marks
    assert sum(pairs.chosen.given(0)) == sum(pairs.rejected.given(0)) == len(marks)
    assert pairs.chosen[1].tolist() == [5, 6, 7]
    assert pairs.rejected[1].tolist() == [5, *ids("the"), end]
    assert pairs.chosen.given(2).tolist()[:2] == [True, False]


def folder_of_pairs(path, ids, given, symbols=300, shuffle=None, left_out=0):
    """Prepared folder of these training documents."""
    parts = {"ids": ids, "symbols": tuple(map(str, range(symbols))), "given": given}
    parts |= {"left_out": left_out}
    few = parts | {"ids": arrays([[0, 0], [0, 1, 0]]), "given": marks_of([[1, 0], [1, 0, 0]])}
    made = {"train": InMemory(Sequences(**parts)), "validation": InMemory(Sequences(**few))}
    corpus = SymbolCorpus(
        source={"kind": "ids"},
        validation={"kind": "ids", "split": "validation"},
        held_out=None,
        shuffle=shuffle,
        ends=True,
    )
    return _prepare(corpus, path, made)


def arrays(rows):
    return [np.array(row) for row in rows]


def marks_of(rows):
    return [np.array(row, dtype=bool) for row in rows]


def test_pairs_of_a_prepared_folder(folder):
    ids = arrays([[1, 2, 3], [1, 2, 4, 5], [9, 8], [9, 7]])
    given = marks_of([[1, 1, 0], [1, 1, 0, 0], [1, 0], [1, 0]])
    prepared = folder_of_pairs(folder / "prepared", ids, given)
    pairs = read_pairs(folder / "prepared", prepared, 8)
    end = prepared.eos_id
    assert [pairs.chosen[i].tolist() for i in range(2)] == [[1, 2, 3, end], [9, 8, end]]
    assert [pairs.rejected[i].tolist() for i in range(2)] == [[1, 2, 4, 5, end], [9, 7, end]]
    assert pairs.rejected.given(0).tolist() == [True, True, False, False, False]
    lines = [
        dict(prompt=[1, 2], chosen=[3, end], rejected=[4, 5, end]),
        dict(prompt=[9], chosen=[8, end], rejected=[7, end]),
    ]
    same = read_pairs(folder / written(folder / "same.jsonl", lines), prepared, 8)
    assert same.digest == pairs.digest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(left_out=2), "2 sequences of its source were left out, must hold all"),
        (dict(shuffle=0), "was shuffled, must be in the order of its source"),
    ],
)
def test_a_folder_whose_documents_are_no_longer_in_turn_is_refused(tmp_path, options, message):
    """Answers to one prompt, of which the second and the third are too long, are a wrong pair."""
    ids = arrays([[1, 3], [1, 4]])
    prepared = folder_of_pairs(tmp_path / "pairs", ids, marks_of([[1, 0], [1, 0]]), **options)
    with pytest.raises(ValueError, match=f"pairs=.*: {message}"):
        read_pairs(tmp_path / "pairs", prepared, 8)


BAD_FOLDERS = {
    "prompts": (
        arrays([[1, 2, 3], [1, 4, 4]]),
        marks_of([[1, 1, 0], [1, 1, 0]]),
        "documents 0 and 1: the given tokens of the two answers differ, .* are .1, 2. and .1, 4.",
    ),
    "places": (
        arrays([[1, 2, 3], [1, 2, 4]]),
        marks_of([[1, 1, 0], [1, 0, 0]]),
        "documents 0 and 1: the given tokens of the two answers differ",
    ),
    "odd": (
        arrays([[1, 2, 3], [1, 4, 4], [1, 2]]),
        marks_of([[1, 0, 0], [1, 0, 0], [1, 0]]),
        "holds 3 training documents, must hold an even number",
    ),
}


def test_a_folder_without_prompts_and_a_text_without_a_template_are_refused(tmp_path, data):
    """Consecutive texts are no pairs; messages of a tuned run have its template."""
    prepared = open_prepared(data)
    with pytest.raises(ValueError, match="holds sequences without given tokens, must hold prompts"):
        read_pairs(data, prepared, 16)
    file = tmp_path / "pairs.jsonl"
    written(file, [dict(prompt="a", chosen="b", rejected="c")])
    assert len(read_pairs(file, prepared, 16)) == 1
    tuned = replace(prepared, layout=Layout("chat", template="{{ messages }}"))
    with pytest.raises(
        ValueError, match="line 1: prompt is a text, must be a list of ids: the run"
    ):
        read_pairs(file, tuned, 16)


def test_pairs_that_repeat_others_are_named(tmp_path, data):
    other = dict(GOOD, chosen=[5])
    file = Path(written(tmp_path / "pairs.jsonl", [other, GOOD, GOOD, dict(GOOD, prompt=[]), GOOD]))
    with pytest.warns(match=r"line 3 repeats the pair of line 2; 2 of 5 pairs are repeated"):
        assert len(read_pairs(file, open_prepared(data), 16)) == 5


def test_padding_is_no_token_of_an_answer(tmp_path, data):
    prepared = open_prepared(data)
    lines = [dict(GOOD, rejected=[3, prepared.pad_id])]
    with pytest.raises(ValueError, match=f"rejected holds the padding {prepared.pad_id}, must not"):
        read_pairs(Path(written(tmp_path / "pairs.jsonl", lines)), prepared, 16)


@pytest.mark.parametrize("name", BAD_FOLDERS)
def test_folders_that_hold_no_pairs(tmp_path, name):
    ids, given, message = BAD_FOLDERS[name]
    prepared = folder_of_pairs(tmp_path / "pairs", ids, given)
    with pytest.raises(ValueError, match=message):
        read_pairs(tmp_path / "pairs", prepared, 8)


def test_a_folder_of_other_symbols_is_refused(tmp_path):
    ids = arrays([[1, 2, 3], [1, 4, 4]])
    given = marks_of([[1, 0, 0], [1, 0, 0]])
    other = folder_of_pairs(tmp_path / "other", ids, given, 20)
    folder_of_pairs(tmp_path / "pairs", ids, given)
    with pytest.raises(ValueError, match="made with another tokenizer than the model's"):
        read_pairs(tmp_path / "pairs", other, 8)


GOOD = dict(prompt=PROMPT, chosen=[1, 2], rejected=[3])
LINES = {
    "empty": ("", "has no pair, must have at least 1"),
    "not JSON": ("{", "line 1 is not JSON"),
    "list": ("[1, 2]", "line 1 has no prompt, chosen, rejected: must be an object"),
    "misspelled": (
        '{"promt": "", "chosen": "a", "rejected": "b"}',
        "no prompt and has promt: must",
    ),
    "more": (json.dumps(GOOD | dict(margin=3, id=1)), "line 1 has margin, id: must be an object"),
    "second": (f"{json.dumps(GOOD)}\n\n{{}}", "line 3 has no prompt, chosen, rejected"),
    "number": (json.dumps(GOOD | dict(chosen=3)), "line 1: chosen is 3, must be a text or a list"),
    "floats": (json.dumps(GOOD | dict(rejected=[1.0])), "rejected is .1.0., must be a text or"),
    "no answer": (json.dumps(GOOD | dict(chosen=[])), "line 1: chosen has no token behind the"),
    "equal": (json.dumps(GOOD | dict(chosen=[3])), "chosen and rejected are equal, must differ"),
    "long": (json.dumps(GOOD | dict(chosen=[1] * 14)), "chosen has 17 tokens .* data.length=16"),
    "ids": (json.dumps(GOOD | dict(rejected=[100_000])), "rejected holds id 100000, must be in"),
    "negative": (json.dumps(GOOD | dict(rejected=[-1])), "rejected holds id -1, must be in"),
    "special": (
        json.dumps(GOOD | dict(chosen="a<|endoftext|>")),
        "chosen contains .* special",
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_lines_that_hold_no_pair(tmp_path, data, begun, name):
    content, message = LINES[name]
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    run = preferring(data, begun, tmp_path, "run", loss=dict(pairs=str(path)))
    with pytest.raises(ValueError, match=f"loss.pairs=.*{message}"):
        train(run)


REFUSED = {
    "no file": (dict(loss=dict(pairs="nowhere.jsonl")), "loss.pairs=nowhere.jsonl: there is no"),
    "beta of 0": (dict(loss=dict(beta=0.0)), "beta=0.0: must be above 0"),
    "negative beta": (dict(loss=dict(beta=-1.0)), "beta=-1.0: must be above 0"),
    "draws": (dict(loss=dict(draws=0)), "draws=0"),
    "times": (dict(loss=dict(times="often")), "often"),
    "random start": (dict(start="random"), "loss.reference=None: not with start='random'"),
    "shards": (dict(hardware=Hardware(shard=True)), "loss.reference=None: not with hardware.shard"),
    "no reference": (dict(loss=dict(reference="nowhere/at/all")), "loss.reference='nowhere/at/all"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(folder, data, begun, name):
    changes, message = REFUSED[name]
    with pytest.raises((ValueError, TypeError)) as refusal:
        train(preferring(data, begun, folder, name.replace(" ", "-"), **changes))
    assert message in str(refusal.value)


def test_packed_rows_are_refused(folder, data, begun):
    run = preferring(data, begun, folder, "packed")
    with pytest.raises(ValueError, match=r"not with data\.packed"):
        replace(run, data=replace(run.data, packed=True))


def test_a_reference_of_another_process_is_refused(folder, data, begun):
    other = recipe(data, folder / "other-process", steps=1, process=dict(kind="mdlm"))
    train(other)
    loss = dict(reference=str(other.output.folder))
    with pytest.raises(ValueError, match=r"its process is Masked.*must be Hierarchical.*kind is"):
        train(preferring(data, begun, folder, "of-another-process", loss=loss))


def test_a_reference_of_another_vocabulary_is_refused(folder, data, begun):
    words = text(folder / "few-words", 290, 60)
    other = recipe(words, folder / "other-words", steps=1)
    other = replace(other, data=replace(other.data, corpus=None))
    train(other)
    loss = dict(reference=str(other.output.folder))
    with pytest.raises(ValueError, match=r"loss\.reference=.*made with another tokenizer"):
        train(preferring(data, begun, folder, "of-other-words", loss=loss))
