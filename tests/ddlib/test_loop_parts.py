"""ddlib.integrations: what every training loop shares, noise by key, padding, loss, bound and the
saved process.
"""

import json
import pickle

import numpy as np
import pytest
import torch
from refusals import refuses
from torch.utils.data import DataLoader, Dataset
from zoo.calls import seeded

import ddlib as dd
from ddlib.integrations import (
    DiffusionCollator,
    DiffusionLoss,
    Positions,
    PositionSampler,
    Targets,
    load_process,
    mean_bound,
    save_process,
    sequence_bounds,
    write_samples,
)
from ddlib.schedules import Linear
from ddlib.utils.validation import UsageWarning

pytestmark = [
    pytest.mark.usefixtures("as_users_call"),
    pytest.mark.filterwarnings(
        "ignore:pad_token_id is 0:ddlib.utils.validation.UsageWarning"
    ),  # every token is data
]

PROCESS = dd.presets.hdlm([0, 0, 1, 1, 2], xi=0.9)
DATA = [{"input_ids": [(n * k) % 5 for k in range(1, n % 4 + 4)]} for n in range(10)]
TIMES = ("t", "measure")
FIELDS = ("x", "z", "t", "mask", "measure", "position")


def batches(positions=None, batch_size=4, collate=None, **options):
    positions = Positions(DATA, passes=2) if positions is None else positions
    collate = collate or DiffusionCollator(PROCESS, batch_size=4, pad_to_multiple_of=7)
    return list(DataLoader(positions, batch_size=batch_size, collate_fn=collate, **options))


def joined(batches, name):
    return torch.cat([batch["labels"][name] for batch in batches])


@pytest.mark.parametrize(
    "options", [{"num_workers": 2}, {"batch_size": 2}, {"batch_size": 8}], ids=str
)
def test_noise_is_the_same_for_any_workers_and_batches(options):
    one = batches()
    other = batches(**options)
    for name in FIELDS:
        assert torch.equal(joined(one, name), joined(other, name)), name
    assert all(type(batch["labels"]) is Targets for batch in other)


def test_noise_is_that_of_a_plain_keyed_generator():
    for step, batch in enumerate(batches()):
        index = torch.arange(4 * step, 4 * step + 4)
        labels = batch["labels"]
        noise = dd.KeyedGenerator(0, step, index)
        t = dd.sample_times(4, generator=noise)
        assert (
            torch.equal(labels["position"], index)
            and torch.equal(batch["t"], t)
            and torch.equal(labels["t"], t)
        )
        assert torch.equal(batch["z"], PROCESS.sample(labels["x"], t, noise)) and torch.equal(
            labels["z"], batch["z"]
        )


def test_two_processes_have_the_noise_of_one():
    whole = batches(batch_size=8)
    for rank in range(2):
        parts = batches(batch_size=4, sampler=range(rank, 20, 2))
        assert torch.equal(joined(parts, "z"), joined(whole, "z")[rank::2])


def test_a_sampler_divides_positions_among_processes():
    positions = Positions(DATA)
    samplers = [PositionSampler(positions, 2, rank) for rank in range(2)]
    for sampler in samplers:
        sampler.set_epoch(3)
    assert [list(sampler) for sampler in samplers] == [[30, 32, 34, 36, 38], [31, 33, 35, 37, 39]]


def test_a_resumed_run_goes_on_where_it_stopped():
    assert torch.equal(joined(batches(sampler=range(8, 20)), "z"), joined(batches(), "z")[8:])


def test_every_pass_has_all_examples_in_another_order():
    rows = [tuple(item["input_ids"]) for item in Positions(DATA, passes=2)]
    assert (
        sorted(rows[:10]) == sorted(rows[10:]) == sorted(tuple(item["input_ids"]) for item in DATA)
    )
    assert rows[:10] != rows[10:]
    assert rows != [tuple(item["input_ids"]) for item in Positions(DATA, passes=2, seed=7)]
    assert [item["input_ids"] for item in Positions(DATA, shuffle=False)] == [
        item["input_ids"] for item in DATA
    ]


def test_epochs_of_the_sampler_are_passes():
    positions = Positions(DATA)
    sampler = PositionSampler(positions)
    found = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        found += batches(positions, batch_size=5, sampler=sampler)
    assert len(sampler) == 10
    assert torch.equal(joined(found, "z"), joined(batches(batch_size=5), "z"))


