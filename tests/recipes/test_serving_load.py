"""The server under load: two hundred requests, sixteen at once, of which a fifth leaves early."""

import asyncio
import gc
import itertools
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from served import serving
from test_serving import SCHEMA, format_of
from zoo.runs import publish_tiny

from recipes.generation.sampling import Sampling
from recipes.serving.engine import Answer, Text

REQUESTS = 200
AT_ONCE = 16
LEAVES = 5
"""One of so many leaves before its answer."""
GROWTH = 16 * 2**20
"""Bytes that the allocator may keep of a load."""
OBJECTS = 2000
"""Objects that Python may keep of one, such as those of the process that is killed."""

PROMPTS = ["The state of", "We", "", "Tonight we celebrate the"]
WAYS = [
    {},
    {"n": 2},
    {"max_tokens": 9, "temperature": 0.5},
    {"stop": ["e", "w "], "n": 3},
    {"extra_body": {"steps": 3}, "top_p": 0.8},
    {"extra_body": {"steps": 11, "top_k": 20}, "echo": True},
]
BODIES = [
    {"prompt": prompt, "seed": seed} | ways
    for seed, (prompt, ways) in enumerate(itertools.product(PROMPTS, WAYS))
]
BODIES.append({"prompt": "We", "seed": 7, "extra_body": {"response_format": format_of(SCHEMA)}})

KILLED = """
import socket, sys, time
body = b'{"model": "run", "prompt": "We", "stream": true, "drafts": true, "steps": 4096}'
head = "POST /v1/completions HTTP/1.1\\r\\nHost: localhost\\r\\n"
head += "Content-Type: application/json\\r\\n"
talk = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
talk.sendall(head.encode() + b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
print(talk.recv(100)[:15].decode(), flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    run = publish_tiny("two layers", tmp_path_factory.mktemp("load")).run
    with serving(run, sampling=Sampling(steps=6)) as served:
        yield served


def plain(answer):
    """What an answer must have in common with another one to the same request."""
    return [(one.text, one.finish_reason) for one in answer.choices], answer.usage.total_tokens


async def ask(client, body, stream):
    """The answer to a request, by a stream or whole."""
    if not stream:
        return plain(await client.completions.create(model="run", **body))
    texts = {}
    reasons = {}
    options = {"include_usage": True}
    chunks = await client.completions.create(
        model="run", stream=True, stream_options=options, **body
    )
    async for chunk in chunks:
        for one in chunk.choices:
            texts[one.index] = texts.get(one.index, "") + one.text
            reasons[one.index] = one.finish_reason or reasons.get(one.index)
    return [(texts[one], reasons[one]) for one in sorted(texts)], chunk.usage.total_tokens


async def leave(client, body, number):
    """Leave before the answer: after some milliseconds, or after the first draft of a stream."""
    if number % 2:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ask(client, body, False), 0.002 * (number % 7))
        return
    more = body.get("extra_body", {}) | {"drafts": True, "steps": 64}
    chunks = await client.completions.create(
        model="run", stream=True, **body | {"extra_body": more}
    )
    async for _ in chunks:
        break
    await chunks.close()


async def load(served, numbers):
    """The answers by number, None of those who left."""
    slots = asyncio.Semaphore(AT_ONCE)
    answers = {}

    async with served.asynchronous() as client:

        async def one(number):
            body = BODIES[number % len(BODIES)]
            async with slots:
                if number % LEAVES == 0:
                    answers[number] = await leave(client, body, number)
                else:
                    answers[number] = await ask(client, body, stream=number % 3 == 0)

        async with asyncio.TaskGroup() as tasks:
            for number in numbers:
                tasks.create_task(one(number))
    return answers


def storm(served, numbers):
    """The answers by number of a load, beside a client that is killed and two that are wrong."""
    port = served.address.rsplit(":", 1)[1]
    command = [sys.executable, "-S", "-c", KILLED, port]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "HTTP/1.1 200 OK\n"
        answers = {}
        loading = threading.Thread(
            target=lambda: answers.update(asyncio.run(load(served, numbers)))
        )
        loading.start()
        malformed = served.post("/v1/completions", b'{"model": "run", ')
        oversized = served.post("/v1/completions", {"model": "run", "prompt": "We. " * 10_000})
        child.kill()
    loading.join()
    served.idle()
    assert malformed.status_code == oversized.status_code == 400
    assert "must be at most 24" in oversized.json()["error"]["message"]
    return answers


def memory():
    """Bytes of this process in memory, without garbage."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def live(*kinds):
    """Number of objects of these classes."""
    return sum(isinstance(one, kinds) for one in gc.get_objects())


def test_every_answer_of_a_load_is_the_one_alone(served):
    before_all = live(Answer, Text)
    alone = {}
    for number, body in enumerate(BODIES):
        alone[number] = plain(served.client.completions.create(model="run", **body))
    half = REQUESTS // 2
    answers = storm(served, range(half))
    before = memory()
    threads = threading.active_count()
    objects = len(gc.get_objects())
    answers |= storm(served, range(half, REQUESTS))

    assert sorted(answers) == list(range(REQUESTS))
    for number, answer in answers.items():
        if number % LEAVES:
            assert answer == alone[number % len(BODIES)], BODIES[number % len(BODIES)]
    assert threading.active_count() <= threads
    assert memory() - before < GROWTH
    assert len(gc.get_objects()) - objects < OBJECTS
    assert live(Answer, Text) <= before_all
    counts = dict(
        re.findall(
            r'^ddlib_requests_ended_total{how="(\w+)"} ([0-9.]+)$',
            served.http.get("/metrics").text,
            re.MULTILINE,
        )
    )
    counts = {how: float(count) for how, count in counts.items()}
    assert counts.keys() == {"done", "cancelled", "refused"}
    stays = len(BODIES) + REQUESTS - REQUESTS // LEAVES
    assert stays <= counts["done"] <= stays + REQUESTS // LEAVES // 2
    assert counts["cancelled"] > REQUESTS // LEAVES // 2 and counts["refused"] == 2


def test_half_of_a_load_shares_network_calls(served):
    """The calls are fewer than those one by one, by the number of requests that share one."""
    calls = []
    batcher = served.engine._batcher
    compute = batcher._outputs
    batcher._outputs = lambda group: calls.append(len(group)) or compute(group)
    try:
        numbers = [number for number in range(60) if number % LEAVES]
        asyncio.run(load(served, numbers))
    finally:
        batcher._outputs = compute
    assert max(calls) > AT_ONCE // 4 and sum(calls) / len(calls) > 2
