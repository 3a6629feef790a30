"""Conversations as training data: spans of a chat template, given prompts, runs, replies."""

import json
import os
import random
import signal
import time
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refused_with
from tokenizers import AddedToken
from training_runs import curve, finish, start, steps_made, trained
from transformers import PreTrainedTokenizerFast
from zoo import runs

import ddlib as dd
from recipes import evaluate, generate
from recipes import prepare as command
from recipes.config import Data, Optimizer, Recipe
from recipes.data import examples, open_prepared
from recipes.data.lengths import check_lengths
from recipes.data.sources.chat import Chat
from recipes.data.text import train_tokenizer
from recipes.engine import train
from recipes.engine.loop import draw
from recipes.engine.objectives.noising import add_noise
from recipes.engine.run import Run
from recipes.logging import read_metrics
from recipes.model_io import open_saved

WORDS = ("One and one is two.", "What is it?", "A red apple, please.", "Be short.", "No.")
SPECIAL = ("<bos>", "<sys>", "<usr>", "<bot>", "<end>", "<fill>")
TEMPLATE = """\
{{ bos_token }}{% for one in messages %}
{% if one.role == 'assistant' %}<bot>{% generation %}{{ one.content }}<end>{% endgeneration %}
{%- else %}{{ '<sys>' if one.role == 'system' else '<usr>' }}{{ one.content }}<end>{% endif %}

{% endfor %}
{% if add_generation_prompt %}<bot>{% endif %}
"""


def mark(role: str) -> str:
    return {"system": "<sys>", "user": "<usr>", "assistant": "<bot>"}[role]


def chat(*contents: str, system: str | None = None) -> dict:
    """The line of a conversation of user and assistant in turn."""
    roles = ("user", "assistant") * len(contents)
    messages = [dict(role=r, content=c) for r, c in zip(roles, contents, strict=False)]
    before = [] if system is None else [dict(role="system", content=system)]
    return {"messages": before + messages}


CHATS = (
    chat("What is it?", "A red apple."),
    chat("One and one?", "Two.", "What?", "Two, please.", system="Be short."),
    chat("No?", "No."),
)


def lines(*values) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Path:
    """A folder with a tokenizer whose template has spans."""
    folder = tmp_path_factory.mktemp("chat") / "tokenizer"
    made = train_tokenizer("\n".join(WORDS) * 3, 270)
    made.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIAL])
    tokens = dict(bos_token="<bos>", eos_token="<end>", pad_token="<fill>")
    speaking = PreTrainedTokenizerFast(tokenizer_object=made, chat_template=TEMPLATE, **tokens)
    speaking.save_pretrained(folder)
    return folder


@pytest.fixture
def source(tokenizer, tmp_path, monkeypatch):
    """A function that makes the source of some lines."""
    monkeypatch.chdir(tmp_path)

    def make(content=CHATS, **options):
        text = content if isinstance(content, str) else lines(*content)
        Path("chats.jsonl").write_text(text, encoding="utf-8")
        return Chat(**{"files": "chats.jsonl", "tokenizer": str(tokenizer)} | options)

    return make


def spelt(sequences):
    """The given and the learned text of each sequence, in turn, with its end."""
    read = sequences.text_tokenizer
    texts = []
    for ids, given in zip(sequences.ids, sequences.given, strict=True):
        edges = [0, *(np.flatnonzero(np.diff(given)) + 1).tolist(), len(ids)]
        parts = [
            read.decode(ids[a:b].tolist(), skip_special_tokens=False) for a, b in pairwise(edges)
        ]
        texts.append([*parts[:-1], parts[-1] + sequences.end])
    return texts


# spans


def test_every_answer_is_learned_behind_all_that_precedes_it(source):
    assert spelt(source().load()) == [
        ["<bos><usr>What is it?<end>\n<bot>", "A red apple.<end>"],
        ["<bos><sys>Be short.<end>\n<usr>One and one?<end>\n<bot>", "Two.<end>"],
        [
            "<bos><sys>Be short.<end>\n<usr>One and one?<end>\n<bot>Two.<end>\n"
            "<usr>What?<end>\n<bot>",
            "Two, please.<end>",
        ],
        ["<bos><usr>No?<end>\n<bot>", "No.<end>"],
    ]