class Numbered(Dataset):
    """Ids alone, with the class of each sequence beside them."""

    def __len__(self):
        return 3

    def __getitem__(self, i):
        kept = [0] * (i == 0) + [1] * (i + (i > 0))
        return {"input_ids": torch.full((i + 1,), i), "attention_mask": kept, "label": i}


def test_padding_masks_and_other_entries():
    collate = DiffusionCollator(
        PROCESS, pad_token_id=4, pad_to_multiple_of=2, input_names=("x", "sigma")
    )
    [batch] = batches(Positions(Numbered(), shuffle=False), 3, collate)
    labels = batch["labels"]
    assert set(batch) == {"x", "sigma", "label", "labels"} and batch["label"].tolist() == [0, 1, 2]
    assert labels["x"].tolist() == [[0, 4, 4, 4], [1, 1, 4, 4], [2, 2, 2, 4]]
    assert labels["mask"].int().tolist() == [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]
    assert labels.ne(-100).sum() == 5


def batched(item):
    return batches(Positions([item] * 4))


test_bad_items_tokens_and_modes_are_refused = refuses(r"""
    batched(torch.zeros(2, 3).long()) | ValueError
        | has shape \(2, 3\), must be \(L,\): flatten a picture, ids.reshape\(-1\)
    batched(torch.full((3,), 0.5)) | TypeError
        | input_ids has dtype torch.float32, must be integers: token ids
    batched("ACGT") | TypeError
        | input_ids is 'ACGT', must be integers \(L,\), the token ids of a sequence
    batched((torch.zeros(3).long(), 1)) | TypeError
        | input_ids is \(tensor\(\[0, 0, 0\]\), 1\), must be integers
    batched({"text": "ACGT", "id": 1}) | ValueError
        | an item has text, id, position, must have input_ids
    batched({"input_ids": [1, 2], "attention_mask": [1]}) | ValueError
        | attention_mask has shape \(1,\), must be \(2,\), one for each of input_ids
    batched({"input_ids": [1, 2], "attention_mask": [1, 0.5]}) | ValueError
        | attention_mask is \[1.0, 0.5\], must hold 0 and 1
    batches([{"input_ids": [1], "label": 1}, {"input_ids": [1]}]) | ValueError
        | items have input_ids, label and input_ids, must have the same entries
    batched({"input_ids": [1], "labels": 1}) | ValueError
        | an item has 'labels', which the collator returns.* a class is 'label', the argument of the
            network
    batched({"input_ids": [1], "t": 0.5}) | ValueError | an item has 't', which the collator returns
    DiffusionCollator(PROCESS, pad_token_id=5) | ValueError
        | pad_token_id is 5, must be a token, in \[0, 4\]
    DiffusionLoss(PROCESS, mode="wrong") | ValueError | mode is 'wrong'
""")


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "bool"])
def test_ids_of_any_integer_type_are_read(dtype):
    rows = np.arange(8).reshape(4, 2).clip(0, 1 if dtype == "bool" else 4).astype(dtype)
    [batch] = batches(Positions(rows, shuffle=False))
    assert batch["labels"]["x"][:, :2].tolist() == rows.astype(int).tolist()
    padded, *_ = DiffusionCollator(PROCESS).pad([{"input_ids": []}, {"input_ids": [1]}])
    assert padded.tolist() == [[0], [1]]


def test_without_positions_the_noise_is_torchs():
    collate = DiffusionCollator(PROCESS)
    torch.manual_seed(0)
    with pytest.warns(
        UsageWarning,
        match="items have no position, .* wrap a dataset that has a length in Positions",
    ):
        one = collate([[1, 2], [3]])
    torch.manual_seed(0)
    t = dd.sample_times(2)
    assert torch.equal(one["t"], t) and "position" not in one["labels"]


def test_shuffled_positions_are_warned_of():
    with pytest.warns(
        UsageWarning, match="positions of a batch are .*, must ascend: .* do not shuffle"
    ):
        batches(shuffle=True, generator=seeded())


def test_an_epoch_that_goes_on_at_the_first_position_is_in_order():
    batches(sampler=[16, 17, 18, 19, 0, 1, 2, 3], batch_size=8)


