"""WordNet's files: from a token to its ancestors, on a few lines in the format of wndb(5WN)."""

import pytest
from refusals import refused_with

from ddlib.hierarchies import Tree, table_parents, wordnet_table

LICENCE = "  1 This software and database is provided as is.  \n"
NOUNS = [
    ("00000001", "03 n 01 entity 0 000"),
    ("00000002", "03 n 01 animal 0 002 @ 00000001 n 0000 ~ 00000003 n 0000"),
    (
        "00000003",
        "05 n 02 dog 0 domestic_dog 0 003 #m 00000001 n 0000 @ 00000002 n 0000 @ 00000004 n 0000",
    ),
    ("00000004", "03 n 01 object 0 001 @ 00000001 n 0000"),
    ("00000005", "05 n 01 Rex 0 001 @i 00000003 n 0000"),
    ("00000006", "18 n 01 dog 1 001 @ 00000004 n 0000"),
    ("00000007", "03 n 01 run 0 001 @ 00000004 n 0000"),
    ("00000008", "05 n 0b a 0 b 0 c 0 d 0 e 0 f 0 g 0 h 0 i 0 j 0 cow 0 001 @ 00000002 n 0000"),
]
VERBS = [
    ("00000001", "38 v 01 run 0 001 @ 00000002 v 0000 02 + 01 00 + 02 00"),
    ("00000002", "38 v 01 go 0 000 01 + 01 00"),
    ("00000003", "38 v 01 inhibit 0 001 @ 00000004 v 0000 01 + 01 00"),
    ("00000004", "38 v 01 restrain 0 001 @ 00000003 v 0000 01 + 01 00"),
]
ADJECTIVES = [
    ("00000001", "00 a 01 quick 0 001 & 00000002 a 0000"),
    ("00000002", "00 s 01 hasty(p) 0 002 + 00000001 n 0101 & 00000001 a 0000"),
]
FILES = {
    "data.noun": NOUNS,
    "data.verb": VERBS,
    "data.adj": ADJECTIVES,
    "data.adv": [("00000001", "02 r 01 quickly 0 001 \\ 00000001 a 0101")],
    "index.noun": [
        ("a", "n 1 1 @ 1 0 00000008"),
        ("animal", "n 1 2 @ ~ 1 0 00000002"),
        ("cow", "n 1 1 @ 1 0 00000008"),
        ("dog", "n 2 2 @ #m 2 1 00000003 00000006"),
        ("domestic_dog", "n 1 1 @ 1 0 00000003"),
        ("entity", "n 1 0 1 0 00000001"),
        ("object", "n 1 1 @ 1 0 00000004"),
        ("rex", "n 1 1 @i 1 0 00000005"),
        ("run", "n 1 1 @ 1 0 00000007"),
    ],
    "index.verb": [
        ("go", "v 1 0 1 0 00000002"),
        ("inhibit", "v 1 1 @ 1 0 00000003"),
        ("restrain", "v 1 1 @ 1 0 00000004"),
        ("run", "v 1 1 @ 1 1 00000001"),
    ],
    "index.adj": [("hasty", "a 1 1 & 1 0 00000002"), ("quick", "a 1 1 & 1 0 00000001")],
    "index.adv": [("quickly", "r 1 1 \\ 1 0 00000001")],
}
FREQUENCIES = (
    "run%2:38:00:: 1 106\nrun%1:04:00:: 1 50\nrun%1:04:01:: 2 900\nhasty%5:00:00:quick:00 1 1\n"
)
ENTITY = "entity.n.01"
ANIMAL = "animal.n.01"
DOG = "dog.n.01"


