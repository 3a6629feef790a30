"""The server: OpenAI's client on its routes, what it refuses, and what a stream sends."""

import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import numpy as np
import openai
import pytest
import torch
from pretrained_by_others import write
from served import serving
from zoo.runs import LENGTH, publish_tiny, publishes

import ddlib as dd
import recipes
from ddlib_models import DiT
from recipes.data import prepare_ids
from recipes.generation.sampling import Sampling
from recipes.model_io import LoadOptions, publish
from recipes.serve import KEYS, Options, listen, main, make_server
from recipes.serving.rows import Limits
from recipes.serving.settled import held

ORDERED = Sampling(steps=LENGTH, sampler="left_to_right")
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
QUESTION = [{"role": "user", "content": "Is our union strong?"}]


def format_of(schema):
    """The field for a JSON schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


published = publishes("two layers")


@pytest.fixture(scope="module")
def served(published):
    with serving(published.run) as served:
        yield served


@pytest.fixture(scope="module")
def ordered(published):
    with serving(published.run, sampling=ORDERED) as served:
        yield served


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    run = publish_tiny("blocks", tmp_path_factory.mktemp("blocks")).run
    with serving(run) as served:
        yield served


@pytest.fixture(scope="module")
def speaking(tmp_path_factory):
    folder = write(tmp_path_factory.mktemp("others") / "a2d", "a2d")
    with serving(folder, reading=LoadOptions(block_size=0), fewer=(1, 4)) as served:
        yield served


def joined(stream):
    """The text of each choice of a stream of completions, and its reason to end."""
    texts = {}
    reasons = {}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            if choice.finish_reason is not None:
                reasons[choice.index] = choice.finish_reason
    return texts, reasons


def test_completions_are_those_of_the_pipeline(published, served):
    pipe = recipes.pipeline(published.run, device="cpu")
    prompts = ["The state of", "We"]
    ways = dict(n=2, seed=5, temperature=0.7, top_p=0.9, max_tokens=9)
    answer = served.client.completions.create(
        model="run", prompt=prompts, extra_body={"steps": 4}, **ways
    )
    expected = pipe.generate(
        prompts,
        num_return_sequences=2,
        seed=5,
        temperature=0.7,
        top_p=0.9,
        max_new_tokens=9,
        steps=4,
        return_full_text=False,
    )
    assert [one.text for one in answer.choices] == [one.text for one in expected]
    assert [one.index for one in answer.choices] == [0, 1, 2, 3]
    reasons = {True: "stop", False: "length"}
    assert [one.finish_reason for one in answer.choices] == [reasons[one.ended] for one in expected]
    beginning = len(pipe.model.beginning)
    given = sum(beginning + len(pipe.model.encode(one)) for one in prompts)
    assert answer.usage.prompt_tokens == given
    assert 0 < answer.usage.completion_tokens <= 4 * 9
    assert answer.usage.total_tokens == given + answer.usage.completion_tokens
    echoed = served.text("We", seed=5, max_tokens=9, echo=True, extra_body={"steps": 4})
    alone = pipe.generate("We", seed=5, max_new_tokens=9, steps=4)
    assert echoed[0].text == alone[0].text


def test_a_seed_that_is_drawn_is_told_and_draws_the_text_again(served):
    first, second = (served.client.completions.create(model="run", prompt="We") for _ in range(2))
    assert first.seed != second.seed
    again = served.text("We", seed=first.seed)
    assert again[0].text == first.choices[0].text


def test_gaps_are_filled_in_the_whole_text(published, served):
    one = served.text("The [MASK:3] of our[MASK]", seed=3)[0]
    pipe = recipes.pipeline(published.run, device="cpu")
    expected = pipe.infill("The [MASK:3] of our[MASK]", seed=3, steps=8)[0]
    assert (one.text, tuple(one.fills)) == (expected.text, expected.fills)


def test_models_are_listed(served):
    assert [one.id for one in served.client.models.list()] == ["run"]
    assert served.client.models.retrieve("run").owned_by == "ddlib"
    with pytest.raises(openai.NotFoundError, match="must be 'run'"):
        served.client.models.retrieve("a/b")


def test_chats_are_answered_and_streamed(speaking):
    client = speaking.client.chat.completions
    ways = dict(model="run", messages=QUESTION, max_completion_tokens=6, seed=4)
    whole = client.create(**ways)
    pipe = speaking.engine.pipeline
    expected = pipe.chat(QUESTION, max_new_tokens=6, seed=4, steps=8)[0]
    assert whole.choices[0].message.role == "assistant"
    assert whole.choices[0].message.content == expected.text
    parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
    assert client.create(**ways | {"messages": parts}).choices == whole.choices
    chunks = list(client.create(**ways, stream=True, stream_options={"include_usage": True}))
    deltas = [one.delta for chunk in chunks for one in chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(one.content or "" for one in deltas) == expected.text
    assert chunks[-1].usage == whole.usage and chunks[-1].choices == []
    answered = [*QUESTION, whole.choices[0].message.model_dump(), *QUESTION]
    assert client.create(**ways | {"messages": answered}).choices[0].message.content is not None


def test_a_field_of_a_message_without_effect_is_refused(served):
    messages = [{"role": "assistant", "content": "a", "tool_calls": [{"id": "1"}]}]
    answer = served.post("/v1/chat/completions", {"model": "run", "messages": messages})
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message == 'messages.0.tool_calls=[{"id": "1"}]: is not a field'


def test_a_model_without_a_chat_template_says_so(served):
    with pytest.raises(openai.BadRequestError, match="has no chat template"):
        served.client.chat.completions.create(model="run", messages=QUESTION)


@pytest.mark.parametrize("stops", [None, ["e", "th"]])
@pytest.mark.parametrize("kind", ["served", "ordered", "blocks", "speaking"])
def test_a_stream_joins_to_the_text(kind, stops, request):
    served = request.getfixturevalue(kind)
    for seed in range(3):
        ways = dict(prompt="The state of", n=2, seed=seed, stop=stops, max_tokens=12)
        whole = served.client.completions.create(model="run", **ways).choices
        texts, reasons = joined(served.client.completions.create(model="run", stream=True, **ways))
        assert texts == {one.index: one.text for one in whole}
        assert reasons == {one.index: one.finish_reason for one in whole}


def test_a_stream_sends_tokens_in_order_and_blocks_when_they_are_finished(ordered, blocks):
    """And nothing before all tokens are drawn where any position may be the next."""
    for served, least in ((ordered, LENGTH // 3), (blocks, 3)):
        stream = served.client.completions.create(model="run", prompt="We", seed=1, stream=True)
        parts = [one.text for chunk in stream for one in chunk.choices if one.text]
        assert len(parts) >= least


def test_drafts_are_sent_if_they_are_wanted(served):
    ways = dict(model="run", prompt="We", seed=1, stream=True, max_tokens=10)
    plain = list(served.client.completions.create(**ways))
    assert not any(hasattr(one, "draft") for chunk in plain for one in chunk.choices)
    chunks = list(served.client.completions.create(**ways, extra_body={"drafts": True}))
    drafts = [chunk.choices[0] for chunk in chunks if hasattr(chunk.choices[0], "draft")]
    assert all(one.text == "" and one.finish_reason is None for one in drafts)
    times = [one.time for one in drafts]
    assert len(times) > 1 and times == sorted(times, reverse=True)
    assert all(one.draft.startswith("We") for one in drafts) and "_" in drafts[0].draft
    assert joined(chunks) == joined(plain)
    body = dict(model="run", prompt="We", stream=True, drafts=True)
    events = served.post("/v1/completions", body).text.split("\n\n")
    assert events[0].startswith("event: draft\ndata: {") and events[-2] == "data: [DONE]"


def test_log_probabilities_are_exact_in_order_and_refused_elsewhere(ordered, served):
    saved = ordered.engine.pipeline.model
    prompt = "The state of"
    ways = dict(seed=4, temperature=0.5)
    answer = ordered.client.completions.create(model="run", prompt=prompt, logprobs=2, **ways)
    likely = answer.choices[0].logprobs
    one = ordered.engine.pipeline.generate(
        prompt, steps=ORDERED.steps, sampler=ORDERED.sampler, **ways
    )[0]
    first = len(saved.beginning) + len(saved.encode(prompt))
    count = answer.usage.completion_tokens
    assert not one.ended and len(likely.token_logprobs) == count == LENGTH - first
    expected = dd.likelihood(
        saved.process,
        saved.denoiser,
        torch.tensor([one.tokens]),
        dd.samplers.LeftToRight(),
        given=torch.arange(LENGTH)[None] < first,
        parameterization=saved.parameterization,
    )
    total = pytest.approx(float(expected.log_likelihood), rel=1e-5)
    assert sum(likely.token_logprobs) == total
    assert "".join(likely.tokens) == answer.choices[0].text or "\ufffd" in answer.choices[0].text
    assert all(len(top) <= 2 for top in likely.top_logprobs)
    for top, nats in zip(likely.top_logprobs, likely.token_logprobs, strict=True):
        assert max(top.values()) >= nats - 1e-9
    with pytest.raises(openai.BadRequestError, match="logprobs: the sampler of this server is Anc"):
        served.text("We", logprobs=0)
    for refused in ({"max_tokens": 9, "extra_body": {"steps": 3}}, {"prompt": "We [MASK:2] are"}):
        with pytest.raises(openai.BadRequestError, match="logprobs: "):
            ordered.client.completions.create(
                **{"model": "run", "prompt": "We", "logprobs": 0} | refused
            )


def test_log_probabilities_are_in_the_last_chunk_of_a_stream(ordered):
    ways = dict(model="run", prompt="We", seed=2, logprobs=1, max_tokens=5)
    whole = ordered.client.completions.create(**ways).choices[0]
    chunks = list(ordered.client.completions.create(**ways, stream=True))
    assert joined(chunks)[0][0] == whole.text
    assert chunks[-1].choices[0].logprobs == whole.logprobs


def test_a_schema_holds(ordered):
    answer = ordered.client.completions.create(
        model="run", prompt="We", seed=1, n=3, extra_body={"response_format": format_of(SCHEMA)}
    )
    assert all(json.loads(one.text)["a"] in (1, 2) for one in answer.choices)


WRONG = {
    "temperature": (3, "temperature=3: must be less than or equal to 2"),
    "top_p": (0, "top_p=0: must be greater than 0"),
    "n": ("4", 'n="4": must be an integer'),
    "seed": (-1, "seed=-1: must be greater than or equal to 0"),
    "stream": (1, "stream=1: must be a boolean"),
    "max_tokens": (4000, "max_tokens=4000: .* and run supports 24"),
    "stop": (["a"] * 5, "stop=.*: must have at most 4 items"),
    "prompt": ([1, 2], "prompt.0=1: must be a text"),
    "logprobs": (4, "logprobs=4: must be less than or equal to 3"),
    "tools": ([{}], r"tools=\[\{\}\]: is not supported, must be null or \[\], or left out"),
    "frequency_penalty": (1, "frequency_penalty=1: is not supported, must be null or 0"),
    "steps": (10**6, "steps=1000000: must be less than or equal to 4096"),
    "temprature": (1, "temprature=1: is not a field of this route; did you mean temperature"),
    "sampler": ("os:system", 'sampler="os:system": is not a field of this route'),
    "json_schema": ("/etc/passwd", "json_schema=.*: is not a field of this route"),
    "stream_options": ({"include_usage": True}, "stream_options: must be left out without stream"),
    "drafts": (True, "drafts=true: must be left out without stream"),
    "response_format": (format_of("/etc/passwd"), "schema=.*: must be an object of JSON"),
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_field_is_refused_with_its_value_and_the_rule(served, field):
    value, message = WRONG[field]
    fields = {"model": "run", "prompt": "We"} | {field: value}
    answer = served.post("/v1/completions", fields)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"] == field and error["type"] == "invalid_request_error"
    assert re.search(message, error["message"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"frequency_penalty": False}, "frequency_penalty=false: .* must be null or 0, or left"),
        ({"store": 0}, "store=0: is not supported, must be null or false, or left out"),
        ({"n": 17}, r"n=17: makes 17 texts of 1 prompt\(s\), must make at most 16"),
        ({"prompt": "We [MASK:0]"}, r"prompt: \[MASK:0\] has no token"),
        ({"prompt": "We [MASK:999999999]"}, "prompt: 999999999 tokens .* must be at most 24"),
        ({"prompt": f"We [MASK:{'9' * 30}]"}, "would be read as text; did you mean"),
        ({"prompt": "We [MASK:-1]"}, r"\[MASK:-1\] would be read as text; did you mean"),
        ({"prompt": "We [MASK:\u0663]"}, "would be read as text; did you mean"),
        (
            {"stream": True, "stream_options": {"usage": True}},
            "stream_options.usage=true: is not a field",
        ),
        (
            {"response_format": {"type": "text", "schema": 1}},
            "response_format.schema=1: is not a field",
        ),
        ({"response_format": "json"}, 'response_format="json": must be an object of JSON$'),
        ({"prompt": "We [MASK]", "stop": "a"}, 'stop="a": not with gaps in a prompt'),
        ({"prompt": ["We [MASK]", "We"]}, "prompt: must have gaps in all of its texts"),
        ({"prompt": "\ud800"}, "prompt=.*: must be text in UTF-8"),
        ({"prompt": "We will build. " * 30}, "prompt: .* must be at most 24"),
        ({"response_format": {"type": "json_schema"}}, 'type="json_schema": must be json_schema'),
        (
            {"response_format": format_of({"type": "string", "pattern": "(a|b)*a(a|b){24}"})},
            "response_format: the automaton of the schema is too large",
        ),
        ({"response_format": format_of({"enum": ["a" * 20_000]})}, "the schema has 2.* characters"),
        ({"response_format": format_of({"type": "strong"})}, "response_format: "),
        ({"response_format": format_of({"$ref": "file:///etc/passwd"})}, "Invalid reference path"),
    ],
)
def test_what_does_not_go_together_is_refused(served, fields, message):
    answer = served.post("/v1/completions", {"model": "run"} | fields)
    assert answer.status_code == 400
    assert re.search(message, answer.json()["error"]["message"])


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "the body must be JSON"),
        (b"[1]", 400, "the body must be an object of JSON"),
        (b'{"model": "run", "temperature": NaN}', 400, "NaN is not a value of JSON"),
        (b'{"model": "run", "n": 1, "n": 2}', 400, 'an object has "n" twice'),
        (b'{"model": "run", "seed": ' + b"1" * 5000 + b"}", 400, "an integer has 5000 characters"),
        (b"[" * 100_000, 400, "the body must be JSON"),
        (b'"' + b"a" * 2**20 + b'"', 413, "the body has more than 1048576 bytes"),
        (b'{"model": "another"}', 404, "model='another': must be 'run'"),
        (b"{}", 400, "model: must be given"),
    ],
)
def test_a_body_that_is_none_is_refused(served, body, status, message):
    answer = served.post("/v1/completions", body)
    assert answer.status_code == status and message in answer.json()["error"]["message"]


def test_other_sites_and_other_paths_are_refused(served):
    plain = {"Content-Type": "text/plain"}
    answer = served.http.post("/v1/completions", content=b'{"model": "run"}', headers=plain)
    assert answer.status_code == 415
    assert served.http.get("/health", headers={"Host": "evil.example"}).status_code == 421
    for method, path, status in (("GET", "/v1/engines", 404), ("GET", "/v1/completions", 405)):
        answer = served.http.request(method, path)
        assert answer.status_code == status and answer.json()["error"]["code"] == "unknown_url"
    assert served.http.get("/health").json() == {"status": "ok", "model": "run", "requests": 0}


def test_keys_lock_all_but_the_page_and_the_health(published):
    with serving(published.run, key="secret") as served:
        open_routes = ("/", "/health")
        for path in (*open_routes, "/metrics", "/v1/models"):
            for key in ("Bearer wrong", ""):
                answer = served.http.get(path, headers={"Authorization": key})
                assert answer.status_code == (200 if path in open_routes else 401)
        answer = served.post("/film", {"model": "run"}, Authorization="Bearer wrong")
        assert answer.status_code == 401 and "secret" not in answer.text
        assert served.http.get("/v1/models").status_code == 200


class Held:
    """A network that waits before it computes, until it is let go."""

    def __init__(self, served, monkeypatch):
        self.free = threading.Event()
        self.calls = 0
        batcher = served.engine._batcher
        compute = batcher._outputs

        def wait(calls):
            self.calls += 1
            self.free.wait(60)
            return compute(calls)

        monkeypatch.setattr(batcher, "_outputs", wait)


def test_a_full_queue_gets_429_and_a_time_to_try_again(published, monkeypatch):
    with serving(published.run, limits=Limits(rows=1, waiting=1)) as served:
        network = Held(served, monkeypatch)
        answers = []
        body = {"model": "run", "prompt": "We", "seed": 1}
        threads = [
            threading.Thread(target=lambda: answers.append(served.post("/v1/completions", body)))
            for _ in range(2)
        ]
        threads[0].start()
        served.until(lambda: network.calls == 1)
        threads[1].start()
        served.until(lambda: served.engine.waiting == 1)
        refused = served.post("/v1/completions", body)
        assert refused.status_code == 429 and 1 <= int(refused.headers["Retry-After"]) <= 60
        assert refused.json()["error"]["type"] == "rate_limit_error"
        gauges = served.http.get("/metrics").text
        assert "ddlib_requests_waiting 1.0" in gauges and "ddlib_rows_in_use 1.0" in gauges
        network.free.set()
        for thread in threads:
            thread.join()
        assert [one.status_code for one in answers] == [200, 200]
        assert answers[0].json()["choices"] == answers[1].json()["choices"]
        served.idle()


def test_a_request_that_takes_too_long_gets_504_and_frees_its_rows(published, monkeypatch):
    with serving(published.run, limits=Limits(rows=1, seconds=0.5)) as served:
        network = Held(served, monkeypatch)
        for stream in (False, True):
            answer = served.post("/v1/completions", {"model": "run", "stream": stream})
            if answer.status_code == 200:  # the first draft was there in time
                assert '"type": "timeout"' in answer.text
            else:
                assert answer.status_code == 504
                assert answer.headers["x-should-retry"] == "false"
        network.free.set()
        served.idle()
        served.until(lambda: served.post("/v1/completions", {"model": "run"}).status_code == 200)


def test_a_client_that_leaves_frees_its_rows(served, monkeypatch):
    """At the end of the network's call; the next one has none of its rows."""
    url = urlsplit(served.address)
    for stream in (False, True):
        with monkeypatch.context() as patch:
            network = Held(served, patch)
            with socket.create_connection((url.hostname, url.port)) as talk:
                body = json.dumps({"model": "run", "prompt": "We", "stream": stream})
                head = (
                    "POST /v1/completions HTTP/1.1",
                    "Host: localhost",
                    "Content-Type: application/json",
                    f"Content-Length: {len(body)}",
                )
                talk.sendall("\r\n".join((*head, "", body)).encode())
                served.until(lambda network=network: network.calls == 1)
            served.until(lambda: all(one._cancelled for one in served.engine._threads))
            network.free.set()
            served.idle()
            assert network.calls == 1


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_model_out_of_memory_answers_503_and_lives_on(served, monkeypatch, error):
    before = served.text("We", seed=1)
    with monkeypatch.context() as patch:

        def fail(calls):
            raise error

        patch.setattr(served.engine._batcher, "_outputs", fail)
        answer = served.post("/v1/completions", {"model": "run", "prompt": "We"})
        assert answer.status_code == 503 and int(answer.headers["Retry-After"]) > 0
        assert "memory" in answer.json()["error"]["message"]
    served.idle()
    assert served.text("We", seed=1) == before