def test_a_second_epoch_over_positions_is_warned_of():
    positions = Positions(DATA)
    batches(positions, sampler=[*range(10), 0, 1])
    with pytest.warns(
        UsageWarning, match="Positions are read again, .* passes=.*, or a PositionSampler"
    ):
        batches(positions)
    held_out = Positions(DATA, shuffle=False)
    batches(held_out)
    batches(held_out)


def test_padding_that_is_data_is_warned_of():
    process = dd.presets.mdlm(4)
    with pytest.warns(UsageWarning, match="pad_token_id is 3, which is also a token of the data"):
        DiffusionCollator(process, pad_token_id=3).pad([{"input_ids": [3, 1]}, {"input_ids": [1]}])
    DiffusionCollator(process, pad_token_id=2).pad([{"input_ids": [3, 1]}, {"input_ids": [1]}])
    DiffusionCollator(process, pad_token_id=3).pad([{"input_ids": [3, 1]}, {"input_ids": [1, 1]}])


def test_streams_and_wrapped_data_stay_as_they_are():
    positions = Positions(DATA)
    stream = iter(DATA)
    assert (
        Positions.of(positions) is positions
        and Positions.of(stream) is stream
        and Positions.of(None) is None
    )
    assert Positions.of(DATA, seed=3).seed == 3


@pytest.mark.parametrize("pace", [None, dd.paces.Blocks(2)], ids=str)
def test_the_loss_is_the_training_loss(pace):
    density = PROCESS.time_density(7, chance=0.2)
    collate = DiffusionCollator(
        PROCESS, batch_size=4, pad_to_multiple_of=2, pace=pace, density=density
    )
    labels = batches(collate=collate)[0]["labels"]
    logits = torch.randn(*labels["x"].shape, 5, generator=seeded())
    loss = DiffusionLoss(PROCESS, "clip:2", "edges")
    drawn = dd.paces.Draw(labels["t"], labels["measure"])
    given = [labels["x"], labels["z"], drawn]
    options = {"mask": labels["mask"], "mode": "edges"}
    expected = dd.training_loss(
        PROCESS, logits, *given, weighting=dd.weightings.Clip(2.0), **options
    )
    assert torch.equal(loss(logits, labels), expected)
    assert torch.equal(loss({"logits": logits}, labels), expected)
    halved = loss(logits, labels, num_items_in_batch=2 * labels["mask"].sum())
    assert torch.allclose(halved, expected / 2)


def test_the_loss_is_float32_within_autocast():
    labels = batches()[0]["labels"]
    logits = torch.randn(*labels["x"].shape, 5).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        inside = DiffusionLoss(PROCESS)(logits, labels)
    assert inside.dtype == torch.float32 and torch.equal(
        inside, DiffusionLoss(PROCESS)(logits.float(), labels)
    )


def cast(batch, dtype):
    """A batch as Lightning casts it: entry by entry, mappings built anew."""
    if isinstance(batch, dict):
        return type(batch)({name: cast(entry, dtype) for name, entry in batch.items()})
    return batch.to(dtype) if batch.is_floating_point() else batch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_times_of_a_batch_stay_exact_where_a_loop_casts_it(dtype):
    [batch] = batches(Positions(DATA), 10, DiffusionCollator(PROCESS, batch_size=10))
    labels = Targets(batch["labels"] | {name: batch["labels"][name].to(dtype) for name in TIMES})
    logits = torch.randn(*labels["x"].shape, 5)
    bare = {name: cast(entry, torch.bfloat16) for name, entry in labels.items()}
    half = cast({"t": batch["t"], "labels": labels}, torch.bfloat16)
    assert half["t"].dtype == torch.bfloat16 and type(half["labels"]) is Targets
    expected = DiffusionLoss(PROCESS)(logits, {name: labels[name] for name in labels})
    for other in (labels, half["labels"], pickle.loads(pickle.dumps(half["labels"])), bare):
        assert torch.equal(DiffusionLoss(PROCESS)(logits, other), expected)
    for name in TIMES:
        assert half["labels"][name].dtype == labels[name].dtype == dtype
        rounded = {**bare, name: labels[name].bfloat16()}
        with pytest.raises(TypeError, match=f"{name} of the labels has dtype torch.bfloat16, must"):
            DiffusionLoss(PROCESS)(logits, rounded)


def uniform(z, t):
    return torch.zeros(*z.shape, 5)


