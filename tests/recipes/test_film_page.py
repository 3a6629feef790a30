"""The page: its data, escaped content, and ``recipes.generate``, which writes it."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from test_console import byte_level, word_pieces
from zoo.runs import LENGTH, publishes, quiet

import ddlib as dd
from ddlib.contrib import Event, Film, Filmed, Frame, Mark
from recipes.generate import FILMED, Options, generate, main
from recipes.generation.sampling import Sampling
from recipes.visualization.page import Spelt, pack, page, speller

PROCESS = dd.presets.hdlm_levels(
    [[0, 0, 1, 1, 2, 2], [0, 0, 1]]
)  # 6 words, 3 clusters, 2 above them, the mask
MASK = PROCESS.num_states - 1


class Reader(HTMLParser):
    """The scripts of a page, its other text, and whatever it would fetch."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.scripts = []
        self.words = []
        self.fetched = []
        self._in = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self._in = tag
        self.fetched += [value for name, value in attributes if name in ("src", "href", "action")]
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._in = None

    def handle_data(self, data):
        if self._in == "script":
            self.scripts[-1] += data
        elif self._in != "style":
            self.words.append(data)

    @property
    def film(self):
        return json.loads(self.scripts[0])


published = publishes("two levels")


def test_states_are_spelt_once_and_only_changes_are_packed():
    down = Event(1, 9, Mark.DOWN, 0.123456, ((10, 0.876544), (9, 0.123456)))
    text = Film([MASK, MASK], [0], [Frame(0.75, 1, [down]), Frame(0.5, 1, []), Frame(0.0, 2, [])])
    packed = pack([text], [2], PROCESS, lambda state: Spelt(f"s{state}", state == 9))
    assert packed["levels"] == [["token", 6], ["cluster 1", 3], ["cluster 2", 2], ["mask", 1]]
    assert packed["states"] == [[f"s{MASK}", 3, 0], ["s9", 2, 1], ["s10", 2, 0]]
    frames = [[0.75, 1, [1, 1, 0, 0.123, 2, 0.877, 1, 0.123]], [0.5, 1], [0.0, 2]]
    assert packed["texts"] == [{"start": [0, 0], "given": [0], "end": 2, "frames": frames}]


def test_the_size_of_a_page_grows_with_changes_not_with_steps():
    sizes = []
    events = []
    for steps in (8, 40):
        film = Filmed(dd.samplers.Ancestral(), 1)
        network = lambda z, t: torch.zeros(*z.shape, 6)  # noqa: E731
        texts = film.end(dd.sample(PROCESS, network, (1, 80), film, steps, on_step=film.on_step))
        packed = json.dumps(
            pack(texts, [80], PROCESS, lambda state: Spelt("x")), separators=(",", ":")
        )
        sizes.append(len(packed))
        events.append(sum(len(frame.events) for frame in texts[0].frames))
    for size, steps, number in zip(sizes, (8, 40), events, strict=True):
        assert size < 80 * 3 + 45 * number + 20 * steps + 400


EVIL = (
    "</script><script>document.title='evil'</script><!-- &lt;b&gt; {{script}} \u2028 \" \\ 'x' <b>"
)


def test_nothing_breaks_out_of_the_page():
    text = Film([MASK], [], [Frame(0.0, 1, [Event(0, 0, Mark.DOWN, 1.0, ())])])
    film = pack([text], [1], PROCESS, lambda state: Spelt(EVIL if state == 0 else "_"))
    whole = page(EVIL, {"prompt": EVIL, "top_p": None}, film)
    read = Reader(whole)
    assert len(read.scripts) == 2 and "evil" not in read.scripts[1]
    assert whole.count("const film =") == 1  # nor is a slot of the page filled within the data
    assert read.film["states"][1][0] == EVIL and read.film["about"] == [
        ["prompt", EVIL],
        ["top_p", "none"],
    ]
    assert EVIL in "".join(read.words)
    assert whole.count("</script>") == 2 and "<!--" not in whole
    assert read.fetched == ["data:,"] and "default-src 'none'" in whole
    assert "http" not in read.scripts[1] and "innerHTML" not in read.scripts[1]


