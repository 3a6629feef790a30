"""Texts on their way from noise: one notation wherever they are shown."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.text import Text
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import ddlib as dd
import recipes
from recipes.console import command, make_console, on_its_way, plain_errors, render
from recipes.data.text import train_tokenizer
from recipes.generation.drafts import Drafts

TEXT = "We [must] act, and_so on.\nThe [MASK] is old."


def byte_level() -> Tokenizer:
    return train_tokenizer(TEXT * 20, 270)


def word_pieces() -> Tokenizer:
    words = ["[UNK]", "the", "weather", "in", "bos", "##ton", ".", "[", "]"]
    tokenizer = Tokenizer(
        models.WordPiece({word: place for place, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.BertPreTokenizer(),
        decoders.WordPiece(),
    )
    return tokenizer


def states(tokenizer: Tokenizer, *parts: str | int) -> torch.Tensor:
    """Words of the strings; a number is a state above the words."""
    size = tokenizer.get_vocab_size()
    return torch.tensor(
        [
            state
            for part in parts
            for state in (
                [size + part]
                if isinstance(part, int)
                else tokenizer.encode(part, add_special_tokens=False).ids
            )
        ]
    )


def test_finished_text_comes_back():
    tokenizer = byte_level()
    shown = render(tokenizer, states(tokenizer, TEXT), ["money"]).plain
    assert shown.replace("¶", "\n") == TEXT
    tokenizer = word_pieces()
    assert (
        render(tokenizer, states(tokenizer, "the weather in boston."), []).plain
        == "the weather in boston."
    )


@pytest.mark.parametrize("make", [byte_level, word_pieces])
def test_spaces_stand_on_either_side_of_masks_and_clusters(make):
    tokenizer = make()
    words = (" act", " on") if make is byte_level else ("the", "weather")
    names = ["money", "war"]
    first, last = (word.strip() for word in words)
    for parts, wanted in [
        ((2, words[0], 2, words[1]), f"_ {first} _ {last}"),
        ((words[0], 2, 2, words[1], 0), f"{words[0]} _ _ {last} ‹money›"),
        ((0, 1, 2), "‹money› ‹war› _"),
    ]:
        assert render(tokenizer, states(tokenizer, *parts), names).plain == wanted


def test_a_word_in_brackets_is_no_cluster():
    tokenizer = byte_level()
    shown = render(tokenizer, states(tokenizer, "We [must]", 0), ["must"])
    assert shown.plain == "We [must] ‹must›"
    assert [shown.plain[span.start : span.end] for span in shown.spans] == ["‹must›"]


def needing() -> None:
    """A backbone that does not run on this machine, of a package of ours."""
    exec("raise RuntimeError(\"attention 'none' needs a device\")", {"__package__": "ddlib_models"})


def test_a_refusal_of_an_object_is_one_line_and_a_bug_is_none(monkeypatch):
    network = lambda z, t: z  # noqa: E731
    particles = dd.samplers.Particles(dd.samplers.Ancestral(), lambda z, t: 0.0 * t, 2)
    with (
        pytest.raises(
            SystemExit,
            match=r"^error: pace is Blocks\(size=2\), which Particles.* does not support",
        ),
        plain_errors(),
    ):
        dd.plan(dd.presets.mdlm(4), network, (2, 4), particles, pace=dd.paces.Blocks(2))
    space = {"__package__": "recipes"}
    exec(
        "def bug(): return None + 1\ndef call(): bug(1)\ndef refuse(): raise TypeError('no')", space
    )
    for bug in (space["bug"], space["call"], lambda: torch.zeros("two"), lambda: len(3)):
        with pytest.raises(TypeError), plain_errors():
            bug()
    with pytest.raises(SystemExit, match="error: no"), plain_errors():
        space["refuse"]()
    with (
        pytest.raises(SystemExit, match=r"^error: model: attention 'none' needs a device"),
        plain_errors(),
    ):
        dd.build("backbones", {"kind": f"{__name__}:needing"}, place="model")
    with pytest.raises(RuntimeError), plain_errors():
        torch.zeros(2) @ torch.zeros(3)
    monkeypatch.setenv("DDLIB_DEBUG", "1")
    with pytest.raises(TypeError), plain_errors():
        space["refuse"]()


def test_a_line_begins_with_the_time():
    assert (
        on_its_way(0.8125, "a _").plain == on_its_way(0.8125, Text("a _")).plain == "t = 0.812: a _"
    )


def test_drafts_are_printed_for_times_per_position():
    console = make_console(io.StringIO())
    tokenizer = byte_level()
    words = states(tokenizer, " act")
    with Drafts(console, ["one"], lambda place, z: render(tokenizer, z, [])) as drafts:
        for k, t, z in (
            (-1, [1.0, 0.0], [300, 300]),
            (0, [0.5, 0.0], [300, 300]),
            (1, [0.0, 0.0], [words[0], 300]),
        ):
            drafts(k, torch.tensor([t]), torch.tensor([z]))
    lines = console.file.getvalue().splitlines()  # none where nothing changed
    assert [line.split(":")[0] for line in lines] == ["one  t = 0.500", "one  t = 0.000"]
    assert lines[0].endswith(": _ _") and lines[1].endswith(" _")


def unread():
    """A pipe whose reader has exited, as head does."""
    read, write = os.pipe()
    os.close(read)
    return os.fdopen(write, "w")


@pytest.mark.parametrize("words", [["recipes.train", "--help-all"], ["ddlib"]], ids=str)
def test_a_reader_that_has_exited_ends_a_command_without_a_message(words):
    with unread() as out:
        ended = subprocess.run(
            [sys.executable, "-m", *words], stdout=out, stderr=subprocess.PIPE, text=True
        )
    assert (ended.returncode, ended.stderr) == (1, "")


def help_and_exit():
    print("usage")
    raise SystemExit(0)


def refusing():
    with plain_errors():
        print("x" * 100_000)  # more than a buffer


@pytest.mark.parametrize("main", [help_and_exit, refusing])
def test_help_and_plain_errors_end_without_a_message_too(main, monkeypatch):
    with unread() as out, pytest.raises(SystemExit) as ended:
        monkeypatch.setattr(sys, "stdout", out)
        command(main)
    assert ended.value.code == 1


def test_the_status_of_a_command_is_its_exit_status():
    for result, status in ((None, 0), (3, 3), ("a result", 0)):
        with pytest.raises(SystemExit) as ended:
            command(lambda result=result: result)
        assert ended.value.code == status


def test_every_command_runs_that_way():
    paths = [
        path
        for path in Path(recipes.__file__).parent.glob("*.py")
        if "__main__" in path.read_text()
    ]
    assert len(paths) > 10 and all(path.read_text().endswith("command(main)\n") for path in paths)