def test_the_last_answer_alone_is_learned(source):
    every, last = (spelt(source(answers=name).load()) for name in ("each", "last"))
    assert last == [every[0], every[2], every[3]]


def test_all_answers_of_a_conversation_are_learned_together(source):
    (_, several, _) = spelt(source(answers="all").load())
    assert several == [
        "<bos><sys>Be short.<end>\n<usr>One and one?<end>\n<bot>",
        "Two.<end>",
        "\n<usr>What?<end>\n<bot>",
        "Two, please.<end>",
    ]


def conversations(count: int, seed: int = 0) -> list[dict]:
    """Conversations of several turns, with letters beyond ASCII and white space at the edges."""
    chance = random.Random(seed)
    texts = (*WORDS, " à la carte ", "日本", "two\nlines", "  ", "x" * 30)
    return [
        chat(
            *(
                chance.choice(texts[:-2] if turn % 2 else texts)
                for turn in range(2 * chance.randint(1, 3))
            ),
            system=chance.choice((None, *texts)),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("answers", ["each", "last", "all"])
def test_the_column_given_is_the_tokens_outside_of_the_spans(source, answers):
    """Against tokens of the pieces of each text, which special tokens divide."""
    chats = conversations(40)
    made = source(chats, answers=answers).load()
    encode = made.text_tokenizer.encode

    def tokens(text):
        return encode(text, add_special_tokens=False).ids

    rows = iter(zip(made.ids, made.given, strict=True))
    for one in chats:
        ids, given = tokens("<bos>"), [True]
        pending = []
        for message in one["messages"]:
            head = tokens(mark(message["role"]))
            body = tokens(message["content"])
            is_answer = message["role"] == "assistant"
            ids = [*ids, *head, *body, *tokens("<end>")]
            given = [*given, True, *[not is_answer] * len(body), not is_answer]
            if is_answer and answers == "each":
                pending.append((list(ids), list(given)))
            ids, given = [*ids, *tokens("\n")], [*given, True]
        wanted = pending if answers == "each" else [(ids[:-1], given[:-1])]
        for row, marks in wanted:
            if answers != "all":  # only behind the last prompt
                last = max(place for place, mark in enumerate(marks) if mark)
                marks = [place <= last for place in range(len(marks))]
            found, found_marks = next(rows)
            assert [*found.tolist(), *tokens("<end>")] == row
            assert [*found_marks.tolist(), False] == marks
    assert next(rows, None) is None


def test_the_folder_has_the_marks_and_learns_the_end(source, tokenizer, capsys):
    source(conversations(30))
    arguments = ["chat", "--files", "chats.jsonl", "--tokenizer", str(tokenizer)]
    command.main([*arguments, "--held-out", "5", "--out", "data/chats"])
    advice = f"python -m recipes.adapt mdlm --from {tokenizer} --data.folder data/chats"
    assert advice in capsys.readouterr().out
    data = open_prepared(Path("data/chats"))
    read = data.tokenizer
    ends = (read.token_to_id("<end>"), read.token_to_id("<fill>"))
    assert (data.eos_id, data.pad_id, data.bos_id) == (*ends, None)
    assert data.fingerprint == dd.fingerprint(read.get_vocab()) and data.ends
    for split in (data.train, data.validation):
        assert split.has_given
        for number in range(len(split)):
            ids, given = split[number], split.given(number)
            assert ids[-1] == data.eos_id and not given[-1] and given[0]
            assert np.flatnonzero(np.diff(given)).size == 1  # a prompt, then its answer
    assert split.given_behind(4, 1000) is None
    command.main([*arguments, "--held-out", "5", "--out", "data/chats"])  # nothing to do


def test_a_template_of_a_file_serves_a_tokenizer_without_any(source, tmp_path):
    made = train_tokenizer("\n".join(WORDS) * 3, 270)
    made.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIAL])
    Path("plain").mkdir()
    made.save("plain/tokenizer.json")  # as in the folder of a run
    Path("mine.jinja").write_text(TEMPLATE.replace("{{ bos_token }}", "<bos>"))
    plain = source(tokenizer="plain", template="mine.jinja").load()
    assert spelt(plain) == spelt(source().load())
    assert (plain.end, plain.pad) == ("<end>", "<end>")
    text = Path("mine.jinja").read_text()
    before = source(tokenizer="plain", template="mine.jinja").identity()
    Path("mine.jinja").write_text(text + "{# #}")
    assert source(tokenizer="plain", template="mine.jinja").identity() != before


