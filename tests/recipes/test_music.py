"""Music: histograms and their distances, the piano roll, the MIDI file."""

import sys
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from recipes.data import SymbolCorpus, examples, prepare, wrap
from recipes.data.names import names_of
from recipes.data.sequences import Sequences
from recipes.domains.music import metrics as metrics
from recipes.domains.music.drawing import NOISE, piano_roll, score, write_midi
from recipes.domains.music.pitches import alphabet
from recipes.evaluation.samples import metrics_of
from recipes.visualization.saving import picture_of

SYMBOLS = alphabet(60, 72)
HOLD = 0
REST = 1
C4 = 2
TUNE = np.array(
    [C4, HOLD, C4 + 4, HOLD, HOLD, HOLD, REST, HOLD, C4 + 7, C4]
)  # C4 for 2 steps, E4 for 4, G4, C4


def test_histograms_of_a_known_tune():
    classes = metrics.pitch_classes([TUNE], SYMBOLS)
    assert classes[0] == 0.5 and classes[4] == 0.25 and classes[7] == 0.25 and classes.sum() == 1
    steps = metrics.intervals([TUNE], SYMBOLS)
    assert len(steps) == 25 and (steps[[12 + 4, 12 + 3, 12 - 7]] == 1 / 3).all()
    lengths = metrics.durations([TUNE], SYMBOLS)
    assert lengths[0] == 0.5 and lengths[1] == 0.25 and lengths[3] == 0.25 and lengths.sum() == 1
    long = np.array([C4, *[HOLD] * 40])
    assert metrics.durations([long], SYMBOLS)[-1] == 1
    wide = metrics.intervals([np.array([0, 1])], ("C2", "C6"))
    assert wide[-1] == 1


def test_voices_are_counted_apart():
    two = np.stack([TUNE, np.roll(TUNE, 1)], 1).ravel()
    assert metrics.pitch_classes([two], SYMBOLS, voices=2) == pytest.approx(
        metrics.pitch_classes([TUNE], SYMBOLS)
    )
    low = np.stack([TUNE, np.full(10, REST)], 1).ravel()
    for histogram in (metrics.pitch_classes, metrics.intervals, metrics.durations):
        assert histogram([low], SYMBOLS, voices=2) == pytest.approx(histogram([TUNE], SYMBOLS))


@given(
    st.lists(st.lists(st.integers(2, 14), min_size=2, max_size=8), min_size=1, max_size=5),
    st.integers(1, 5),
)
def test_distances_vanish_for_the_same_pieces_in_any_order(pieces, times):
    left = [np.array(piece) for piece in pieces]
    found = metrics.measure(left, left[::-1] * times, SYMBOLS)
    assert found.keys() == {"pitch_class_distance", "interval_distance", "duration_distance"}
    assert all(abs(value) < 1e-9 for value in found.values())


@given(
    st.lists(st.floats(0.01, 1), min_size=4, max_size=4),
    st.lists(st.floats(0.01, 1), min_size=4, max_size=4),
    st.permutations(range(4)),
)
def test_the_distance_is_total_variation(left, right, order):
    p, q = (np.array(one) / sum(one) for one in (left, right))
    found = metrics.distance(p, q)
    assert (
        0 <= found <= 1
        and metrics.distance(p, p) == 0
        and found == pytest.approx(metrics.distance(q, p))
    )
    assert (
        found
        == pytest.approx(metrics.distance(p[order], q[order]))
        == pytest.approx(np.maximum(p - q, 0).sum())
    )