@pytest.mark.parametrize("make", [byte_level, word_pieces])
def test_words_are_spelt_as_they_stand_in_a_text(make):
    tokenizer = make()
    text = "the weather in boston." if make is word_pieces else "We must act,\nand so on."
    spell = speller(tokenizer, ["money"])
    size = tokenizer.get_vocab_size()
    pieces = [spell(number) for number in tokenizer.encode(text, add_special_tokens=False).ids]
    assert "".join(piece.text for piece in pieces).strip().replace("¶\n", "\n") == text
    assert not any(piece.special for piece in pieces)
    assert spell(size) == Spelt("‹money›") and spell(size + 1) == Spelt("_")
    tokenizer.add_special_tokens(["[PAD]"])
    assert speller(tokenizer, [])(size) == Spelt(" [PAD]", True)


@pytest.mark.parametrize("sampler", ["ancestral", "remask:eta=0.5", "first_hitting"])
def test_samples_are_the_same_with_a_page(run, tmp_path, sampler):
    options = dict(
        run=str(run), samples=3, batch=2, sampling=Sampling(steps=4, sampler=sampler), prompt="We"
    )
    rows = []
    for html in (None, tmp_path / "some" / "folder" / "page.html"):
        out = tmp_path / "samples.jsonl"
        generate(Options(**options, html=html, out=out), quiet())
        rows.append(
            [json.loads(line)["tokens"] for line in out.read_text(encoding="utf-8").splitlines()]
        )
    assert rows[0] == rows[1]
    film = Reader(html.read_text(encoding="utf-8")).film
    assert len(film["texts"]) == 3 and film["numbers"] == [0, 1, 2]
    assert [level for level, _ in film["levels"]] == ["token", "cluster 1", "cluster 2", "mask"]
    spelt = [text for text, _, _ in film["states"]]
    assert "_" in spelt and any(text.startswith("‹") for text in spelt)
    for text, row in zip(film["texts"], rows[0], strict=True):
        states = list(text["start"])
        for _, _, *events in text["frames"]:
            for position, state, *_ in events:
                states[position] = state
        assert len(states) == LENGTH and len(text["frames"]) == 4
        assert text["given"] == list(range(len(text["given"]))) and len(text["given"]) > 1
        assert len(set(zip(states, row, strict=True))) == len(
            set(row)
        )  # the same words, numbered anew
    ups = [
        event
        for text in film["texts"]
        for frame in text["frames"]
        for event in frame[2:]
        if event[2] == 1
    ]
    assert bool(ups) == sampler.startswith("remask")


def test_the_command_prints_the_path_of_the_page_and_its_protocol(run, tmp_path, capsys):
    where = tmp_path / "page.html"
    command = [
        str(run),
        "--steps",
        "2",
        "--samples",
        str(FILMED + 1),
        "--length",
        "4",
        "--html",
        str(where),
    ]
    main(command)
    assert f"page: {where}" in capsys.readouterr().out
    film = Reader(where.read_text(encoding="utf-8")).film
    about = dict(film["about"])
    assert len(film["texts"]) == FILMED and (about["samples"], about["shown here"]) == (
        f"{FILMED + 1}",
        f"{FILMED}",
    )
    assert about["sampler"] == "ancestral" and about["steps"] == "2" and about["prompt"] == "none"


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for where, packed in (
        (tmp_path / "folder", "is a folder, must be a file"),
        (tmp_path / "file" / "page.html", "file is a file, must be a folder"),
        (tmp_path / "file" / "more" / "page.html", "file is a file, must be a folder"),
    ):
        with pytest.raises(SystemExit, match=rf"^error: html={where}: .*{packed}$"):
            main(["runs/nothere", "--html", str(where)])


def test_the_files_of_the_page_lie_beside_the_code():
    """A wheel takes every file of the package.

    A source that .gitignore names would be missing in it.
    """
    room = Path(__file__).parents[2] / "recipes" / "visualization"
    assert {path.suffix for path in room.glob("page.*")} == {".py", ".html", ".css", ".js"}
    assert all(
        len(path.read_text(encoding="utf-8").splitlines()) < 300 for path in room.glob("*.*")
    )
