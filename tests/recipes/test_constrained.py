"""Texts that match a regular expression or a JSON schema: ``recipes.generate --regex`` and
``--json-schema``.
"""

import json
import re
import sys
from dataclasses import replace

import pytest
import torch
from pretrained_by_others import write
from tokenizers import Tokenizer, decoders, models
from zoo.runs import LENGTH, publish_tiny, publishes, quiet, read_lines

import ddlib as dd
from recipes.generate import Options, generate, main
from recipes.generation.calls import network_calls
from recipes.generation.constrained import Constraint, pieces
from recipes.generation.sampling import NOISE, Sampling, draw

PATTERN = r"[0-9]{2}( [a-zé]+)+\."
ORDERED = Sampling(steps=LENGTH, sampler="left_to_right")
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yé"]}},
    "required": ["a", "b"],
}
LAYOUTS = ("packed", "masks", "wrapped")


published = publishes("packed")


def drawn(run, **options):
    return generate(Options(run=str(run), **({"sampling": ORDERED} | options)), quiet())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sampler", ["left_to_right", "ancestral", "confidence"])
def test_texts_match_the_pattern(tmp_path, layout, sampler):
    run = publish_tiny(layout, tmp_path).run
    out = tmp_path / "texts.jsonl"
    sampling = Sampling(steps=9, sampler=sampler)
    texts = drawn(run, regex=PATTERN, samples=6, sampling=sampling, out=out)
    assert len(set(texts)) > 1 and all(re.fullmatch(PATTERN, text) for text in texts)
    assert all(
        line["protocol"]["regex"] == PATTERN and len(line["tokens"]) == LENGTH
        for line in read_lines(out)
    )
    assert drawn(run, regex=PATTERN, numbers=(4,), sampling=sampling) == [texts[4]]
    assert drawn(run, regex=PATTERN, samples=6, batch=4, sampling=sampling) == texts


def test_it_is_the_constraint_of_ddlib(run, saved, tmp_path):
    out = tmp_path / "texts.jsonl"
    pattern = "(yes|no){1,3}"
    ends = saved.special.eos
    drawn(run, regex=pattern, samples=3, out=out, seed=2)
    spelt = {piece: token for token, piece in pieces(saved).items()}
    tokens = {letter: spelt[letter.encode()] for letter in "yesno"}
    states = {
        0: {"y": 1, "n": 3},
        1: {"e": 2},
        2: {"s": 4},
        3: {"o": 4},
        4: {"y": 5, "n": 7},
        5: {"e": 6},
        6: {"s": 8},
        7: {"o": 8},
        8: {"y": 9, "n": 11},
        9: {"e": 10},
        10: {"s": 12},
        11: {"o": 12},
    }
    by_letters = {
        state: {tokens[letter]: to for letter, to in row.items()} for state, row in states.items()
    }
    automaton = Constraint(pattern).automaton(saved)
    letters = dd.contrib.Automaton(by_letters, 0, [4, 8, 12], saved.process.vocab_size, ends)
    rows = torch.tensor([line["tokens"][1:] for line in read_lines(out)])
    assert bool(automaton.accepts(rows).all())
    spelled = [
        [tokens[letter] for letter in text] + [ends] * 4 for text in ("yesno", "nonono", "yes")
    ]
    for row in spelled:
        assert bool(letters.accepts(torch.tensor([row]))) and bool(
            automaton.accepts(torch.tensor([row]))
        )
    expected = dd.sample(
        saved.process,
        saved.denoiser,
        (3, LENGTH),
        dd.samplers.LeftToRight(),
        LENGTH,
        torch.tensor([saved.special.bos]),
        controls=[dd.controls.EndOfText(ends), dd.contrib.Constraint(automaton.behind(1))],
        parameterization="posterior",
        generator=dd.KeyedGenerator(2, NOISE, torch.arange(3)),
    )
    assert expected[:, 1:].tolist() == rows.tolist()


def test_a_json_schema(run, tmp_path):
    path = tmp_path / "schema.json"
    out = tmp_path / "texts.jsonl"
    path.write_text(json.dumps(SCHEMA), encoding="utf-8")
    for text in drawn(
        run, json_schema=path, samples=4, sampling=replace(ORDERED, sampler="confidence"), out=out
    ):
        found = json.loads(text)
        assert type(found["a"]) is int and found["b"] in ("x", "yé") and len(found) == 2
    assert all(line["protocol"]["json_schema"] == SCHEMA for line in read_lines(out))