def test_the_distance_of_disjoint_histograms_is_one():
    assert metrics.distance(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 1
    up = np.array([C4, C4 + 1, C4 + 2])
    down = np.array([C4 + 2, C4 + 1, C4])
    found = metrics.measure([up], [down], SYMBOLS)
    assert found == {
        "pitch_class_distance": 0.0,
        "interval_distance": 1.0,
        "duration_distance": 0.0,
    }


test_wrong_music_is_named = refuses(r"""
    metrics.pitch_classes([np.array([REST, HOLD])], SYMBOLS) | ValueError
        | the sequences contain no notes
    metrics.pitch_classes([], SYMBOLS) | ValueError | the sequences contain no notes
    metrics.intervals([np.array([C4])], SYMBOLS) | ValueError | the sequences contain no intervals
    metrics.durations([TUNE, np.array([15])], SYMBOLS) | ValueError
        | sequence 1 contains id 15, must be below 15
    metrics.durations([np.array([-1])], SYMBOLS) | ValueError | none negative
    metrics.durations([TUNE], SYMBOLS, voices=0) | ValueError | voices=0: must be at least 1
    metrics.durations([np.array([0])], ("H4",)) | ValueError
        | symbol 'H4': must be hold, rest or a pitch
    metrics.distance(np.ones(1), np.ones(2)) | ValueError | shapes \(1,\) and \(2,\)
    metrics.distance(np.ones(2) / 2, np.ones(2)) | ValueError
        | right: must be shares .* got a sum of 2
    metrics.distance(np.array([2.0, -1.0]), np.ones(2) / 2) | ValueError | left: must be shares
    piano_roll(TUNE, SYMBOLS, steps=0) | ValueError | steps=0: must be at least 1
    piano_roll(TUNE[:1], SYMBOLS, voices=2) | ValueError
        | has 1 symbols, must have one for each of 2 voices
""")


def bars(figure):
    """(first, length, lowest, colour) of each bar."""
    found = []
    for collection in figure.axes[0].collections:
        box = collection.get_paths()[0].get_extents()
        found.append((box.x0, box.width, box.y0, collection.get_facecolor()[0]))
    return found


def test_the_piano_roll_has_a_bar_for_each_note():
    figure = piano_roll(TUNE, SYMBOLS, steps=2, title="tune")
    shown = bars(figure)
    assert [first for first, *_ in shown] == [0, 1, 4, 4.5]
    assert [lowest + 0.4 for *_, lowest, _ in shown] == pytest.approx([60, 64, 67, 60])
    assert [length for _, length, *_ in shown] == pytest.approx([0.94, 1.94, 0.44, 0.44])
    assert figure.axes[0].get_title() == "tune" and figure.axes[0].get_xlim() == (0, 5)


def test_noisy_states_are_a_stripe_below(tmp_path):
    from matplotlib.colors import to_rgba

    figure = piano_roll(np.array([C4, 15, C4, 20, 20, C4]), SYMBOLS, voices=2, steps=1)
    noisy = [bar for bar in bars(figure) if tuple(bar[3]) == to_rgba(NOISE)]
    assert [bar[:2] for bar in noisy] == [(2, 1), (0, 2)] and all(bar[2] < 59 for bar in noisy)
    piano_roll(np.full(8, 15), SYMBOLS).savefig(tmp_path / "noise.png")
    assert (tmp_path / "noise.png").read_bytes()[:4] == b"\x89PNG"


def test_music21_is_named_where_it_is_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "music21", None)
    with pytest.raises(
        ModuleNotFoundError, match="a MIDI file is written by music21; run: pip install music21"
    ):
        write_midi(tmp_path / "tune.mid", TUNE, SYMBOLS)


def test_a_score_and_its_midi_file_hold_the_notes(tmp_path):
    music21 = pytest.importorskip("music21")
    two = np.stack([TUNE, np.full(10, C4)], 1).ravel()
    whole = score(two, SYMBOLS, voices=2, steps=2)
    parts = [
        [(n.offset, n.quarterLength, n.pitch.midi) for n in part.notes] for part in whole.parts
    ]
    assert parts[0] == [(0, 1, 60), (1, 2, 64), (4, 0.5, 67), (4.5, 0.5, 60)]
    assert parts[1] == [(step / 2, 0.5, 60) for step in range(10)]
    write_midi(tmp_path / "tune.mid", two, SYMBOLS, voices=2, steps=2)
    file = music21.midi.MidiFile()
    file.open(tmp_path / "tune.mid")
    file.read()
    file.close()
    played = [[e.pitch for e in track.events if e.isNoteOn()] for track in file.tracks]
    assert [notes for notes in played if notes] == [[60, 64, 67, 60], [60] * 10]


@dataclass(frozen=True)
class Chords:
    """Sequences of four interleaved voices; the symbol of a voice is its number."""

    def load(self):
        rows = [np.tile(np.arange(4), 10 + n % 3) for n in range(12)]
        return Sequences(ids=rows, symbols=("C5", "C4", "E3", "C3"), voices=4, separator=" ")

    def identity(self):
        return {"chords": "12"}


@pytest.mark.parametrize("ends", [False, True])
def test_windows_of_interleaved_voices_begin_with_the_first(ends, tmp_path):
    data = prepare(
        SymbolCorpus(source={"kind": f"{__name__}:Chords"}, held_out=4, ends=ends),
        tmp_path / "data",
    )
    batches = islice(examples(data.train, length=16, pad_id=0, batch_size=8, seed=0, threads=0), 5)
    assert all(bool((batch.x == torch.arange(16) % 4).all()) for batch in batches)
    with pytest.raises(ValueError, match=r"data\.wrap=True: .* have 4 interleaved voices"):
        wrap(data, 8)


def test_music_with_an_end_has_metrics_and_files(tmp_path):
    corpus = SymbolCorpus(source={"kind": f"{__name__}:Chords"}, held_out=4, ends=True)
    data = prepare(corpus, tmp_path / "data")
    whole = [np.asarray(one[:-1]) for one in data.validation]
    found = metrics_of("music", data).measure(whole, data)
    assert all(found[name] == 0 for name in found if name.endswith("_distance"))
    symbols = names_of(data.tokenizer, data.ends)
    assert symbols == ["C5", "C4", "E3", "C3"] and picture_of(data.layout, symbols) == ".png"
