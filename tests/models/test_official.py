"""The authors' checkpoints: logits as their own code computes them, at reduced widths and at the
published sizes.

``official_logits.json`` holds what the authors' networks gave for the weights of
``official_states``.
"""

import json
from pathlib import Path

import pytest
import torch
from official_imports import GIDD, HDLM, MDLM, TRAINING, assert_same, load
from official_states import (
    BASE,
    REDUCED,
    SMALL,
    TRUE,
    TRUE_VOCABULARY,
    Case,
    buffers,
    digest,
    fingerprint,
    inputs,
    ours,
    parents,
    predictable,
    shapes,
    state,
)

import ddlib as dd
from ddlib_models import DiT, official

EXPECTED = json.loads((Path(__file__).parent / "official_logits.json").read_text())


@torch.no_grad()
def logits(model: DiT, case: Case) -> torch.Tensor:
    z, t = inputs(case)
    return model(ours(z, case), t)


def assert_digest(found: torch.Tensor, expected: dict) -> None:
    found = digest(found)
    size = expected["norm"]
    assert found["some"] == pytest.approx(expected["some"], abs=1e-5)
    assert [found[key] for key in ("sum", "norm", "signed")] == pytest.approx(
        [expected[key] for key in ("sum", "norm", "signed")], abs=1e-5 * size
    )


def assert_logits(name: str, case: Case) -> None:
    """All logits, and that nothing beyond the words that can be predicted takes part in the
    normalisation.
    """
    expected = EXPECTED["logits"][name]
    assert fingerprint(shapes(**case.size)) == expected["fingerprint"]
    model = load(case)
    found = logits(model, case)
    assert_digest(found[..., predictable(case)], expected["words"])
    assert found.logsumexp(-1).flatten().tolist() == pytest.approx(expected["normaliser"], abs=1e-5)
    if case.clusters:
        z, t = inputs(case)
        with torch.no_grad():
            tokens, clusters = model.with_clusters(ours(z, case), t)
        assert torch.equal(tokens, found)
        assert_digest(clusters, expected["clusters"])


@pytest.mark.parametrize("name", REDUCED | TRUE_VOCABULARY)
def test_logits_are_those_of_the_authors_code(name):
    assert_logits(name, (REDUCED | TRUE_VOCABULARY)[name])


@pytest.mark.parametrize("name", TRUE)
def test_logits_at_the_published_size(name):
    assert_logits(name, TRUE[name])


FAMILIES = {
    "mdlm": dict(rows=50258, tokens=50258, mask=50257),
    "gidd of the hub": dict(rows=50258, tokens=50258, mask=50257),
    "gidd in training": dict(rows=50304, tokens=50259, mask=50258),
    "hdlm": dict(rows=50432, tokens=50259, mask=50258, clusters=64),
}


@pytest.mark.parametrize("size", ["small", "base"])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_tensor_of_the_published_sizes_has_its_place(name, size):
    case = Case(name[:4], **FAMILIES[name], **{"small": SMALL, "base": BASE}[size])
    table = shapes(**case.size)
    expected = EXPECTED["shapes"][f"{name} {size}"]
    assert fingerprint(table) == expected["fingerprint"]
    tensors = {key: torch.empty(shape, device="meta") for key, shape in table.items()} | buffers(
        case, length=512
    )
    assert sum(tensors[key].numel() for key in table) == expected["parameters"]
    load(case, tensors)  # refuses unknown and missing tensors


def test_vocabularies_of_the_papers_need_no_arguments():
    for name, importer in (("mdlm", official.mdlm), ("gidd of the hub", official.gidd)):
        assert importer(state(TRUE_VOCABULARY[f"{name}, its vocabulary"])).num_states == 50258
    assert (
        official.gidd(state(TRUE_VOCABULARY["gidd in training, its vocabulary"])).num_states
        == 50259
    )
    for name, tokens in (("hdlm", 50258), ("hdlm of lm1b", 30522)):
        case = TRUE_VOCABULARY[f"{name}, its vocabulary"]
        model, _ = official.hdlm(state(case), parents(case))
        assert (model.vocab_size, model.num_states) == (tokens, tokens + 64 + 1)


def test_mdlm_ignores_the_time():
    model = official.mdlm(state(MDLM))
    z = ours(inputs(MDLM)[0], MDLM)
    assert torch.equal(model(z, torch.zeros(2)), model(z, torch.ones(2)))


def test_gidd_is_conditioned_on_the_time():
    model = load(GIDD)
    z = ours(inputs(GIDD)[0], GIDD)
    assert (model(z, torch.zeros(2)) - model(z, torch.ones(2))).abs().max() > 0.01


def test_the_clusters_fit_the_process():
    model, found = official.hdlm(state(HDLM), parents(HDLM), mask_id=HDLM.mask)
    assert torch.equal(found, parents(HDLM))
    process = dd.presets.hdlm(found)
    assert (process.vocab_size, process.num_states) == (model.vocab_size, model.num_states)


@pytest.mark.parametrize(
    "case", [MDLM, TRAINING, HDLM, REDUCED["hdlm, mask among the words"]], ids=str
)
def test_bfloat16_stays_bfloat16(case):
    tensors = {name: value.bfloat16() for name, value in state(case).items()}
    model = load(case, tensors)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    torch.testing.assert_close(
        logits(model, case).float(), logits(load(case), case), atol=0.1, rtol=0.01
    )


def test_options_that_the_checkpoint_leaves_open_can_be_chosen():
    model = load(TRAINING, pad_to=64, dropout=0.5)
    assert len(model.embedding.weight) == len(model.head.weight) == 128
    assert not model.training
    torch.testing.assert_close(logits(model, TRAINING), logits(load(TRAINING), TRAINING))
    assert (model.train()(*inputs(GIDD)) != model.eval()(*inputs(GIDD))).any()


def test_the_checkpoint_is_copied():
    tensors = state(MDLM)
    with torch.no_grad():
        for parameter in official.mdlm(tensors).parameters():
            parameter.add_(1)
    assert_same(official.mdlm(tensors), official.mdlm(state(MDLM)))


def test_an_imported_network_can_be_saved(tmp_path):
    model = load(HDLM)
    model.save_pretrained(tmp_path / "ours")
    assert_same(DiT.from_pretrained(tmp_path / "ours"), model)