def test_a_json_text_does_not_end_within_a_string(saved, tmp_path):
    path = tmp_path / "schema.json"
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    path.write_text(json.dumps(schema | {"required": ["a"]}), encoding="utf-8")
    automaton = Constraint(json_schema=path).automaton(saved)
    ends = [saved.special.eos]
    text = saved.encode('{"a":"yé."}')
    for shown in range(len(text) + 1):
        row = torch.tensor([[*text[:shown], *ends * (len(text) + 1 - shown)]])
        assert bool(automaton.accepts(row)) == (shown == len(text))


def test_prompts_of_several_lengths_and_gaps(run):
    prompts = ("The state", "We will build roads", "The [MASK:3] of our")
    patterns = (" [a-z]{3,9}!", " [a-z]{3,9}!", "The [a-z ]+ of our")
    each = zip(patterns, prompts, strict=True)
    alone = [drawn(run, regex=pattern, prompt=prompt, samples=2) for pattern, prompt in each]
    assert all(re.fullmatch("The state [a-z]{3,9}!", text) for text in alone[0])
    assert all(re.fullmatch("The [a-z ]+ of our", text) for text in alone[2])
    assert drawn(run, regex=" [a-z]{3,9}!", prompt=prompts[:2], samples=2) == alone[0] + alone[1]


def test_a_sample_stops_at_its_end(saved):
    with network_calls(saved.model) as made:
        found = draw(
            saved,
            ORDERED,
            0,
            torch.arange(1),
            LENGTH,
            constraint=Constraint("(yes|no)").automaton(saved),
        )
    text = saved.cut_at_end(found[0].tolist())
    assert saved.tokenizer.decode(text) in ("yes", "no")
    assert made.sequences == len(text) + 1 < LENGTH


def test_an_answer_and_a_page(run, tmp_path):
    model = write(tmp_path / "a2d", "a2d")
    for text in drawn(model, regex="[0-9]{3}", prompt="The state", chat=True, samples=2, new=8):
        assert re.fullmatch("[0-9]{3}", text)
    page = tmp_path / "page.html"
    (text,) = drawn(run, regex=PATTERN, samples=1, html=page)
    assert text.rstrip(".").split()[-1] in page.read_text(encoding="utf-8")


def test_by_command(run, capsys, tmp_path):
    main(
        [
            str(run),
            "--regex",
            "(yes|no)",
            "--samples",
            "1",
            "--steps",
            "3",
            "--sampler",
            "first_hitting",
            "--stream",
        ]
    )
    assert re.search("^(yes|no)$", capsys.readouterr().out, re.MULTILINE)
    path = tmp_path / "schema.json"
    path.write_text('{"type": "boolean"}', encoding="utf-8")
    main([str(run), "--json-schema", str(path), "--samples", "1", "--steps", "3"])
    assert re.search("^(true|false)$", capsys.readouterr().out, re.MULTILINE)


def test_tokens_are_bytes(saved):
    found = pieces(saved)
    text = "The state of our union is été, 1 😀"
    assert b"".join(found[token] for token in saved.encode(text)).decode() == text
    assert saved.special.eos not in found and saved.special.pad not in found
    entries = {"▁a": 0, "<0xC3>": 1, "<0xA9>": 2, "b": 3, "<unk>": 4, "</s>": 5}
    other = Tokenizer(models.BPE(entries, [], unk_token="<unk>", byte_fallback=True))
    other.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    special = replace(saved.special, bos=None, eos=5, pad=None, others=())
    model = replace(saved, tokenizer=other, special=special)
    assert pieces(model) == {0: b" a", 1: b"\xc3", 2: b"\xa9", 3: b"b"}
    alone = Tokenizer(models.WordLevel({"C": 0, "O": 1, "?": 2}, unk_token="?"))
    alone.decoder = decoders.Fuse()
    assert pieces(replace(saved, tokenizer=alone, special=replace(special, eos=None))) == {
        0: b"C",
        1: b"O",
    }
    together = Tokenizer(models.WordPiece({"play": 0, "##ing": 1, "[UNK]": 2}, unk_token="[UNK]"))
    together.decoder = decoders.WordPiece()
    message = r"its tokenizer decodes tokens jointly.* must be byte-level, .* takes an Automaton"
    with pytest.raises(ValueError, match=message):
        pieces(replace(saved, tokenizer=together, special=special))


