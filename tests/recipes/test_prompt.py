"""Rows of several lengths: a batch has the samples of its rows alone, to the bit where nothing is
rounded.
"""

from types import SimpleNamespace

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused_with
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import nn

import ddlib as dd
from recipes.data.layout import Layout
from recipes.data.tokens import SpecialIds
from recipes.generation.prompt import Row, prompt_states, row, stack, together
from recipes.generation.samples import Sample, batched, draw_batch
from recipes.generation.sampling import Sampling, draw
from recipes.model_io import LoadedModel

WORDS = 7
PROCESSES = {
    "masks": dd.presets.mdlm(WORDS),
    "tree": dd.presets.hdlm([0, 0, 1, 1, 2, 2, 2], xi=0.9),
    "uniform": dd.processes.Uniform(WORDS, dd.schedules.Linear()),
}
MADE_OF_PARTS = ("corrected", "in_order", "particles")
SAMPLERS = [name for name in dd.registry.built_in("samplers") if name not in MADE_OF_PARTS]


class Sums(nn.Module):
    """Every position depends on every state that is present and on its place, in integers."""

    own_times = True

    def __init__(self, states: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.states, self.places = (
            torch.randint(5, (n, WORDS), generator=generator).double() for n in (states, 40)
        )

    def forward(self, z, t, present=None):
        each = (
            self.states[z]
            if present is None
            else torch.where(present[..., None], self.states[z], 0.0)
        )
        return (each.sum(1, keepdim=True) + self.places[: z.shape[1]]) % 5


def model(process, leaves_out=True, **changes):
    network = Sums(process.num_states)
    spelling = SimpleNamespace(
        encode=lambda text, add_special_tokens: SimpleNamespace(
            ids=[int(one) for one in text if one.isdigit()]
        ),
        decode=lambda tokens: "".join(map(str, tokens)),
    )
    values = dict(
        process=process,
        model=network,
        denoiser=network,
        token_parameterization="cavity",
        tokenizer=spelling,
    )
    values |= dict(
        special=SpecialIds(None, None, 6),
        length=40,
        rows="free",
        pace=dd.paces.Together(),
        sha256="",
    )
    values |= dict(name="them/theirs")
    return LoadedModel(**values | dict(leaves_out=leaves_out) | changes)


@pytest.mark.parametrize("name", SAMPLERS)
@settings(max_examples=examples(8), deadline=None)
@given(
    kind=st.sampled_from(["masks", "tree"]),
    blocks=st.lists(st.integers(1, 3), min_size=2, max_size=4),
    pace=st.sampled_from([None, "blocks:size=4"]),
    penalty=st.sampled_from([1.0, 1.5]),
    seed=st.integers(0, 100),
)
def test_rows_of_any_length_give_the_same_together_as_alone(
    name, kind, blocks, pace, penalty, seed
):
    sampling = Sampling(steps=3, sampler=name, pace=pace, repetition_penalty=penalty)
    sampler = dd.build("samplers", name)
    process = PROCESSES[kind]
    saved = model(process)
    mask = process.num_states - 1
    rows = [
        Row(None, torch.tensor([1, mask, number % 7]), 4 * size, 0)
        for number, size in enumerate(blocks)
    ]
    place = sampling.pace_of(saved).block
    groups = list(together(saved, rows, place, sampler, 16))
    assert sorted(number for group in groups for number in group) == list(range(len(rows)))
    assert len(groups) <= (1 if pace is None else 2)
    for group in groups:
        states, length, lengths = stack(saved, [rows[number] for number in group])
        index = torch.tensor(group)
        drawn = draw(saved, sampling, seed, index, length, states, lengths=lengths)
        for number, words in zip(group, drawn, strict=True):
            own = stack(saved, [rows[number]])
            alone = draw(saved, sampling, seed, torch.tensor([number]), own.length, own.states)
            assert torch.equal(words[: own.length], alone[0])


@pytest.mark.parametrize(
    ("pace", "number"),
    [(None, 1), ("blocks:size=4", 2), ("ramp", 3), ("ramp:lag=3", 3), ("random_order", 3)],
)
def test_times_of_positions_that_depend_on_the_length_are_those_of_the_row_alone(pace, number):
    saved = model(PROCESSES["masks"])
    sampling = Sampling(steps=12, sampler="ancestral", pace=pace)

    def new():
        return [
            Sample(Row(None, torch.tensor([1, WORDS, place]), length, 0), place, "")
            for place, length in enumerate((12, 4, 8))
        ]

    several = new()
    groups = list(batched(saved, several, sampling, 16))
    assert len(groups) == number
    for group in groups:
        draw_batch(saved, [several[place] for place in group], sampling, 0)
    for one, sample in zip(new(), several, strict=True):
        draw_batch(saved, [one], sampling, 0)
        assert one.tokens == sample.tokens


def test_an_end_token_of_the_prompt_is_no_end():
    saved = model(PROCESSES["masks"], special=SpecialIds(None, 5, 6))
    begun = row(saved, "162", dd.paces.Together(), new=3)
    whole = row(saved, "6[MASK]1", dd.paces.Together())
    assert (
        begun.end([5, 1, 6, 2, 0, 6, 1], saved.ends) == 5
        and begun.end([5, 1, 6, 2, 0, 1, 1], saved.ends) == 7
    )
    assert whole.states.tolist() == [5, 6, 7, 1, 6] and whole.end([5, 6, 3, 1, 6], saved.ends) == 4


def test_an_end_token_in_a_gap_leaves_the_given_text_behind_it():
    saved = model(PROCESSES["masks"], special=SpecialIds(None, 5, 6))
    whole = row(saved, "12[MASK:2]3[MASK:2]", dd.paces.Together())
    for drawn, shown in (
        ([5, 1, 2, 6, 0, 3, 4, 4, 6], [1, 2, 6, 0, 3, 4, 4]),
        ([5, 1, 2, 6, 6, 3, 6, 4, 6], [1, 2, 6, 6, 3]),
    ):
        assert Sample(whole, 0, "", tokens=drawn).shown_tokens(saved) == shown


SPEECH = "The state of our union is strong, and un-American."


def trained(made, trainer, decoder, pre_tokenizer):
    made.pre_tokenizer = pre_tokenizer
    made.decoder = decoder
    made.train_from_iterator([SPEECH] * 3, trainer)
    return made


def bpe(pre_tokenizer, decoder):
    trainer = trainers.BpeTrainer(vocab_size=90, special_tokens=["<unk>"], show_progress=False)
    return trained(Tokenizer(models.BPE(unk_token="<unk>")), trainer, decoder, pre_tokenizer)


def sentence_piece(scheme):
    return bpe(
        pre_tokenizers.Metaspace(prepend_scheme=scheme), decoders.Metaspace(prepend_scheme=scheme)
    )


def word_piece():
    trainer = trainers.WordPieceTrainer(
        vocab_size=90, special_tokens=["[UNK]"], show_progress=False
    )
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    return trained(made, trainer, decoders.WordPiece(), pre_tokenizers.BertPreTokenizer())


def words():
    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(["we", "must", "act"])}))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def states_of(tokenizer, text):
    process = dd.presets.mdlm(tokenizer.get_vocab_size())
    saved = model(process, tokenizer=tokenizer, special=SpecialIds(None, None, None))
    return prompt_states(saved, text, 40)[0].tolist(), process.num_states - 1


