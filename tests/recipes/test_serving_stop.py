"""The command of the server when it is stopped: every request gets an answer."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from zoo.runs import publish_tiny


def ask(address, **fields):
    """The status and the body of the answer to a request."""
    body = json.dumps({"model": "run", "prompt": "We"} | fields).encode()
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/v1/completions", body, kind)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def until(address, holds):
    """Wait until the server answers with a state for which something is so."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with suppress(urllib.error.URLError), urllib.request.urlopen(f"{address}/health") as answer:
            if holds(json.load(answer)):
                return
        time.sleep(0.05)
    raise AssertionError("no such state in a minute")


def test_a_stopped_server_answers_the_requests_that_it_does_not_finish(tmp_path):
    run = publish_tiny("two layers", tmp_path).run
    command = [sys.executable, "-m", "recipes.serve", str(run), "--name", "run", "--port", "0"]
    command += ["--steps", "1000000"]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    with child, ThreadPoolExecutor(1) as pool:
        try:
            address = next(line.split()[1] for line in child.stdout if line.startswith("page:"))
            until(address, lambda state: state["status"] == "ok")
            assert ask(address, steps=4)[0] == 200
            slow = pool.submit(ask, address)
            until(address, lambda state: state["requests"])
            child.send_signal(signal.SIGTERM)
            status, answer = slow.result()
        finally:
            child.kill()
    assert status == 503
    assert "the server is stopping" in answer["error"]["message"]
