"""The page in a browser: opened from disk, its slider, its keys, its colours."""

import json
import re

import pytest
import torch
from browser import CHROMIUM, Browser
from test_film_page import EVIL

import ddlib as dd
from ddlib.contrib import Filmed
from recipes.visualization.page import Spelt, pack, page

pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium on the path: apt-get install chromium"
    ),
]
PROCESS = dd.presets.hdlm_levels([[i // 2 for i in range(12)], [0, 0, 0, 1, 1, 1]])
LENGTH = 24
STEPS = 20
WHEN = "document.getElementById('when').textContent"
NAMES = [
    EVIL,
    *["the", "of", "people", "state", "union", "we", "must", "build", "roads", "and", "pay"],
]


@pytest.fixture(scope="module")
def film():
    """Two texts of a remasking sampler, and the data of the page."""
    logits = torch.randn(LENGTH, 12, generator=torch.Generator().manual_seed(0))
    filmed = Filmed(dd.samplers.Remask(0.3), 2)
    prompt = torch.full((LENGTH,), PROCESS.num_states - 1)
    prompt[1] = 4
    texts = filmed.end(
        dd.sample(
            PROCESS,
            lambda z, t: logits.expand(len(z), -1, -1),
            (2, LENGTH),
            filmed,
            STEPS,
            prompt,
            generator=torch.Generator().manual_seed(0),
            on_step=filmed.on_step,
        )
    )

    def spell(state):
        if state < 12:
            return Spelt(f" {NAMES[state]}", state == 11)
        return Spelt(f"‹c{state - 12}›" if state < PROCESS.num_states - 1 else "_")

    return texts, pack(texts, [LENGTH - 4, LENGTH], PROCESS, spell)


@pytest.fixture(scope="module")
def opened(film, tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    where = folder / "page.html"
    where.write_text(
        page(EVIL, {"sampler": "remask:eta=0.3", "prompt": EVIL}, film[1]), encoding="utf-8"
    )
    with Browser(folder / "profile") as browser:
        yield browser, where.as_uri()


@pytest.fixture
def browser(opened):
    browser, address = opened
    browser.looks("light")
    browser.open("about:blank")
    browser.open(address)
    yield browser
    assert browser.wrong() == []
    assert [
        url for url in browser.requests() if url != address and not url.startswith("data:")
    ] == []


def shown(browser):
    """Step, time, calls; what stands at each position; how it is marked."""
    heading = re.match(
        r"step (\d+) of (\d+) · t = ([\d.]+) · (\d+) network calls?", browser.run(WHEN)
    )
    spans = browser.run(
        "[...document.querySelectorAll('#text span')].map(s => [s.textContent, s.className])"
    )
    return (
        [float(one) for one in heading.groups()],
        [text for text, _ in spans],
        [kinds.split() for _, kinds in spans],
    )


def spelt(film, number, step):
    packed = film[1]
    state = list(packed["texts"][number]["start"])
    for _, _, *events in packed["texts"][number]["frames"][:step]:
        for position, now, *_ in events:
            state[position] = now
    return [packed["states"][one][0].strip() for one in state]


def test_the_page_opens_on_noise_and_escapes_its_content(browser, film):
    numbers, words, kinds = shown(browser)
    assert numbers == [0, STEPS, 1, 0]
    assert words == spelt(film, 0, 0) and words.count("_") == LENGTH - 1
    assert "given" in kinds[1] and "given" not in kinds[0]
    assert browser.run("document.title") == f"{EVIL}: a sequence during denoising"
    assert browser.run("document.scripts.length") == 2
    assert (
        EVIL in browser.run("about.textContent") and browser.run("about.querySelector('b')") is None
    )


def test_the_slider_moves_and_every_step_shows_the_drawn_states(browser, film):
    browser.click("#step", 0.5)
    (step, _, t, calls), words, _ = shown(browser)
    assert 8 <= step <= 12 and words == spelt(film, 0, int(step))
    assert t == pytest.approx(film[0][0].frames[int(step) - 1].t, abs=1e-3) and calls > 0
    script = "(step.value = {}, step.dispatchEvent(new Event('input')), 0)"
    for number in (*range(STEPS + 1), *reversed(range(STEPS))):
        browser.run(script.format(number))
        (step, *_), words, kinds = shown(browser)
        assert step == number and words == spelt(film, 0, number)
        events = film[0][0].frames[number - 1].events if number else []
        for event in events:
            assert ["new", "up", "changed"][event.mark] in kinds[event.position]
        assert sum("up" in kind for kind in kinds) == sum(event.mark == 1 for event in events)
    assert "step 0 of 20" in browser.run("step.getAttribute('aria-valuetext')")


def test_it_plays_and_stops(browser, film):
    browser.click("#play")
    assert "pause" in browser.run("play.textContent")
    browser.until("Number(step.value) > 2")
    browser.key(" ", 32)  # the button has the focus
    assert "play" in browser.run("play.textContent")
    where = browser.run("step.value")
    browser.run("document.activeElement.blur()")
    browser.key(" ", 32)
    browser.until(f"Number(step.value) > {where}")
    browser.key("End", 35)
    assert shown(browser)[0][0] == STEPS and "play" in browser.run("play.textContent")
    browser.click("#play")  # from the start again
    assert shown(browser)[0][0] <= 2


def test_arrow_keys_go_through_steps_and_in_the_text_through_positions(browser, film):
    for name, code, step in (
        ("ArrowRight", 39, 1),
        ("ArrowRight", 39, 2),
        ("ArrowLeft", 37, 1),
        ("Home", 36, 0),
    ):
        browser.key(name, code)
        assert shown(browser)[0][0] == step
    browser.key("ArrowLeft", 37)
    assert shown(browser)[0][0] == 0
    browser.run("(document.getElementById('text').focus(), 0)")
    browser.key("ArrowRight", 39)
    browser.key("ArrowRight", 39)
    assert shown(browser)[0][0] == 0
    assert "position 1" in browser.run("detail.textContent") and "prompt" in browser.run(
        "detail.textContent"
    )


def test_the_page_shows_the_probability_under_the_mouse(browser, film):
    text = film[0][0]
    packed = film[1]
    seen = set()
    for step, frame in enumerate(text.frames, start=1):
        for event in frame.events:
            if event.mark in seen:
                continue
            seen.add(event.mark)
            browser.run(f"(location.hash = 'step={step}', 0)")
            browser.until(f"step.value == {step}")
            left, top, width, height = browser.place(f"[data-position='{event.position}']")
            browser.mouse("mouseMoved", left + width / 2, top + height / 2)
            label = browser.run("detail.textContent")
            assert (
                label.startswith(f"position {event.position}: ")
                and f"in step {step} (t = {frame.t:.3f})" in label
            )
            if event.mark == 1:
                assert (
                    "noised from" in label
                    and "no network call" in label
                    and "noised again or replaced" in label
                )
            else:
                number = float(f"{100 * event.chance:.3g}")
                assert (
                    f"denoised from _ in step {step}" in label
                    and f"probability {number:g} %" in label
                )
                assert "most probable in this step: " in label
    assert seen == {0, 1}
    assert packed["texts"][0]["end"] == LENGTH - 4


def test_other_samples_fragments_and_positions_behind_the_end(browser, film, opened):
    browser.run("(sample.value = 1, sample.dispatchEvent(new Event('change')), 0)")
    browser.key("End", 35)
    assert shown(browser)[1] == spelt(film, 1, len(film[0][1].frames))
    assert browser.run("tail.hidden")
    browser.open("about:blank")
    browser.open(opened[1] + "#sample=0&step=7&position=3")
    assert shown(browser)[0][0] == 7 and shown(browser)[1] == spelt(film, 0, 7)
    assert "position 3" in browser.run("detail.textContent")
    assert not browser.run("tail.hidden")
    browser.click("#hide")
    assert browser.run("document.querySelectorAll('#text span[hidden]').length") == 3


def contrast(one, other):
    """WCAG 2.1's ratio of two colours, (r, g, b)."""

    def luminance(colour):
        parts = [c / 255 for c in colour]
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_by_day_and_by_night_and_on_a_phone(browser, film, scheme, tmp_path):
    browser.looks(scheme)
    browser.run("(location.hash = 'step=12', 0)")
    browser.until("step.value == 12")
    colours = browser.run(
        """[...document.querySelectorAll('#text span, #legend span, #when, #detail')].map(s => {
          let paper = s;
          while (getComputedStyle(paper).backgroundColor === 'rgba(0, 0, 0, 0)') paper = paper.parentElement;
          return [getComputedStyle(s).color, getComputedStyle(paper).backgroundColor].map(c => c.match(/[\\d.]+/g).map(Number));
        })"""
    )
    assert min(contrast(ink, paper) for ink, paper in colours) >= 4.5
    papers = {json.dumps(paper) for _, paper in colours}
    assert len(papers) >= 4  # two levels of clusters, the page, the panel
    browser.shot(tmp_path / f"{scheme}.png")
    assert (tmp_path / f"{scheme}.png").stat().st_size > 10_000
    browser.looks(scheme, width=360, height=640)
    assert browser.run("document.documentElement.scrollWidth") <= 360
    assert browser.place("#play")[3] >= 36 and browser.place("#step")[2] >= 120
