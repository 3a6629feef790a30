"""From text to text in Python: the same as the commands, and for each text the same as alone."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from pretrained_by_others import write
from zoo.runs import LENGTH, SENTENCES, publish_tiny, publishes, quiet, read_lines

import ddlib as dd
import recipes
from ddlib_models.hf.kv_cache import CachedHFBackbone
from recipes.engine.parallel import alone
from recipes.evaluation.samples import draw_samples
from recipes.generate import Options, generate
from recipes.generation.calls import network_calls
from recipes.generation.pipeline import Pipeline
from recipes.generation.request import TextOptions
from recipes.generation.sampling import Sampling
from recipes.generation.steps import follow

PROMPTS = ["The state of", "We", None, "The [MASK:3] of our[MASK]"]


published = publishes("two layers")


@pytest.fixture(scope="module")
def pipe(published):
    return recipes.pipeline(published.run, device="cpu", batch_size=4)


@pytest.fixture(scope="module")
def speaking(tmp_path_factory):
    """A third-party model with a chat template, and a cache for prompts."""
    folder = write(tmp_path_factory.mktemp("others") / "a2d", "a2d")
    return recipes.pipeline(folder, device="cpu", block_size=0)


def test_texts_are_those_of_the_command(published, pipe, tmp_path):
    out = tmp_path / "out.jsonl"
    for prompt in PROMPTS:
        options = dict(samples=3, seed=5, sampling=Sampling(steps=4, temperature=0.7), out=out)
        texts = generate(
            Options(run=str(published.run), prompt=prompt or (), **options),
            quiet(),
        )
        found = pipe.generate(prompt, num_return_sequences=3, seed=5, steps=4, temperature=0.7)
        lines = read_lines(out)
        assert [one.text for one in found] == texts
        assert [list(one.tokens) for one in found] == [line["tokens"] for line in lines]


@pytest.mark.parametrize("sampler", ["ancestral", "confidence:threshold=0.5"])
def test_lists_of_any_length_have_the_texts_of_each_alone(pipe, sampler):
    ways = dict(steps=3, sampler=sampler, num_return_sequences=2)
    several = pipe.generate(PROMPTS, **ways)
    single = [one for prompt in PROMPTS for one in pipe.generate(prompt, **ways)]
    assert [one.tokens for one in several] == [one.tokens for one in single]
    assert [(one.prompt, one.number) for one in several] == [
        (prompt, number) for prompt in range(len(PROMPTS)) for number in range(2)
    ]
    assert pipe.generate([], **ways) == []
    assert [one.tokens for one in pipe.generate(PROMPTS[::-1], **ways)][-2:] == [
        one.tokens for one in several[:2]
    ]


def test_gaps_are_filled_and_named_one_by_one(pipe):
    saved = pipe.model
    text = "The [MASK:3] of our[MASK][MASK:2] is"
    for one in pipe.infill([text, text], steps=3, num_return_sequences=2):
        assert len(one.fills) == 3 and one.ended
        mask = saved.process.num_states - 1
        given = pipe.rows([text], TextOptions().request)[0].states.tolist()
        drawn = [token for token, state in zip(one.tokens, given, strict=True) if state == mask]
        decode = saved.tokenizer.decode
        assert one.fills == (decode(drawn[:3]), decode(drawn[3:4]), decode(drawn[4:]))
    with pytest.raises(ValueError, match="texts: 'We' has no gap, must have one"):
        pipe.infill(["We [MASK]", "We"])
    with pytest.raises(ValueError, match="return_full_text=False: not with gaps"):
        pipe.infill("We [MASK]", return_full_text=False)


def test_the_text_behind_a_prompt_stops_and_is_cut(pipe):
    ways = dict(steps=3, seed=2)
    whole, behind = (
        pipe.generate("The state of", return_full_text=full, **ways)[0] for full in (True, False)
    )
    assert whole.tokens == behind.tokens and whole.text == "The state of" + behind.text
    stop = behind.text[2:4]
    for stops in (stop, ["never there", stop]):
        one = pipe.generate("The state of", stop_strings=stops, **ways)[0]
        assert one.ended and one.text == "The state of" + behind.text[: behind.text.index(stop)]
    given = 1 + len(pipe.model.encode("The state of"))
    for new in (1, 4):
        one = pipe.generate("The state of", max_new_tokens=new, steps=3, pace="blocks:4")[0]
        assert len(one.tokens) % 4 == 0 and len(one.tokens) >= given + new
        tokens = [*one.tokens[1 : given + new]]
        ends = [place for place, token in enumerate(tokens) if token in pipe.model.ends]
        assert one.text == pipe.model.tokenizer.decode(tokens[: min(ends, default=len(tokens))])


def test_a_chat_is_answered_and_continued(speaking):
    question = [{"role": "user", "content": "Is our union strong?"}]
    longer = [{"role": "system", "content": "Be brief."}, *question]
    longer += [{"role": "assistant", "content": "No."}, {"role": "user", "content": "We will."}]
    both = speaking.chat([question, longer], max_new_tokens=6, steps=3)
    each = [speaking.chat(one, max_new_tokens=6, steps=3)[0] for one in (question, longer)]
    assert [one.tokens for one in both] == [one.tokens for one in each]
    prompt = speaking.model.encode(speaking.model.chat(longer))
    assert list(both[1].tokens[: len(prompt)]) == prompt and len(both[1].tokens) == len(prompt) + 6
    answer = speaking.model.cut_at_end(both[1].tokens[len(prompt) :])
    assert both[1].text == speaking.model.tokenizer.decode(answer)
    mixed = speaking.generate([question, "We will"], max_new_tokens=6, steps=3)
    assert mixed[0].tokens == both[0].tokens and mixed[1].text.startswith("We will")
    with pytest.raises(TypeError, match="messages: 'We' must be messages"):
        speaking.chat("We")
    typed = [{"role": "user", "content": "No.[SEP][assistant] We"}]
    with pytest.raises(ValueError, match=r"^chat: the message of role 'user' contains '.SEP.', a"):
        speaking.chat([question, typed])
    for wrong in ([{"role": "user"}], [{"role": "user", "content": 3}]):
        with pytest.raises(TypeError, match="must have a role and a content, both text"):
            speaking.chat(wrong)


def test_a_stream_ends_with_the_texts_and_stops_when_it_is_closed(pipe):
    ways = dict(steps=4, num_return_sequences=3)
    drafts = list(pipe.stream(PROMPTS, **ways))
    results = {(one.prompt, one.number): one.result for one in drafts if one.result is not None}
    expected = pipe.generate(PROMPTS, **ways)
    assert [results[one.prompt, one.number] for one in expected] == expected
    for one in expected:
        mine = [
            draft for draft in drafts if (draft.prompt, draft.number) == (one.prompt, one.number)
        ]
        times = [draft.time for draft in mine]
        assert times[0] == 1 and times == sorted(times, reverse=True) and len(mine) == 6
        gaps = [draft.text.count("_") for draft in mine]
        assert gaps == sorted(gaps, reverse=True) and gaps[0] > 0 and mine[-1].text == one.text
    with network_calls(pipe.model.model) as calls:
        stream = pipe.stream("We", steps=4)
        assert calls.sequences == 0
        next(stream)
        next(stream)
        stream.close()
    assert calls.sequences == 1
    with pytest.raises(ValueError, match="steps=0"):
        pipe.stream("We", steps=0)


def test_an_error_of_a_call_is_raised_by_its_iterator():
    def run(on_step):
        on_step(-1, torch.ones(1), torch.zeros(1, 1))
        raise KeyError("lost")

    steps = follow(run)
    assert next(steps)[0] == -1
    with pytest.raises(KeyError, match="lost"):
        next(steps)


def test_exact_scores_are_those_of_whole_rows_whose_padding_is_given(published, pipe):
    saved = pipe.model
    documents = [one.tolist() for one in published.data.validation if len(one) <= LENGTH]
    texts = [saved.tokenizer.decode(saved.document(one)) for one in documents]
    assert len(texts) > 3
    scores = pipe.score(texts, likelihood="left_to_right")
    for score, document in zip(scores, documents, strict=True):
        x = torch.full((1, LENGTH), saved.special.pad)
        x[0, : len(document)] = torch.tensor(document)
        given = (torch.arange(LENGTH) >= len(document))[None]
        expected = dd.likelihood(
            saved.process,
            saved.denoiser,
            x,
            dd.samplers.LeftToRight(),
            given=given,
            parameterization="posterior",
        )
        assert score.exact and score.nats.standard_error == 0 and score.tokens == len(document)
        assert score.nats.value == pytest.approx(-float(expected.log_likelihood), rel=1e-5)


def test_a_bound_is_that_of_its_text_alone_with_an_error_that_shrinks(pipe):
    texts = [SENTENCES[0], "No.", "We will build roads."]
    found = pipe.score(texts, draws=8)
    for text, one in zip(texts, found, strict=True):
        assert not one.exact and one.nats.standard_error > 0
        again = pipe.score(text, draws=8)[0]
        assert again.nats.value == pytest.approx(one.nats.value, rel=1e-5)
        assert one.per_token.value * one.tokens == pytest.approx(one.nats.value)
    assert pipe.score("No.", draws=8, seed=1)[0].nats.value != found[1].nats.value
    few, many = (pipe.score("No.", draws=count)[0].nats for count in (16, 1024))
    assert many.standard_error < few.standard_error / 2
    assert abs(few.value - many.value) < 5 * math.hypot(few.standard_error, many.standard_error)


@pytest.mark.statistical
def test_the_mean_of_bounds_is_the_bound_of_an_evaluation(published, pipe):
    documents = list(published.data.validation)
    fit = [number for number, one in enumerate(documents) if len(one) <= LENGTH]
    texts = [
        pipe.model.tokenizer.decode(pipe.model.document(documents[number].tolist()))
        for number in fit
    ]
    mine = [one.nats for one in pipe.score(texts, draws=64)]
    x = torch.full((len(fit), LENGTH), published.data.fill_id)
    for row, number in zip(x, fit, strict=True):
        row[: len(documents[number])] = torch.from_numpy(documents[number].astype("int64"))
    mask = torch.arange(LENGTH) < torch.tensor([len(documents[n]) for n in fit])[:, None]
    totals = []
    saved = pipe.model
    for number in range(64):
        noise = dd.KeyedGenerator(0, number, torch.arange(len(fit)))
        with torch.no_grad():
            bound = dd.bound(
                saved.process, saved.denoiser, x, noise, parameterization="posterior", mask=mask
            )
        totals.append(float((bound.total * mask).sum()))
    theirs = torch.tensor(totals)
    error = math.sqrt(
        sum(one.standard_error**2 for one in mine) + float(theirs.var()) / len(theirs)
    )
    assert abs(sum(one.value for one in mine) - float(theirs.mean())) < 4 * error


def test_texts_that_do_not_fit_are_refused_by_name(pipe):
    with pytest.raises(ValueError, match=r"texts: .* tokens with its special ones, must have"):
        pipe.score(["No.", "We will build roads. " * 20])
    with pytest.raises(ValueError, match="draws=0: must be at least 1"):
        pipe.score("No.", draws=0)
    with pytest.raises(ValueError, match="likelihood='ancestral': "):
        pipe.score("No.", likelihood="ancestral")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            dict(max_new_token=3),
            "max_new_token=3: is not an option of a text; did you mean max_new",
        ),
        (dict(temprature=1.0), r"temprature=1.0: .*; did you mean temperature\?"),
        (dict(max_new_tokens=3, max_length=9), "max_new_tokens=3: not with max_length=9"),
        (dict(num_return_sequences=0), "num_return_sequences=0: must be at least 1"),
        (dict(seed=-1), "seed=-1: must be at least 0"),
        (dict(max_length=LENGTH + 1), f"length={LENGTH + 1}: must be at most {LENGTH}"),
        (dict(label="3"), "label='3': .* was trained without labels"),
        (
            dict(min_tokens=LENGTH + 1),
            f"min_tokens={LENGTH + 1}: must be at most {LENGTH}, the",
        ),
        (dict(steps="many"), "^steps: Input should be a valid integer.*, got 'many'"),
        (dict(temperature=(1.0, 0.5, 0.2)), "^temperature: .* valid number or .*at most 2 items"),
        (dict(end="never"), "^end: Input should be 'free' or 'last', got 'never'"),
        (dict(forbidden=" the"), "^forbidden: Input should be a valid tuple, got ' the'"),
        (dict(spacing=None), "^spacing: Input should be 'time' or 'jumps', got None"),
        (dict(max_new_tokens=True), "^max_new_tokens: Input should not be a boolean, got True"),
        (dict(stop_strings=["a", None]), "^stop_strings: Input should be a valid string"),
        (dict(json_schema=[]), "^json_schema: .*valid string.*, got "),
        (dict(each=3), "^each: Input should be .*Sequence, got 3"),
        (dict(each=[3]), "^each: Input should be a valid dictionary, got "),
        (dict(sampling=None), "^sampling: Input should be .*Sampling, got None"),
    ],
)
def test_wrong_options_are_refused(pipe, options, message):
    with pytest.raises(ValueError, match=message):
        pipe.generate("We", **options)


def test_options_have_the_types_that_they_state(pipe):
    """A list as a tuple, and numbers of numpy."""
    ways = dict(steps=np.int64(2), forbidden=[" the"], temperature=[1.0, 0.5])
    texts = pipe.generate("We", **ways)
    same = dict(steps=2, forbidden=(" the",), temperature=(1.0, 0.5))
    assert texts == pipe.generate("We", **same)


@pytest.mark.parametrize("prompts", [3, {"role": "user"}, {"We"}])
def test_what_is_no_list_of_texts_is_refused(pipe, prompts):
    for call in (pipe.generate, pipe.stream, pipe.chat, pipe.infill, pipe.score):
        with pytest.raises(TypeError, match=r"^prompts: .* must be a text, a list of messages or"):
            call(prompts)


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([3], {}, "^texts: 3 must be a text"),
        (None, {}, "^texts: None must be a text"),
        ("We [MASK]", {}, "^texts: .MASK. is a gap, must be a whole text; infill fills gaps"),
        ("We \udcff", {}, "^texts='We .*': must be text in UTF-8"),
        ("We", dict(draws=2.5), "^draws: Input should be a valid integer"),
        ("We", dict(seed=None), "^seed: Input should be a valid integer, got None"),
        ("We", dict(likelihood=3), "^likelihood: Input should be a valid string, got 3"),
        ("We", dict(unknown="maybe"), "^unknown: Input should be a valid boolean"),
    ],
)
def test_wrong_texts_and_options_of_scores_are_refused(pipe, texts, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        pipe.score(texts, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(precision="float64"), "^precision: Input should be 'float32' or 'bfloat16'"),
        (dict(batch_size=2.5), "^batch_size: Input should be a valid integer"),
        (dict(trust="module"), "^trust: Input should be a valid tuple, got 'module'"),
        (dict(block_size="x"), "^block_size: Input should be a valid integer"),
        (dict(device="nowhere"), "^device='nowhere': Expected one of cpu, cuda"),
        (dict(model=3), "^model: Input should be a valid string"),
    ],
)
def test_wrong_options_of_loading_are_refused(published, options, message):
    with pytest.raises(ValueError, match=message):
        recipes.pipeline(**{"model": published.run, "device": "cpu"} | options)


def test_a_pipeline_takes_the_options_of_loading(published):
    with pytest.raises(ValueError, match=r"^pipeline: revison: no such key; did you mean revision"):
        recipes.pipeline(published.run, revison="main")
    with pytest.raises(FileNotFoundError, match="no folder runs/a/b"):
        recipes.pipeline("runs/a/b")
    with pytest.raises(ValueError, match="batch_size=0"):
        recipes.pipeline(published.run, batch_size=0)
    assert isinstance(recipes.pipeline(published.run), Pipeline)
    with pytest.raises(AttributeError, match="module 'recipes' has no attribute 'pipelin'"):
        recipes.pipelin  # noqa: B018


def test_an_evaluation_draws_as_a_pipeline_does(published, pipe):
    """The samples that an evaluation scores are those of its numbers."""
    drawn = draw_samples(pipe.model, Sampling(steps=3), 5, LENGTH, 2, 7, alone())
    texts = pipe.generate(None, num_return_sequences=5, seed=7, steps=3)
    assert drawn == [list(one.tokens) for one in texts]


REFUSED = {
    "messages without a template": (
        lambda pipe: pipe.chat([{"role": "user", "content": "Who?"}]),
        "chat: the tokenizer of .* has no chat template",
    ),
    "an order of masks in uniform noise": (
        lambda pipe: pipe.generate("We", sampler="first_hitting"),
        "sampler='first_hitting': ",
    ),
    "a text that is several tokens": (
        lambda pipe: pipe.generate("We", forbidden=("of our union",)),
        r"forbidden='of our union': is \d+ tokens, must be a single token",
    ),
    "an order without a likelihood": (
        lambda pipe: pipe.score("We", likelihood="ancestral"),
        "likelihood='ancestral': ",
    ),
    "gaps in uniform noise": (
        lambda pipe: pipe.infill("We [MASK]"),
        r"prompt: has gaps, but Uniform\(.*\) has no mask for them",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_files_show_is_refused_before_the_network_is_loaded(case, tmp_path, monkeypatch):
    name = "uniform" if "uniform" in case else "masks"
    pipe = recipes.pipeline(publish_tiny(name, tmp_path).run, device="cpu")
    monkeypatch.setattr(
        "recipes.model_io.opening.load_network", lambda *_: pytest.fail("the network was loaded")
    )
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call(pipe)
    with pytest.raises(pytest.fail.Exception, match="the network was loaded"):
        pipe.generate(None)


def test_weights_of_the_hub_are_downloaded_once_a_request_is_possible(tmp_path, monkeypatch):
    """A folder without weights stands for the first download."""
    whole = write(tmp_path / "whole", "modernbert", chat=False)
    small = shutil.copytree(
        whole, tmp_path / "small", ignore=shutil.ignore_patterns("*.safetensors")
    )
    calls = []

    def download(name, revision, ignore_patterns):
        calls.append("*.safetensors" in ignore_patterns)
        if not calls[-1]:
            shutil.copytree(whole, small, dirs_exist_ok=True)
        return str(small)

    monkeypatch.setattr("recipes.model_io.opening.snapshot_download", download)
    pipe = recipes.pipeline("them/theirs", device="cpu")
    with pytest.raises(ValueError, match="chat: the tokenizer of them/theirs has no chat template"):
        pipe.chat([{"role": "user", "content": "Who?"}])
    assert calls == [True]
    one = pipe.generate("We will", max_new_tokens=4, steps=2)[0]
    assert calls == [True, False] and one.text.startswith("We will")


def test_rules_and_constraints_are_those_of_the_command(published, pipe, tmp_path):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(schema), encoding="utf-8")
    sampling = dict(steps=LENGTH, sampler="left_to_right")
    cases = {
        "length": (dict(length="auto:max=20"), dict(max_length="auto:max=20"), {"steps": 4}),
        "regex": (dict(regex=" [a-z]{2,4}"), dict(regex=" [a-z]{2,4}"), sampling),
        "schema": (dict(json_schema=file), dict(json_schema=schema), sampling),
    }
    for flags, options, ways in cases.values():
        texts = generate(
            Options(
                run=str(published.run), prompt="We", samples=3, sampling=Sampling(**ways), **flags
            ),
            quiet(),
        )
        mine = pipe.generate("We", num_return_sequences=3, **options, **ways)
        assert [one.text for one in mine] == texts
    assert all(json.loads(one.text.removeprefix("We"))["a"] in (1, 2) for one in mine)
    assert [one.text for one in pipe.generate("We", json_schema=str(file), **sampling)] == texts[:1]
    with pytest.raises(ValueError, match="regex='a': not with json_schema"):
        pipe.generate("We", regex="a", json_schema=schema)


EACH = [
    {"seed": 3, "steps": 2},
    {"temperature": 0.5, "sampler": "confidence", "num_return_sequences": 2},
    {"regex": "[a-z ]{4,8}\\.", "sampler": "left_to_right", "steps": 24},
    {"steps": 5, "top_p": 0.8, "end": "last"},
]


def test_prompts_with_options_of_their_own_have_the_texts_of_each_alone(pipe):
    prompts = ["The state of", "We", None, "The [MASK:3] of our[MASK]"]
    with network_calls(pipe.model.model) as calls:
        several = pipe.generate(prompts, each=EACH, steps=4)
    alone = [
        replace(one, prompt=place)
        for place, (prompt, own) in enumerate(zip(prompts, EACH, strict=True))
        for one in pipe.generate(prompt, **{"steps": 4, **own})
    ]
    assert several == alone
    assert pipe.generate(prompts[:2], each=EACH[:2], steps=4, top_k=9) != several[:3]
    drafts = list(pipe.stream(prompts, each=EACH, steps=4))
    results = [one.result for one in drafts if one.result is not None]
    assert sorted(results, key=lambda one: (one.prompt, one.number)) == several
    for one in several:
        mine = [
            draft for draft in drafts if (draft.prompt, draft.number) == (one.prompt, one.number)
        ]
        assert mine[0].time == 1 and mine[-1].text == one.text
    stream = pipe.stream(prompts, each=EACH, steps=40)
    next(stream)
    stream.close()
    assert calls.sequences > 0
    with pytest.raises(ValueError, match="each: holds 2 options, must be 4"):
        pipe.generate(prompts, each=EACH[:2])
    with pytest.raises(ValueError, match="stepz=3: is not an option of a text; did you mean steps"):
        pipe.generate("We", each=[{"stepz": 3}])


@pytest.mark.parametrize("block", [0, 4])
def test_caches_of_a_third_party_model_are_joined(block, tmp_path, monkeypatch):
    """With blocks its exact cache, without an approximate one, in rows of unlike lengths."""
    folder = write(tmp_path / "a2d", "a2d")
    pipe = recipes.pipeline(folder, device="cpu", block_size=block)
    ways = dict(max_new_tokens=8, steps=3, sampler="confidence", pace="blocks:4")
    ways |= {} if block else {"keep": "dual"}
    prompts = ["We will", "The state of our union is strong", "No"]
    own = [{"seed": 1}, {"temperature": 0.5}, {"steps": 4}]
    pairs = zip(prompts, own, strict=True)
    alone = [pipe.generate(prompt, **{**ways, **one})[0] for prompt, one in pairs]
    sizes = []
    join = CachedHFBackbone.join_caches
    monkeypatch.setattr(
        CachedHFBackbone,
        "join_caches",
        lambda self, caches, size: sizes.append(len(caches)) or join(self, caches, size),
    )
    several = pipe.generate(prompts, each=own, **ways)
    assert [replace(one, prompt=0) for one in several] == alone
    assert max(sizes) > 1