def test_long_conversations_are_left_out_with_a_remark(source):
    made = source(longest=20).load()
    assert [len(ids) + 1 <= 20 for ids in made.ids] == [True] * len(made)
    assert made.left_out == 4 - len(made) > 0
    (about, left_out) = made.notes
    assert "longest=20: " in left_out and "of 4 sequences are longer and left out" in left_out
    learned = sum(int((~given).sum()) + 1 for given in made.given)
    assert f"answers=each: {learned:,} of" in about and "'<end>'" in about


# bad input


def written(text: str) -> str:
    Path("bad.jinja").write_text(text, encoding="utf-8")
    return "bad.jinja"


def with_roles(*roles):
    return {"messages": [dict(role=role, content="No.") for role in roles]}


def message(**keys):
    return {"messages": [chat("No?")["messages"][0], dict(role="assistant", content="No.") | keys]}


def test_bad_input_is_refused_with_its_place(source, monkeypatch):
    def load(*values, **options):
        return source(values or CHATS, **options).load()

    def text(content):
        return source(content).load()

    def template(old, new):
        assert old in TEMPLATE
        return load(template=written(TEMPLATE.replace(old, new)))

    spans = ("{% generation %}", "{% endgeneration %}")
    plain = TEMPLATE.replace(spans[0], "").replace(spans[1], "")
    inside = "{{ one.content }}<end>{% endgeneration %}"
    refused_with(**locals())(r"""
        load(template="none.jinja") | FileNotFoundError | template='none.jinja': there is no such
        load(template=written(plain)) | ValueError
            | bad.jinja: it has no {% generation %}, .*behind their end token.*--template FILE
        template("{% if add_generation_prompt %}", "{% if %}") | ValueError
            | bad.jinja: it is not valid in line 6: Expected an expression, got 'end of statement
        load(files="none.jsonl") | FileNotFoundError | there is no .jsonl file
        load(longest=3) | ValueError | longest=3: must be at least \d+, the shortest sequence
        load(tokenizer="nothing.json") | FileNotFoundError | there is no file nothing.json
        text("{") | ValueError | chats.jsonl, line 1: is not JSON
        text("\n") | ValueError | there is no conversation
        load(CHATS[0], []) | ValueError | line 2: has list, must be an object with the key 'mess
        load({**CHATS[0], "id": 3}) | ValueError | line 1: has 'messages', 'id', must be an object
        load({"messages": []}) | ValueError | line 1: messages is \[\], must be a list of messages
        load({"messages": ["No."]}) | ValueError | messages\[0\] has 'No.', must have 'role' and
        load(message(name="Bo")) | ValueError | messages\[1\] has 'role', 'content', 'name', must
        load(message(role="bot")) | ValueError | messages\[1\] has role 'bot', must be one of
        load(message(content=None)) | ValueError | messages\[1\] has content None, must be a string
        load(message(content=" \n")) | ValueError | messages\[1\] is an empty answer, must have
        load(message(content="a<end>b")) | ValueError | messages\[1\] contains '<end>', a special
        load(with_roles("assistant")) | ValueError | the roles are assistant; must be user and
        load(with_roles("system")) | ValueError | the roles are system; must be user and
        load(with_roles("user")) | ValueError | the roles are user; must be user and assistant in
        load(with_roles("user", "assistant", "user")) | ValueError | from user to assistant
        load(with_roles("user", "user", "assistant")) | ValueError | the roles are user, user, ass
        load(with_roles("user", "system", "assistant")) | ValueError | at most one system message
        template("<end>{% endgen", "{% endgen") | ValueError
            | the template ends an answer with '.*', must end it with a special token
        template(inside, "<end>{% endgeneration %}") | ValueError | leaves nothing of an answer
        template("== 'assistant'", "== 'bot'") | ValueError
            | marks 0 spans as generated, must mark the 1 answers
        template("{% if add_generation_prompt %}<bot>{% endif %}", "") | ValueError
            | writes '.*<bot>' before the answer, but with add_generation_prompt '.*<end>\\n'
        template("'<usr>' }}{{ one.content }}", "'<usr>' }}") | ValueError
            | the template leaves out '.*', the content of messages.0.; must write that of every
        template("{% generation %}{{ one.content }}", "{% generation %}No{{ 2 }}") | ValueError
            | the template leaves out '.*', the content of messages.1.; must write that of every
        template("<bot>{% generation %}", "{% generation %}<bot>") | ValueError
            | before the answer, but with add_generation_prompt
        template("{{ bos_token }}", "{{ raise_exception('no chats') }}") | ValueError
            | line 1: the template refuses it: no chats
        template("one.content }}<end>{% endgen",
            "one.content }}{{ '<end>' if loop.last else '<fill>' }}{% endgen") | ValueError
            | template: answers end with '<end>', '<fill>', must end with one token
    """)