def test_a_failure_is_told_without_its_reason(served, monkeypatch, caplog):
    def fail(calls):
        raise RuntimeError("the secret of /root")

    with monkeypatch.context() as patch:
        patch.setattr(served.engine._batcher, "_outputs", fail)
        with pytest.raises(openai.InternalServerError) as raised:
            served.text("We")
    assert "secret" not in str(raised.value) and "the secret of /root" in caplog.text
    served.idle()


def test_metrics_count_texts_and_tokens(published):
    with serving(published.run) as served:
        answer = served.client.completions.create(model="run", prompt="We", n=2, max_tokens=5)
        served.idle()
        lines = served.http.get("/metrics")
        assert lines.headers["content-type"].startswith("text/plain; version=0.0.4")
        values = dict(
            line.rsplit(" ", 1) for line in lines.text.splitlines() if not line.startswith("#")
        )
    assert float(values["ddlib_texts_total"]) == 2
    drawn = answer.usage.completion_tokens
    assert float(values['ddlib_tokens_total{kind="text"}']) == drawn
    assert float(values['ddlib_answers_total{route="/v1/completions",status="200"}']) == 1
    assert float(values["ddlib_request_seconds_count"]) == 1


def test_what_cannot_be_served_is_refused_at_start(published, tmp_path, capsys):
    with pytest.raises(ValueError, match=r"host='0.0.0.0': other machines can reach it, so DDLIB_"):
        listen("0.0.0.0", 0, [])
    for wrong, message in (
        (dict(fewer=(16,)), r"fewer=\(16,\): must be 1 to 15"),
        (dict(port=-1), "port=-1: must be 0 to 65535"),
        (dict(sampling=Sampling(label="3")), "label='3': is not supported"),
    ):
        with pytest.raises(ValueError, match=message):
            Options(run="a", **wrong)
    for wrong, message in (
        (dict(rows=0), "rows=0: must be at least 1"),
        (dict(seconds=0.0), "seconds=0.0: must be a positive"),
    ):
        with pytest.raises(ValueError, match=message):
            Limits(**wrong)
    run = str(publish_tiny("uniform", tmp_path).run)
    for wrong, message in (
        (dict(device="nonsense"), "device='nonsense': "),
        (dict(sampling=Sampling(sampler="first_hitting")), "sampler='first_hitting'"),
        (dict(sampling=Sampling(keep="prefix")), "keep='prefix'"),
    ):
        with pytest.raises(ValueError, match=message):
            make_server(Options(run=run, **wrong))
    with pytest.raises(SystemExit, match=r"error: .*runs/none"):
        main(["runs/none", "--port", "0"])
    assert KEYS == "DDLIB_KEYS"