@pytest.fixture
def folder(tmp_path):
    for name, lines in FILES.items():
        text = "".join(f"{first} {rest} | what it means; 00 a 01\n" for first, rest in lines)
        (tmp_path / name).write_text(LICENCE + text, encoding="utf-8")
    (tmp_path / "verb.exc").write_text("went go\nran run\n", encoding="utf-8")
    for name in ("noun", "adj", "adv"):
        (tmp_path / f"{name}.exc").write_text("", encoding="utf-8")
    (tmp_path / "cntlist.rev").write_text(FREQUENCIES, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "chain"),
    [
        (
            "dog",
            ["noun", ENTITY, ANIMAL, DOG],
        ),  # of two senses the first, of two hypernyms the first
        (" Dogs\n", ["noun", ENTITY, ANIMAL, DOG]),
        ("domestic dog", ["noun", ENTITY, ANIMAL, DOG]),
        ("Rex", ["noun", ENTITY, ANIMAL, DOG, "rex.n.01"]),  # an instance
        ("cow", ["noun", ENTITY, ANIMAL, "a.n.01"]),  # eleven words, counted in hex
        ("run", ["verb", "go.v.01", "run.v.01"]),  # its first sense as a verb is the more frequent
        ("ran", ["verb", "go.v.01", "run.v.01"]),
        ("going", ["verb", "go.v.01"]),
        ("quick", ["adj", "quick.a.01"]),
        ("hastier", None),
        ("hasty", ["adj", "quick.a.01", "hasty.a.01"]),
        ("quickly", ["adv", "quickly.r.01"]),
        ("the", None),
        (" ", None),
    ],
)
def test_a_token_has_the_ancestors_of_its_most_frequent_sense(folder, text, chain):
    table = wordnet_table(folder, {"token": text, "known": "entity"}, range(9, -1, -1))
    expected = (
        None if chain is None else [chain[min(depth, len(chain) - 1)] for depth in range(9, -1, -1)]
    )
    assert table.get("token") == expected
    assert table["known"][-2:] == [ENTITY, "noun"]


def test_the_table_makes_a_tree_with_a_cluster_for_tokens_outside_wordnet(folder):
    texts = {
        "Ġdog": " dog",
        "Ġcow": " cow",
        "Ġran": " ran",
        "ing": "ing",
        "Ġgo": " go",
        "Ġrex": " rex",
    }
    table = wordnet_table(folder, texts, depths=[3, 1])
    parents, names = table_parents(
        table, {token: i for i, token in enumerate(texts)}, other="other"
    )
    assert names == [["a.n.01", DOG, "go.v.01", "other", "run.v.01"], [ENTITY, "go.v.01", "other"]]
    assert [vector.tolist() for vector in parents] == [[1, 0, 4, 3, 2, 1], [0, 0, 1, 2, 1]]
    assert Tree(parents).levels == (6, 5, 3, 1)


def test_a_sense_with_few_tokens_gives_them_to_the_sense_above(folder):
    texts = {text: text for text in ("dog", "rex", "cow", "quick")}
    table = wordnet_table(folder, texts, depths=[4, 0], min_words=2)
    assert table == {
        "dog": [DOG, "noun"],
        "rex": [DOG, "noun"],
        "cow": [ANIMAL, "noun"],
        "quick": ["adj", "adj"],
    }
    table = wordnet_table(folder, texts, depths=[4, 0], min_words=3)
    assert table["dog"] == table["cow"] == [ANIMAL, "noun"]


def test_bad_depths_files_and_words_are_refused_by_name(folder):
    refused_with(folder=folder)(r"""
        wordnet_table(folder, {"dog": "dog"}, []) | ValueError | depths
        wordnet_table(folder, {"dog": "dog"}, [1, 1]) | ValueError | depths
        wordnet_table(folder, {"dog": "dog"}, [0, 1]) | ValueError | depths
        wordnet_table(folder, {"dog": "dog"}, [1, -1]) | ValueError | depths
        wordnet_table(folder, {"dog": "dog"}, min_words=0) | ValueError | min_words
        wordnet_table(folder, {"the": "the"}) | ValueError
            | texts has 1 tokens, none of which is in the WordNet of
        wordnet_table(folder, {"restrain": "restrain"}) | ValueError
            | data\.verb has restrain\.v\.01 as its own
    """)
    with (folder / "data.adv").open("a", encoding="utf-8") as file:
        file.write("00000002 02 r\n")
    with pytest.raises(
        ValueError, match=r"data\.adv, line 3 is not in the format of WordNet: '00000002 02 r"
    ):
        wordnet_table(folder, {"dog": "dog"})
    (folder / "cntlist.rev").unlink()
    (folder / "data.adv").write_text("", encoding="utf-8")
    with pytest.raises(FileNotFoundError, match=r"cntlist\.rev"):
        wordnet_table(folder, {"dog": "dog"})