@pytest.mark.parametrize(
    ("tokenizer", "letter"),
    [
        (sentence_piece("always"), "n"),
        (sentence_piece("first"), "n"),
        (bpe(pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel()), "n"),
        (bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()), "n"),
        (word_piece(), "##n"),
    ],
    ids=["always", "first", "prefix", "bytes", "words"],
)
def test_no_space_is_added_behind_a_gap(tokenizer, letter):
    text = "The state of[MASK], and un[MASK]American. state[MASK] is[MASK]s[MASK]."
    states, mask = states_of(tokenizer, text)
    assert states.count(mask) == 5
    filled = [tokenizer.token_to_id(letter) if state == mask else state for state in states]
    found = tokenizer.decode(filled).strip()
    normalizer = tokenizer.normalizer or normalizers.Sequence([])
    assert found == normalizer.normalize_str(text.replace("[MASK]", "n"))


def test_pieces_of_a_text_that_need_no_change_have_the_tokens_that_they_have_alone():
    tokenizer = bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel())
    pieces = ["The state", "s of", "'s", " union. un", "..."]
    states, mask = states_of(tokenizer, "[MASK]".join(pieces))
    alone = [tokenizer.encode(piece).ids for piece in pieces]
    assert states == [*alone[0], *(token for ids in alone[1:] for token in (mask, *ids))]
    # words that no letter can precede, and that have no unknown token
    assert states_of(words(), "we [MASK]act") == ([0, 3, 2], 3)


