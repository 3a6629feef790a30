"""Caches around a window: exact at the states that they were computed from, and refused for
anything else.
"""

import copy
from functools import partial
from itertools import product

import pytest
import torch
from cases import caches, examples
from hf_checkpoints import CAUSAL, WORDS, write_causal
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused_with
from tiny import STATES, trained
from tiny import WORDS as DIT_WORDS

import ddlib as dd
from ddlib.typing import WindowDenoiser
from ddlib_models.hf.auto import DiTConfig, DiTModel
from ddlib_models.hf.causal_lm import causal_lm
from ddlib_models.window_cache import WindowCache

F64 = torch.float64
LENGTH = 12


def draw(most, batch=2, length=LENGTH, seed=0):
    return torch.randint(most, (batch, length), generator=torch.Generator().manual_seed(seed))


def times(z, seed=0):
    return torch.rand(z.shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def windows():
    pairs = st.tuples(st.integers(0, LENGTH - 1), st.integers(1, LENGTH))
    return pairs.map(lambda pair: (pair[0], min(LENGTH, sum(pair))))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return write_causal(tmp_path_factory.mktemp("theirs"))


MODELS = {}


def llama(folders, kind="llama", **how):
    key = kind, *how.items()
    if key not in MODELS:
        MODELS[key] = causal_lm(WORDS + 1, WORDS, str(folders[kind]), **how).double()
    return MODELS[key]


def check_exact(model, z, t, start, stop):
    """The window's logits are those of the whole sequence at the states that the cache is of, in
    two calls.
    """
    whole = model(z, t)
    here = slice(start, stop)
    cache = model.prefill_around(z, t, start, stop)
    own = t[:, here]
    for _ in range(2):
        torch.testing.assert_close(
            model.extend(z[:, here], own, cache), whole[:, here], atol=1e-10, rtol=1e-10
        )
    weight, bias = model.output_weights()
    halves = torch.nn.functional.linear(model.features(z[:, here], own, cache=cache), weight, bias)
    torch.testing.assert_close(halves, whole[:, here], atol=1e-10, rtol=1e-10)
    return cache


@settings(max_examples=examples(30))
@given(
    windows(),
    st.sampled_from([0, 1, 3, 4]),
    st.sampled_from(["rope", "learned"]),
    st.booleans(),
    st.sampled_from([torch.no_grad, torch.enable_grad, torch.inference_mode]),
    st.integers(0, 99),
)
def test_a_window_of_a_dit_has_the_logits_of_the_whole_sequence(
    window, blocks, positions, timed, mode, seed
):
    shape = (LENGTH,) if positions == "learned" else ()
    model = trained(
        block_size=blocks, positions=positions, shape=shape, time_conditioned=timed, depth=3
    ).double()
    z = draw(STATES, seed=seed)
    with mode():
        cache = check_exact(model, z, times(z, seed), *window)
    where = torch.tensor([[0, window[1] - window[0] - 1]]).expand(2, -1)
    here = slice(*window)
    t = times(z, seed)
    some = model.features_at(z[:, here], t[:, here], where, cache=cache)
    expected = model.features(z, t)[:, here].take_along_dim(where[..., None], 1)
    torch.testing.assert_close(some, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("kind", CAUSAL)
@settings(max_examples=examples(12))
@given(
    window=windows(),
    shift=st.integers(0, 1),
    blocks=st.sampled_from([0, 2]),
    seed=st.integers(0, 99),
)
def test_a_window_of_a_causal_class_has_the_logits_of_the_whole_sequence(
    folders, kind, window, shift, blocks, seed
):
    model = llama(folders, kind, shift=shift, block_size=blocks)
    z = draw(WORDS + 1, seed=seed)
    with torch.no_grad():
        check_exact(model, z, times(z), *window)


@torch.no_grad()
def test_rows_and_joined_caches_are_those_of_their_sequences(folders):
    for model, most in ((trained().double(), STATES), (llama(folders, shift=1), WORDS + 1)):
        z = draw(most, 4)
        t = times(z)
        other = draw(most, 4, 3, seed=1)
        cache = model.prefill_around(z, t, 4, 7)
        own = t[:, 4:7]
        whole = model.extend(other, own, cache)
        index = torch.tensor([3, 0, 0])
        again = model.extend(other[index], own[index], cache.rows(index))
        torch.testing.assert_close(again, whole[index], atol=1e-12, rtol=1e-12)
        both = cache.rows(torch.tensor([True, False, False, True])).join(
            cache.rows(torch.tensor([2]))
        )
        index = torch.tensor([0, 3, 2])
        again = model.extend(other[index], own[index], both)
        torch.testing.assert_close(again, whole[index], atol=1e-12, rtol=1e-12)


@torch.no_grad()
def test_wrong_positions_and_a_stale_mask_are_noticed(folders, monkeypatch):
    """Faults that a cache of this kind can have: each moves the logits of some window by more than
    1e-6.
    """
    dit = trained(block_size=3).double()
    net = llama(folders, block_size=2)
    for model, most, fault in (
        (dit, STATES, "start"),
        (dit, STATES, "mask"),
        (dit, STATES, "order"),
        (net, WORDS + 1, "start"),
        (net, WORDS + 1, "mask"),
        (net, WORDS + 1, "order"),
    ):
        z = draw(most)
        t = times(z)
        start = 4
        stop = 7
        cache = model.prefill_around(z, t, start, stop)
        faulty = copy.copy(cache)
        other = model
        if fault == "start":  # position ids from another place
            faulty.start = start - 1
            faulty.stop = stop - 1
        elif (
            fault == "order"
        ):  # keys before the window exchanged with those behind it, as if a window had moved
            faulty.pairs = tuple(
                (keys.flip(1 if model is dit else 2), values) for keys, values in cache.pairs
            )
        else:  # the mask of a network without blocks
            other = copy.copy(model)
            object.__setattr__(other, "block_size", 0)
            if model is dit:
                other.__dict__["reader"] = copy.copy(model.reader)
                object.__setattr__(other.reader, "block_size", 0)
            faulty = copy.copy(cache)
            faulty._model = lambda other=other: other
        moved = (
            (other.extend(z[:, start:stop], t[:, start:stop], faulty) - model(z, t)[:, start:stop])
            .abs()
            .max()
        )
        assert moved > 1e-6, fault


@torch.no_grad()
def test_a_label_is_that_of_the_cache():
    model = trained(num_classes=3).double().eval()
    z = draw(STATES)
    t = times(z)
    at = model.with_label(1)
    assert isinstance(at, WindowDenoiser)
    cache = at.prefill_around(z, t, 2, 5)
    torch.testing.assert_close(
        at.extend(z[:, 2:5], t[:, 2:5], cache), at(z, t)[:, 2:5], atol=1e-10, rtol=1e-10
    )
    with pytest.raises(ValueError, match="cache: has label 1 in row 0, but 2 is given"):
        model.with_label(2).extend(z[:, 2:5], t[:, 2:5], cache)


@torch.no_grad()
def test_the_transformers_model_of_a_dit_has_it_too():
    model = DiTModel(DiTConfig(**trained().saved_arguments()), trained()).double()
    z = draw(STATES)
    check = model.extend(z[:, 2:5], times(z)[:, 2:5], model.prefill_around(z, times(z), 2, 5))
    torch.testing.assert_close(check, model(z, times(z))[:, 2:5], atol=1e-10, rtol=1e-10)


def test_gradients_of_a_window_reach_its_layers(folders):
    for model, most in ((trained().double(), STATES), (llama(folders), WORDS + 1)):
        z = draw(most)
        cache = model.prefill_around(z, times(z), 4, 7)
        model.extend(z[:, 4:7], times(z)[:, 4:7], cache).square().sum().backward()
        assert any(p.grad is not None and p.grad.abs().max() > 0 for p in model.blocks.parameters())
        model.zero_grad()


@pytest.mark.parametrize("name", ["dit", "llama"])
def test_bad_windows_and_foreign_caches_are_refused_by_name(folders, name):
    model, z = (
        (trained().double(), draw(STATES)) if name == "dit" else (llama(folders), draw(WORDS + 1))
    )
    t = times(z)
    cache = model.prefill_around(z, t, 4, 7)
    assert isinstance(model, WindowDenoiser) and isinstance(cache, WindowCache)
    refused_with(cache=cache, model=model, t=t, z=z)(r"""
        model.prefill_around(z, t, 7, 4) | ValueError
            | start=7, stop=4: must be a window of z, 0 <= start < stop
        model.prefill_around(z, t, 0, 13) | ValueError | start=0, stop=13: must be a window
        model.extend(z[:, :2], t[:, :2], cache)
            | ValueError | cache: is that of the window 4\.\.6 of 3 positions, but z
        model.extend(z[:1, :3], t[:1, :3], cache) | ValueError
            | cache: contains 2 sequences, but 1 are given
        copy.deepcopy(model).extend(z[:, :3], t[:, :3], cache)
            | ValueError | cache: contains keys and values of another
    """)
    with torch.no_grad():
        next(model.blocks[-1].parameters()).mul_(1.001)
    with pytest.raises(
        ValueError, match="cache: the weights have changed since it was made; prefill again"
    ):
        model.extend(z[:, 4:7], t[:, 4:7], cache)


def test_a_causal_mask_has_no_window(folders):
    with pytest.raises(ValueError, match="attention='causal': positions after a window have no"):
        llama(folders, attention="causal").prefill_around(draw(WORDS), times(draw(WORDS)), 0, 2)


@pytest.mark.parametrize(
    ("name", "keep"),
    list(product(["dit", "llama"], ["prefix", "dual"])),
)
def test_refreshed_at_every_call_it_draws_the_same_tokens(folders, name, keep):
    model, tokens = (
        (trained().double(), DIT_WORDS) if name == "dit" else (llama(folders, shift=1), WORDS)
    )
    process = dd.presets.mdlm(tokens)
    model = model if name == "llama" else trained(num_states=process.num_states).double()
    how = dict(pace=dd.paces.Blocks(4), steps=4, generator=[1, 2, 3])
    draw_with = partial(dd.sample, process, model, (3, LENGTH), dd.samplers.Confidence(), **how)
    drawn = [draw_with(controls=[*caches(rule)]) for rule in (f"{keep}:refresh=1", True)]
    assert torch.equal(*drawn) and drawn[0].max() < tokens


@torch.no_grad()
def test_fewer_refreshes_evaluate_fewer_positions():
    process = dd.presets.mdlm(DIT_WORDS)
    model = trained(num_states=process.num_states)
    seen = []
    model.blocks[0].mlp.register_forward_hook(
        lambda part, given, out: seen.append(given[0].shape[1])
    )
    how = dict(pace=dd.paces.Blocks(4), steps=3, generator=[1])
    for keep, expected in {
        True: [12] * 9,
        "dual": [12, 4, 4, 4] * 3,
        "dual:refresh=2": [12, 4, 4, 12, 4] * 3,
        "prefix": [12, 12, 12, 12, 8, 8, 8, 12, 4, 4, 4],
    }.items():
        seen.clear()
        dd.sample(
            process, model, (1, LENGTH), dd.samplers.Confidence(), controls=[*caches(keep)], **how
        )
        assert seen == expected, keep