@pytest.mark.parametrize(
    ("text", "stops", "size"),
    [("abc", ["cd", "bcd"], 2), ("abc", "xyz", 0), ("aaa", ["aab"], 2), ("a", [], 0)],
)
def test_the_beginning_of_a_stop_string_is_held(text, stops, size):
    assert held(text, stops) == size


def test_prompts_of_several_lengths_are_answered(speaking):
    prompts = ["The state of our union", "We", "No.", ""]
    together = speaking.text(prompts, seed=1, max_tokens=7)
    alone = [speaking.text(one, seed=1, max_tokens=7)[0].text for one in prompts]
    assert [one.text for one in together] == alone


def test_a_network_with_a_cache_answers_in_company_as_alone(tmp_path):
    """Block by block: what a stream sends is then whole blocks."""
    folder = write(tmp_path / "a2d", "a2d")
    ways = [
        dict(prompt=prompt, seed=seed, max_tokens=24)
        for seed, prompt in enumerate(["The state of our union", "We", "No.", "We will"])
    ]
    with serving(folder, reading=LoadOptions(block_size=8), sampling=Sampling(steps=4)) as served:
        alone = [served.text(**one)[0].text for one in ways]
        with ThreadPoolExecutor(len(ways)) as pool:
            company = list(pool.map(lambda one: served.text(**one)[0].text, ways))
        stream = list(served.client.completions.create(model="run", stream=True, **ways[0]))
    assert company == alone
    assert joined(stream)[0] == {0: alone[0]}
    assert sum(bool(chunk.choices[0].text) for chunk in stream) > 1


def test_pictures_are_not_served(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 4, (40, 2, 3))
    prepare_ids(pixels, 8, 4, tmp_path / "data", shape=(2, 3), values=range(4))
    network = DiT(5, 4, dim=16, depth=1, heads=2, cond_dim=8)
    publish(tmp_path / "run", network, dd.presets.mdlm(4), tmp_path / "data")
    with pytest.raises(ValueError, match="draws pictures, must be a model of texts or of symbols"):
        make_server(Options(run=str(tmp_path / "run")))