def test_sequences_without_padding_are_batched_by_length():
    masks = model(PROCESSES["masks"], leaves_out=False)
    uniform = model(PROCESSES["uniform"])
    rows = [
        Row(None, torch.tensor([1] * size), length, 0)
        for size, length in ((2, 8), (3, 8), (2, 4), (2, 8))
    ]
    assert list(together(masks, rows, None, dd.samplers.Ancestral(), 16)) == [[2], [0, 1, 3]]
    # without masks the free positions are those after the prompt
    assert list(together(uniform, rows, None, dd.samplers.Ancestral(), 16)) == [[2], [0, 3], [1]]
    particles = dd.samplers.Particles(dd.samplers.Ancestral(), lambda *_: 0.0, 2)
    assert len(list(together(model(PROCESSES["masks"]), rows, None, particles, 16))) == 2
    assert list(together(masks, rows, None, dd.samplers.Ancestral(), 2)) == [[2], [0, 1], [3]]


@pytest.mark.parametrize("options", [{"new": 3}, {"length": 3}])
def test_a_picture_has_all_its_pixels(options):
    layout = Layout(kind="ids", shape=(2, 3), lengths={6: 1})
    saved = model(
        PROCESSES["masks"],
        special=SpecialIds(None, None, None),
        rows="exact",
        length=6,
        layout=layout,
    )
    with pytest.raises(ValueError, match="length=3: must be 6"):
        row(saved, None, dd.paces.Together(), **options)


def test_a_row_is_as_long_as_its_text_in_whole_blocks():
    saved = model(PROCESSES["masks"], special=SpecialIds(None, 5, 6))
    blocks = dd.paces.Blocks(4)
    together = dd.paces.Together()
    assert row(saved, "123", together, new=6).length == 10
    assert row(saved, "123", together, new=6).states.tolist() == [5, 1, 2, 3]
    assert row(saved, "123", blocks, new=6).length == 12
    assert row(saved, "1" * 30, blocks).length == 40
    assert row(saved, None, together, new=2).states.tolist() == [5]
    assert row(saved, "1", together, new=38).length == row(saved, "1", together).length == 40
    for pace, new, message in (
        (together, 39, "supports 40"),
        (dd.paces.Blocks(16), 31, "supports 32 in whole blocks of 16"),
    ):
        with pytest.raises(
            ValueError, match=rf"new={new}: 2 tokens precede them, and them/theirs {message}$"
        ):
            row(saved, "1", pace, new=new)
    apart = model(PROCESSES["uniform"], special=SpecialIds(None, 5, 6), leads=True)
    assert row(apart, "11", blocks).length == 39, (
        "three words that stand, and nine blocks of the 37 that are left"
    )
    with pytest.raises(
        ValueError, match="new=37: 3 tokens precede them, and them/theirs supports 39 in whole"
    ):
        row(apart, "11", blocks, new=37)
    for full in (
        dict(prompt="1" * 39, pace=together),
        dict(prompt="1" * 7, pace=together, length=8),
    ):
        length = full.get("length", 40)
        with pytest.raises(
            ValueError, match=f"prompt: its {length} tokens, with special ones, fill the sequence"
        ):
            row(saved, **full)
    whole = row(saved, "12[MASK:2]3", blocks)
    assert whole.states.tolist() == [5, 1, 2, 7, 7, 3, 6, 6] and whole.length == 8
    refused_with(saved=saved, together=together)(r"""
        row(saved, "1", together, length=41) | ValueError | length=41: must be at most 40
        row(saved, "1" * 45, together) | ValueError
            | prompt: 46 tokens with its special ones, must be at most 40
        row(model(PROCESSES["uniform"]), "1[MASK]", together) | ValueError
            | prompt: has gaps, but Uniform.* has no mask
    """)
    trained = model(PROCESSES["masks"], rows="padded", special=SpecialIds(0, 5, 6))
    assert (
        row(trained, "1", together).length == 40
        and row(trained, None, together).states.tolist() == []
    )
    assert row(trained, "[MASK]", together, length=5).states.tolist() == [5, 7, 6, 0, 0]