def test_a_tokenizer_without_a_template_needs_one(source):
    made = train_tokenizer("\n".join(WORDS) * 3, 270)
    Path("plain").mkdir()
    made.save("plain/tokenizer.json")
    with pytest.raises(ValueError, match=r"has no chat template, name a file.*--template FILE"):
        source(tokenizer="plain").load()


# batches and runs


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    """A folder with prepared conversations: answers repeat the question."""
    place = tmp_path_factory.mktemp("runs")
    texts = [" ".join(pair) for pair in zip(WORDS * 12, WORDS[1:] * 15, strict=False)]
    (place / "chats.jsonl").write_text(lines(*(chat(text[:9], text[:9]) for text in texts)))
    (place / "long.jsonl").write_text(lines(*conversations(30)))
    for name, more in (("chats", []), ("long", ["--answers", "all"])):
        arguments = ["chat", "--files", str(place / f"{name}.jsonl"), "--tokenizer", str(tokenizer)]
        command.main([*arguments, *more, "--held-out", "8", "--out", str(place / name)])
    return place


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["chats", "long"])
def test_prompts_are_never_noised(folder, name, packed):
    data = open_prepared(folder / name)
    process = dd.presets.gidd(data.vocab_size, 0.3)
    length = 2 * int(data.train.lengths.max())
    stream = examples(
        data.train, length=length, pad_id=data.pad_id, batch_size=4, seed=0, packed=packed
    )
    learned = 0
    for step, batch in enumerate(islice(stream, 12)):
        noisy = add_noise(process, batch, 0, step)
        given = ~batch.free.view(noisy.x.shape)
        assert given.any() and torch.equal(noisy.z[given], noisy.x[given])
        assert not (noisy.mask & given).any()
        ends = (noisy.x == data.eos_id) & noisy.mask
        learned += int(ends.sum())
        assert (noisy.z != noisy.x)[noisy.mask].any()
    assert learned >= 12 * 4  # the end of every answer has a loss


def recipe(place: Path, run: str, **changes) -> Recipe:
    """Forty steps of masks on the conversations."""
    twenty = runs.recipe(place / "chats", place / run)
    forty = replace(
        twenty,
        data=Data(folder=place / "chats", length=24),
        process="mdlm",
        model=dict(kind="dit", dim=32, depth=2, heads=2, cond_dim=8, pad_to=1),
        loss=dict(count_padding=True),
        optimizer=Optimizer(lr=1e-2, warmup=4, ema=0.0, weight_decay=0.0, eps=1e-6),
        output=replace(twenty.output, validate_every=20, validate_sequences=8, sample_every=100),
        steps=40,
    )
    return replace(forty, **changes)