def test_the_mean_bound_is_that_of_one_call():
    found = batches(Positions(DATA, shuffle=False), 4)
    rows = torch.cat(
        [sequence_bounds(PROCESS, uniform, batch["labels"], seed=1) for batch in [*found, found[0]]]
    )
    mean = mean_bound(rows[torch.randperm(len(rows))])
    density = PROCESS.time_density(7, chance=0.2)
    noise = dd.KeyedGenerator(1, 0, torch.arange(10))
    whole = dd.bound(
        PROCESS, uniform, joined(found, "x"), noise, mask=joined(found, "mask"), density=density
    )
    assert mean.value == pytest.approx(whole.per_token.value) and mean.unit == "nats per token"
    assert (
        mean.standard_error == pytest.approx(whole.per_token.standard_error)
        and mean.method == "stratified"
    )


def test_the_bound_is_float32_within_autocast():
    labels = batches()[0]["labels"]
    net = torch.nn.Embedding(PROCESS.num_states, 5)
    weight = torch.randn(5, 5)

    def denoiser(z, t):
        return net(z) @ weight

    def half(z, t):
        with torch.autocast("cpu", torch.bfloat16):
            return denoiser(z, t).float()

    with torch.autocast("cpu", torch.bfloat16):
        inside = sequence_bounds(PROCESS, denoiser, labels)
    assert torch.equal(inside, sequence_bounds(PROCESS, half, labels))
    assert not torch.equal(inside, sequence_bounds(PROCESS, denoiser, labels))


def of_class(z, t, label):
    return 2 * torch.eye(5)[label][:, None].expand(*z.shape, 5)


@pytest.mark.parametrize("half", [False, True])
def test_a_bound_takes_the_conditions_of_its_sequences(half):
    rows = [{"input_ids": [1, 2, 3], "label": n % 5} for n in range(6)]
    [batch] = batches(Positions(rows, shuffle=False), 6)
    bare = {**batch["labels"], "conditions": {}}
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        found = sequence_bounds(PROCESS, of_class, batch["labels"])
    assert torch.equal(
        found, sequence_bounds(PROCESS, lambda z, t: of_class(z, t, batch["label"]), bare)
    )
    assert not torch.equal(found, sequence_bounds(PROCESS, uniform, bare))


def test_options_of_the_bound_are_passed_on():
    labels = batches()[0]["labels"]
    rows = sequence_bounds(PROCESS, uniform, labels, density=None, levels="balanced")
    noise = dd.KeyedGenerator(0, 0, labels["position"])
    whole = dd.bound(PROCESS, uniform, labels["x"], noise, mask=labels["mask"], levels="balanced")
    assert torch.equal(rows[:, 1], whole.total.sum(1).double())


def test_a_process_is_saved_as_plain_values(tmp_path):
    assert json.loads(save_process(PROCESS, tmp_path / "new").read_text()) == dd.values(PROCESS)
    assert dd.values(load_process(tmp_path / "new")) == dd.values(PROCESS)
    (tmp_path / "new" / "process.json").write_text('{"kind": "os:getcwd"}')
    with pytest.raises(PermissionError):
        load_process(tmp_path / "new")


class Mine(Linear):
    """Schedule of a script."""

    __module__ = "__main__"


def test_a_process_of_the_main_program_is_not_saved(tmp_path):
    with pytest.raises(
        TypeError,
        match=r"process\.schedule\.kind is __main__:Mine: other programs cannot import it",
    ):
        save_process(dd.processes.Masked(4, Mine()), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_folder_without_a_process_is_named(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=rf"{tmp_path.name}' has no process.json, which save_process writes"
    ):
        load_process(tmp_path)
    (tmp_path / "process.json").write_text("{bad")
    with pytest.raises(
        ValueError, match=rf"{tmp_path.name}/process.json is not a file of save_process: Expecting"
    ):
        load_process(tmp_path)


def test_samples_are_lines(tmp_path):
    write_samples(tmp_path / "samples" / "a.txt", torch.tensor([[1, 2], [3, 4]]))
    assert (tmp_path / "samples" / "a.txt").read_text() == "1 2\n3 4\n"
    write_samples(tmp_path / "a.txt", torch.tensor([[1, 2]]), lambda ids: "ab"[ids[0] - 1])
    assert (tmp_path / "a.txt").read_text() == "a\n"


def test_a_dataset_without_items_is_refused():
    with pytest.raises(ValueError, match="dataset is empty, must hold an item"):
        Positions([])