PATTERNS = (
    "a|ab",
    "(a|ab)(b|ba)?",
    "(ab){1,3}",
    "a(b|ab)*",
    r"a+(\.b+)?",
    "(?i)AB+",
    "[^a]*",
    "a??b*?",
    "(a*b)*",
    "a{2}|b",
    "",
    "a*",
    ".*",
    "^a|b$",
    r"a\.",
    r"(a|b)+(\.(a|b)+)*",
    r"[^b]\\?$",
    "a.",
    ".{2,3}b?",
    r"a[^b\.]*b",
    "([^a]b)+",
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_an_automaton_accepts_what_python_matches(saved, pattern):
    symbols = ["a", "b", "ab", "ba", "."]
    tokenizer = Tokenizer(
        models.WordLevel({symbol: number for number, symbol in enumerate(symbols)}, unk_token="?")
    )
    tokenizer.decoder = decoders.Fuse()
    special = replace(saved.special, bos=None, eos=None, pad=None, others=())
    model = replace(
        saved,
        tokenizer=tokenizer,
        special=special,
        process=dd.processes.Masked(5, dd.schedules.Linear()),
    )
    automaton = Constraint(pattern).automaton(model)
    for length in range(1, 5):
        rows = torch.cartesian_prod(*[torch.arange(5)] * length).view(-1, length)
        texts = ["".join(symbols[token] for token in row) for row in rows.tolist()]
        assert automaton.accepts(rows).tolist() == [
            re.fullmatch(pattern, text) is not None for text in texts
        ]


def test_a_model_without_an_end_fills_its_rows(saved):
    without = replace(saved, special=replace(saved.special, eos=None))
    automaton = Constraint("a{2,3}").automaton(without)
    token = {piece: token for token, piece in pieces(saved).items()}[b"a"]
    assert automaton.end is None
    assert (
        automaton.accepts(torch.tensor([[token] * 3])).all()
        and not automaton.accepts(torch.tensor([[token]])).any()
    )


BOTH = r"regex='a': not with json_schema=.*, give one of them"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex": "a("}, r"regex='a\(': outlines-core cannot convert it"),
        ({"regex": "(?=a)a"}, "cannot convert it, as it does not support look-around"),
        ({"regex": "a", "json_schema": "some.json"}, BOTH),
        ({"regex": "a", "length": "auto"}, "length='auto': not with a regex or a JSON schema"),
        ({"regex": "a)(b"}, r"regex='a\)\(b': outlines-core cannot convert it"),
        (
            {"regex": "a{30}"},
            f"regex='.*': constraint is .* no sequence of length {LENGTH} satisfies",
        ),
        (
            {"regex": "a", "prompt": "The [MASK:2] of"},
            "satisfies with the tokens that row 0 of the prompt gives",
        ),
        ({"regex": "a", "sampling": Sampling(forbidden=("a",))}, "no sequence of length"),
        (
            {"regex": "a", "sampling": Sampling(sampler="euler")},
            "regex='a': controls holds Constraint.* Euler.* does not support",
        ),
        (
            {"regex": "a", "sampling": Sampling(stop_entropy=0.1)},
            "which Settled.* does not support",
        ),
        (
            {"regex": "a", "sampling": Sampling(min_tokens=3)},
            "least of EndOfText.* is 3, must be 0",
        ),
    ],
)
def test_refused(run, options, message):
    with pytest.raises(ValueError, match=message):
        generate(Options(run=str(run), **options), quiet())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "must be a file of JSON"),
        ('{"type": "foo"}', "outlines-core cannot convert it"),
        ("3", "outlines-core cannot convert it"),
        (b"\xff", "must be a file of JSON"),
    ],
)
def test_schemas_are_refused_before_a_model_is_read(tmp_path, content, message):
    path = tmp_path / "schema.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=rf"json_schema=.*schema.json: {message}"):
        Options(run="nowhere", json_schema=path)
    with pytest.raises(
        FileNotFoundError, match=r"json_schema=.*none.json: cannot be read: No such file"
    ):
        Options(run="nowhere", json_schema=tmp_path / "none.json")


def test_the_package_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "outlines_core", None)
    with pytest.raises(
        ModuleNotFoundError, match=r'regex=\'a\' needs outlines-core; run: pip install "ddlib\[con'
    ):
        Options(run="nowhere", regex="a")


def test_noise_without_masks_is_refused(tmp_path):
    run = publish_tiny("uniform", tmp_path, packed=True).run
    with pytest.raises(
        ValueError,
        match=r"regex='a': controls holds Constraint.* which needs masks, clusters that keep",
    ):
        drawn(run, regex="a", sampling=Sampling(steps=3))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "(a|b)*a(a|b){24}"},
        {"type": "array", "items": {"type": "string", "maxLength": 5000}, "maxItems": 5000},
    ],
)
def test_a_schema_above_the_limits_of_the_server_is_refused(tmp_path, schema):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(schema))
    with pytest.raises(
        ValueError, match=r"json_schema=.*: the automaton of the schema is too larg"
    ):
        Options(run="nowhere", json_schema=path)