@pytest.fixture(scope="module")
def whole(folder):
    run = recipe(folder, "whole")
    assert train(run)
    return run


def bounds(run: Recipe) -> list[float]:
    records = (record for _, record in read_metrics(run.output.folder / "metrics.jsonl"))
    return [one["nats_per_token"] for one in records if one["kind"] == "bound"]


def test_answers_are_learned_and_only_they_are_measured(folder, whole):
    (begin, end) = bounds(whole)
    assert end < begin - 0.3
    prepared = Run.prepare(whole, runs.ALONE, writes=False)
    split = prepared.data.validation
    terms = prepared.validate()
    answers = [int((~split.given(number)).sum()) for number in range(len(split))]
    assert sorted(terms.tokens.tolist()) == sorted(answers)


def test_a_killed_run_resumes_with_the_same_numbers(folder, whole):
    run = recipe(folder, "killed")
    processes = start(run)
    limit = time.monotonic() + 100
    while steps_made(run.output.folder) < 9 and time.monotonic() < limit:
        time.sleep(0.01)
    os.kill(processes[0].pid, signal.SIGKILL)
    finish(processes)
    assert 9 <= steps_made(run.output.folder) < 40
    trained(run)
    assert curve(run.output.folder) == curve(whole.output.folder)


def test_samples_of_a_run_answer_the_prompts_of_the_validation_data(folder, whole):
    prepared = Run.prepare(whole, runs.ALONE, writes=False)
    tokens, _ = draw(prepared)
    split = prepared.data.validation
    for number, sample in enumerate(tokens):
        lead = int(split.given(number).sum())
        assert len(sample) == 24 and sample[:lead] == split[number][:lead].tolist()


def test_packed_rows_train(folder):
    data = Data(folder=folder / "long", length=200, packed=True)
    run = recipe(folder, "packed", data=data, steps=8)
    assert train(run)
    assert len(bounds(run)) == 1


def test_a_run_keeps_the_template_of_its_data(folder, whole, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    saved = open_saved("whole")
    asked = saved.chat([dict(role="user", content="No?")])
    assert asked == "<bos><usr>No?<end>\n<bot>"
    command_line = ["whole", "--chat", "--prompt", "No?", "--samples", "3", "--steps", "4"]
    generate.main([*command_line, "--out", "replies.jsonl"])
    prompt = saved.encode(asked)
    printed = capsys.readouterr().out
    for line in Path("replies.jsonl").read_text().splitlines():
        reply = json.loads(line)
        assert reply["tokens"][: len(prompt)] == prompt
        assert reply["text"] in printed and "<bot>" not in reply["text"]
    with pytest.raises(SystemExit, match=r"path=replies.txt: data of the kind 'chat' are texts"):
        generate.main([*command_line, "--out", "replies.txt"])
    own = Chat(files="chats.jsonl", tokenizer="whole/weights").load()  # formatted as before
    data = open_prepared(folder / "chats")
    assert own.ids[0].tolist() == data.train[0][:-1].tolist() and own.end == "<end>"
    short = ["--scorer", "none", "--samples", "1", "--steps", "2", "--replicates", "2"]
    evaluate.main(["whole", *short, "--out", "bound.json"])
    assert Path("bound.json").exists()


def test_conversations_are_not_cut(folder):
    data = open_prepared(folder / "long")
    longest = max(int(one.lengths.max()) for one in (data.train, data.validation))
    check_lengths(data, longest, packed=False)
    message = rf"data.length={longest - 1}: .* up to {longest} tokens, .*--longest"
    with pytest.raises(ValueError, match=message):
        check_lengths(data, longest - 1, packed=True)


def test_blocks_learn_one_answer_behind_its_prompt_and_refuse_several(folder):
    run = recipe(folder, "blocks", pace="blocks:4", steps=8)
    run = replace(run, model=run.model | {"block_size": 4})
    assert train(run)
    several = replace(run, data=Data(folder=folder / "long", length=200))
    several = replace(several, output=replace(run.output, folder=folder / "several"))
    with pytest.raises(ValueError, match=r"given tokens in a later block .*--answers each or last"):
        train(several)
