"""The page of the server in a browser: a text as it denoises, step by step."""

import re
import time

import pytest
from browser import CHROMIUM, Browser
from served import serving
from zoo.runs import publish_tiny

from recipes.generation.sampling import Sampling

pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium on the path: apt-get install chromium"
    ),
]
STEPS = 12
DONE = "document.getElementById('form').dataset.state === 'done'"
WHEN = "document.getElementById('when').textContent"
TEXT = "document.getElementById('text').textContent"
PROBLEM = "document.getElementById('problem').textContent"


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    run = publish_tiny("clusters", folder / "run").run
    with (
        serving(run, key="secret", sampling=Sampling(steps=STEPS)) as served,
        Browser(folder / "profile") as browser,
    ):
        yield browser, served


@pytest.fixture
def browser(opened):
    browser, served = opened
    browser.looks("light")
    browser.open("about:blank")
    browser.open(served.address)
    return browser


def fill(browser, **fields):
    """Type values into the form."""
    for name, value in fields.items():
        browser.run(f"(document.getElementById('{name}').value = {value!r}, 0)")


def test_a_text_is_shown_while_it_is_drawn_and_afterwards(browser, opened, monkeypatch, tmp_path):
    _, served = opened
    batcher = served.engine._batcher
    compute = batcher._outputs
    monkeypatch.setattr(batcher, "_outputs", lambda calls: time.sleep(0.03) or compute(calls))
    fill(browser, prompt="The state of", key="secret", seed="3")
    browser.run(
        f"(window.seen = [], new MutationObserver(() => seen.push({WHEN}))"
        f".observe(document.getElementById('when'), {{childList: true, characterData: true,"
        " subtree: true}), 0)"
    )
    browser.click("#draw")
    browser.until(DONE)
    assert browser.run(PROBLEM) == ""
    seen = browser.run("seen")
    steps = [int(one.split()[1]) for one in seen if one.startswith("step")]
    assert steps == sorted(steps) and len(set(steps)) > STEPS // 2
    text = served.text("The state of", seed=3, echo=True)[0].text
    browser.shot(tmp_path / "page.png")
    shown = browser.run(
        "[...document.querySelectorAll('#text .p:not(.special):not([hidden])')]"
        ".map(one => one.textContent).join('').replaceAll('¶', '')"
    )
    readable = [one for one in text if one.isprintable() and one not in " \ufffd"]
    assert len(readable) > len("Thestateof") and set(readable) <= set(shown)
    assert re.match(r"step (\d+) of \1 · t = 0.000", browser.run(WHEN))
    browser.key("Home")
    assert browser.run(WHEN).startswith("step 0") and "_" in browser.run(TEXT)
    browser.click("#text .given")
    assert "given by the prompt" in browser.run("document.getElementById('detail').textContent")
    assert browser.wrong() == []
    assert all(
        one.startswith(served.address) or one.startswith("data:") for one in browser.requests()
    )


def test_what_is_refused_is_shown(browser):
    fill(browser, prompt="We [MASK:0]")
    browser.click("#draw")
    browser.until(DONE)
    assert "must be Bearer with a key of this server" in browser.run(PROBLEM)
    fill(browser, key="secret")
    browser.click("#draw")
    browser.until(f"{DONE} && {PROBLEM}.includes('[MASK:0]')")
    assert browser.run("document.getElementById('chatting').hidden")


def test_a_text_can_be_stopped(browser, opened):
    _, served = opened
    fill(browser, key="secret", steps="4000")
    browser.click("#draw")
    browser.until(f"{WHEN}.startsWith('step 3')")
    browser.click("#cancel")
    browser.until(DONE)
    served.idle()
    assert browser.run(PROBLEM) == ""


def test_spaces_are_typed_into_the_prompt(browser):
    browser.run("(document.getElementById('prompt').focus(), 0)")
    for letter in "a b":
        browser.call("Input.dispatchKeyEvent", type="keyDown", key=letter, text=letter)
        browser.call("Input.dispatchKeyEvent", type="keyUp", key=letter)
    assert browser.run("document.getElementById('prompt').value") == "a b"


def test_nothing_is_covered_in_a_low_window(browser):
    browser.looks("light", height=420)
    fill(browser, prompt="The state of", key="secret", seed="3")
    browser.click("#draw")
    browser.until(DONE)
    for name in ("controls", "detail"):
        shown = f"getComputedStyle(document.getElementById('{name}')).position"
        assert browser.run(shown) == "static"
    browser.looks("light")
    assert browser.run(shown) == "sticky"
