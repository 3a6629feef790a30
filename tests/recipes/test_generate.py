import io
import json
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from refusals import refused_with, refuses
from rich.console import Console
from zoo.runs import LENGTH, publish_tiny, publishes, quiet, read_lines

import ddlib as dd
from recipes import evaluate
from recipes import generate as generating
from recipes.embeddings.naming import cluster_names
from recipes.engine.parallel import alone
from recipes.evaluation.report import protocol_text
from recipes.generate import Options, generate, main
from recipes.generation.prompt import prompt_states
from recipes.generation.samples import protocol
from recipes.generation.sampling import NOISE, Sampling, draw
from recipes.model_io import open_saved

published = publishes("two levels")


def sampled(saved, **options):
    """Two samples with the noise of seed 3, straight from ``dd.sample``."""
    noise = dd.KeyedGenerator(3, NOISE, torch.arange(2))
    options |= dict(parameterization="posterior", generator=noise)
    return dd.sample(saved.process, saved.denoiser, (2, LENGTH), **options)


def test_steps_of_equal_jumps(saved):
    """The times are those of ``equal_jump_times``; a sampler that uses no times is refused."""
    drawn = draw(saved, Sampling(steps=8, spacing="jumps"), 3, torch.arange(2), LENGTH)
    expected = sampled(saved, steps=dd.samplers.equal_jump_times(saved.process, 8))
    assert torch.equal(drawn, expected)
    assert not torch.equal(drawn, draw(saved, Sampling(steps=8), 3, torch.arange(2), LENGTH))
    with pytest.raises(ValueError, match="spacing='jumps': first_hitting"):
        draw(saved, Sampling(sampler="first_hitting", spacing="jumps"), 3, torch.arange(2), LENGTH)


def test_a_sample_is_that_of_ddlib(saved):
    sampling = Sampling(steps=8, temperature=0.7, top_p=0.9, sampler="first_hitting")
    expected = sampled(
        saved, sampler=dd.samplers.FirstHitting(), steps=8, temperature=0.7, top_p=0.9
    )
    assert torch.equal(draw(saved, sampling, 3, torch.arange(2), LENGTH), expected)


def test_every_knob_is_that_of_ddlib(saved):
    tokens = range(saved.process.vocab_size)
    word = next(word for word in tokens if len(saved.encode(saved.tokenizer.decode([word]))) == 1)
    fill = saved.special.eos if saved.recipe.data.packed else saved.special.pad
    sampling = Sampling(
        steps=6,
        temperature=(1.0, 0.5),
        top_p=(0.9, 0.8),
        top_k=20,
        min_p=0.01,
        repetition_penalty=1.5,
        min_tokens=3,
        forbidden=(saved.tokenizer.decode([word]),),
        end="last",
        stop_entropy=0.01,
    )
    expected = sampled(
        saved,
        steps=6,
        controls=[
            dd.controls.Truncation(
                temperature=lambda t: 0.5 + 0.5 * t,
                top_p=lambda t: 0.8 + (0.9 - 0.8) * t,
                top_k=20,
                min_p=0.01,
            ),
            dd.controls.EndOfText(saved.special.eos, 3, fill=fill),
            dd.controls.Settled(0.01),
            dd.controls.Forbidden([word]),
            dd.controls.RepetitionPenalty(1.5),
        ],
    )
    assert torch.equal(draw(saved, sampling, 3, torch.arange(2), LENGTH), expected)


def test_a_protocol_is_printed_in_words(saved):
    sampling = Sampling(steps=6, temperature=(1.0, 0.5), forbidden=(" a", "b"), top_k=3)
    words = "ancestral, 6 steps, temperature 1 to 0.5, top-p 1, top-k 3, forbidden [' a', 'b']"
    assert protocol_text(protocol(saved, sampling, 0, 8)) == words


def test_a_forbidden_text_is_one_token(saved):
    with pytest.raises(
        ValueError, match=r"forbidden='The state of our union': is \d+ tokens, must be a single"
    ):
        draw(saved, Sampling(forbidden=("The state of our union",)), 0, torch.arange(1), LENGTH)


def test_a_sample_has_its_number_as_its_seed(run):
    options = dict(run=str(run), length=8, sampling=Sampling(steps=4))
    four = generate(Options(**options, samples=4), quiet())
    assert generate(Options(**options, numbers=(3, 1)), quiet()) == [four[3], four[1]]


def test_samples_do_not_depend_on_the_rest_of_the_batch(saved):
    sampling = Sampling(steps=8)
    index = torch.arange(5)
    whole = draw(saved, sampling, 3, index, LENGTH)
    assert whole.shape == (5, LENGTH) and int(whole.max()) < saved.process.vocab_size
    parts = [draw(saved, sampling, 3, part, LENGTH) for part in index.split(2)]
    assert torch.equal(whole, torch.cat(parts))
    assert not torch.equal(whole, draw(saved, sampling, 4, index, LENGTH))


@pytest.mark.parametrize(
    "sampler", ["ancestral", "first_hitting", "ancestral:force_transition=true"]
)
def test_a_prompt_is_kept_and_the_following_positions_are_free(run, saved, tmp_path, sampler):
    out = tmp_path / "texts" / "samples.jsonl"
    sampling = Sampling(steps=4, sampler=sampler)
    texts = generate(
        Options(run=str(run), prompt="The state of", samples=3, sampling=sampling, out=out), quiet()
    )
    lines = read_lines(out)
    begin = [saved.special.bos, *saved.encode("The state of")]
    for line, text in zip(lines, texts, strict=True):
        assert line["tokens"][: len(begin)] == begin and len(line["tokens"]) == LENGTH
        assert line["text"] == text and text.startswith("The state of")
        assert line["protocol"]["checkpoint_sha256"] == saved.sha256
        assert line["protocol"]["sampler"] == sampler and line["protocol"]["steps"] == 4
    assert len({tuple(line["tokens"]) for line in lines}) == 3


def test_gaps_are_filled_and_all_else_stands(saved, run, tmp_path):
    out = tmp_path / "filled.jsonl"
    prompt = "The [MASK:3] of our[MASK] is"
    states, given = prompt_states(saved, prompt, LENGTH)
    assert states[given] == saved.special.eos
    free = states == saved.process.num_states - 1
    assert int(free.sum()) == 4 and len(states) == LENGTH
    generate(
        Options(run=str(run), prompt=prompt, samples=6, sampling=Sampling(steps=4), out=out),
        quiet(),
    )
    rows = torch.tensor(
        [json.loads(line)["tokens"] for line in out.read_text(encoding="utf-8").splitlines()]
    )
    assert bool((rows[:, ~free] == states[~free]).all())
    assert len(rows[:, free].unique(dim=0)) > 1
    words = states[~free].tolist()
    assert saved.document(words) == [
        *saved.encode("The"),
        *saved.encode(" of our"),
        *saved.encode(" is"),
    ]
    assert words[-1] == saved.special.pad


def test_a_model_of_packed_rows_gets_no_padding(tmp_path):
    saved = open_saved(publish_tiny("packed", tmp_path).run)
    states, _ = prompt_states(saved, "The [MASK:3]", LENGTH)
    assert states[-1] == saved.special.eos and saved.special.pad not in states


def test_a_document_ends_at_its_end_or_at_padding(saved):
    bos = saved.special.bos
    eos = saved.special.eos
    pad = saved.special.pad
    assert saved.document([bos, 5, 6, eos, 7, pad]) == [5, 6]
    assert saved.document([5, 6, pad, 7]) == [5, 6]
    assert saved.document([bos, eos]) == [] and saved.document([]) == []
    assert saved.cut_at_end([eos, 5]) == [] and saved.cut_at_end([5, eos]) == [5]


def test_the_trajectory_shows_noise_first_and_words_last(run, saved):
    console = quiet()
    options = Options(
        run=str(run), samples=2, sampling=Sampling(steps=8), trajectory=True, length=10, batch=1
    )
    generate(options, console)
    shown = console.file.getvalue()
    first = shown.split("t = 1.000: ")[1].split("\n")[0]
    last = shown.split("t = 0.000: ")[1].split("sample 0")[0]
    assert first.split() == ["_"] * 10
    assert "_ _" not in last
    names = cluster_names(saved.process, saved.model, saved.clusters, saved.tokenizer)
    assert len(names) == 8 + 4 and all(names)


def test_greedy_sampling_and_precision_are_honoured(run):
    options = dict(run=str(run), samples=2, length=6)
    cold = generate(Options(**options, sampling=Sampling(steps=4, temperature=0.0)), quiet())
    warm = generate(Options(**options, sampling=Sampling(steps=4)), quiet())
    assert cold != warm
    half = open_saved(run, precision="bfloat16").denoiser
    assert half(torch.zeros(1, 4, dtype=torch.int64), torch.ones(1)).isfinite().all()


test_bad_sampling_options_are_refused_at_once = refuses(r"""
    Sampling(steps=0) | ValueError | steps=0: must be at least 1
    Sampling(sampler="ancestal") | ValueError | did you mean 'ancestral'
    Sampling(sampler="ancestral:force=true") | ValueError
        | sampler.force: no such key; ancestral has force_transition
    Sampling(temperature=-1.0) | ValueError | temperature=-1.0
    Sampling(top_p=0.0) | ValueError | top_p is 0.0
    Sampling(temperature=(1.0, -0.5)) | ValueError | temperature=-0.5
    Sampling(top_p=(0.9, 2.0)) | ValueError | top_p is 2.0
    Sampling(top_k=0) | ValueError | top_k=0: must be at least 1
    Sampling(min_p=1.1) | ValueError | min_p=1.1: must lie in
    Sampling(repetition_penalty=0.5) | ValueError | repetition_penalty=0.5: must be at least 1
    Sampling(min_tokens=-1) | ValueError | min_tokens=-1: must be at least 0
    Sampling(stop_entropy=-0.1) | ValueError | stop_entropy=-0.1: must be at least 0
""")


def test_a_prompt_longer_than_the_sequence_is_refused(run):
    with pytest.raises(ValueError, match="must be at most 4, the"):
        generate(
            Options(run=str(run), prompt="The state of our union is strong", length=4), quiet()
        )


@pytest.mark.parametrize("gap", ["<mask>", "[mask]", "<MASK>", "[Mask:3]", "[MASK: 3]", "{mask}"])
def test_a_prompt_that_looks_like_a_gap_gives_a_hint(gap):
    with pytest.raises(
        ValueError, match=r"prompt: .* would be read as text; did you mean \[MASK\], or"
    ) as caught:
        Options(run="r", prompt=f"We {gap} act [MASK].")
    assert gap in str(caught.value)
    Options(run="r", prompt="We [MASK:3] the [MASK] of [a mask] <unmask> [MASKED].")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"impute": "x.csv", "out": "x.csv"}, "out=x.csv: would replace the file of impute"),
        ({"prompts": "x", "out": "../HERE/x"}, "out=.*x: would replace the file of prompts"),
        ({"json_schema": "x.json", "html": "x.json"}, "html=.*replace the file of json_schema"),
        ({"out": "x", "html": "x"}, "html=x: would replace the file of out"),
    ],
)
def test_no_file_is_written_over_one_that_is_read(tmp_path, monkeypatch, files, message):
    monkeypatch.chdir(tmp_path)
    paths = {name: Path(path.replace("HERE", tmp_path.name)) for name, path in files.items()}
    with pytest.raises(ValueError, match=message):
        Options(run="r", **paths)


@pytest.mark.parametrize("command", [evaluate.main, main])
def test_a_samplers_typo_ends_as_other_flags_do(command):
    with pytest.raises(
        SystemExit, match=r"^error: sampler.kind: .*'ancestrall', did you mean 'ancestral'\?$"
    ):
        command(["runs/x", "--sampler", "ancestrall"])


def test_the_error_names_a_missing_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def unreachable(name, revision, ignore_patterns):
        raise LocalEntryNotFoundError("Got: ConnectError: [Errno -2] Name or service not known")

    monkeypatch.setattr("recipes.model_io.opening.snapshot_download", unreachable)
    for command in (main, evaluate.main):
        with pytest.raises(SystemExit) as caught:
            command(["runs/nothere"])
        assert str(caught.value) == "error: no folder runs/nothere, and the hub does not answer"
    with pytest.raises(
        SystemExit, match="no folder runs/a/b, and not a name or owner/name on the hub"
    ):
        main(["runs/a/b"])
    with pytest.raises(
        SystemExit, match=r"error: .*\.py is a file, must be the folder of a run or of a model"
    ):
        main([__file__])


def test_sampler_options_reach_it():
    assert dd.build("samplers", "ancestral:force_transition=true").force_transition is True
    assert dd.build("samplers", "first_hitting").force_transition is False


def test_the_command_line(run, capsys):
    main(
        [str(run), "--prompt", "We", "--steps", "2", "--samples", "1", "--sampler", "first_hitting"]
    )
    assert "sample 0\nWe" in capsys.readouterr().out
    main(
        [str(run), "--prompt", "We", "--prompt", "No", "--steps", "2", "--samples", "1", "--stream"]
    )
    shown = capsys.readouterr().out
    assert "prompt 1, sample 0  t = 1.000: No _ _" in shown and "prompt 0, sample 0\nWe" in shown


PROMPTS = ("We", "The state of our union is", "The [MASK:3] of our[MASK]")


@pytest.mark.parametrize("sampler", ["ancestral", "confidence:threshold=0.5"])
def test_each_of_several_prompts_gives_the_same_as_alone(run, sampler):
    options = dict(run=str(run), samples=2, sampling=Sampling(steps=2, sampler=sampler))
    alone = [
        text for prompt in PROMPTS for text in generate(Options(**options, prompt=prompt), quiet())
    ]
    assert generate(Options(**options, prompt=PROMPTS, batch=4), quiet()) == alone
    assert len(set(alone)) > 3


def test_several_prompts_are_read_from_a_file_and_kept_separate(run, tmp_path):
    out = tmp_path / "out.jsonl"
    page = tmp_path / "page.html"
    console = quiet()
    (tmp_path / "prompts.txt").write_text(f"{PROMPTS[0]}\n\n{PROMPTS[1]}\n", encoding="utf-8")
    sampling = Sampling(steps=2)
    given = dict(run=str(run), samples=1, sampling=sampling, new=4, out=out, html=page)
    generate(Options(prompts=tmp_path / "prompts.txt", **given), console)
    assert "prompt 1, sample 0" in console.file.getvalue()
    lines = read_lines(out)
    assert [line["protocol"]["prompt"] for line in lines] == list(PROMPTS[:2])
    assert [line["protocol"]["length"] for line in lines] == [len(line["tokens"]) for line in lines]
    saved = open_saved(run)
    assert len(lines[1]["tokens"]) == 1 + len(saved.encode(PROMPTS[1])) + 4
    assert "prompt 1, sample 0" in page.read_text(encoding="utf-8")


def test_texts_are_streamed_as_they_stand(run, saved):
    console = quiet()
    plain = dict(run=str(run), samples=2, sampling=Sampling(steps=3), length=8)
    texts = generate(Options(**plain), quiet())
    assert generate(Options(**plain, stream=True), console) == texts
    lines = console.file.getvalue().splitlines()
    drafts = [line for line in lines if line.startswith("sample 1  t = ")]
    assert drafts[0] == "sample 1  t = 1.000: " + " ".join("_" * 8)
    assert (
        2 <= len(drafts) <= 4
        and "_ _" not in drafts[-1]
        and drafts[-1].startswith("sample 1  t = 0.000")
    )
    # on a terminal the drafts go when the texts are there
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100, height=20)
    assert generate(Options(**plain, stream=True, html=None), terminal) == texts
    shown = terminal.file.getvalue()
    assert "\x1b[2K" in shown and shown.index("t = 1.000") < shown.index("t = 0.000")
    assert "t = " not in shown[shown.rindex("\x1b[2K") :]


JPEG = Path("x.jpeg")
test_options_that_exclude_each_other_are_refused_at_once = refuses(r"""
    Options(run="r", new=0) | ValueError | new=0: must be at least 1
    Options(run="r", new=3, length=9) | ValueError | new=3: not with length=9
    Options(run="r", prompt=("We", "No <mask>")) | ValueError | <mask> would be read as text
    Options(run="r", prompt="We", prompts="p.txt") | ValueError
        | prompts=p.txt: not with prompt='We'
    Options(run="r", system="Be short.") | ValueError | system='Be short.': only with --chat
    Options(run="r", chat=True) | ValueError | chat: requires a message
    Options(run="r", chat=True, prompt="What is [MASK]?") | ValueError
        | \[MASK\] is a gap, which a message cannot
    Options(run="r", prompt="We [MASK:0] act") | ValueError
        | \[MASK:0\] has no token, must have at least 1
    Options(run="r", out=JPEG) | ValueError
        | out=x.jpeg: must end in .jsonl, or for a model of symbols
    Sampling(label="1", guidance=2, guidance_interval=(0.8, 0.2)) | ValueError
        | must be two times in .*, the earlier
    Sampling(label="1", guidance_interval=(0.2, 0.8)) | ValueError
        | guidance_interval=.* has no effect at guidance=1
""")


@pytest.mark.parametrize("number", [LENGTH + 1, 4000])
def test_a_length_beyond_that_of_training_is_refused_as_by_evaluate(run, number):
    rule = (
        f"length={number}: must be at most {LENGTH}, the tokens of a sequence in the training of .*"
    )
    for prompt in ((), ("The state",), ("The [MASK:3] of",)):
        with pytest.raises(ValueError, match=rule):
            generate(Options(run=str(run), length=number, prompt=prompt), quiet())
    with pytest.raises(ValueError, match=rule):
        evaluate.evaluate(evaluate.Options(run=str(run), length=number, scorer="none"), alone())
    with pytest.raises(
        ValueError, match=f"new={number}: . tokens precede them, and .* supports {LENGTH}"
    ):
        generate(Options(run=str(run), new=number, prompt="The state"), quiet())


def test_new_tokens_fill_up_blocks(run, tmp_path):
    sampling = Sampling(steps=2, pace="blocks:4")
    out = tmp_path / "found.jsonl"
    generate(
        Options(run=str(run), prompt=PROMPTS[:2], new=5, samples=1, sampling=sampling, out=out),
        quiet(),
    )
    saved = open_saved(run)
    prompts = [len(saved.beginning) + len(saved.encode(prompt)) for prompt in PROMPTS[:2]]
    lengths = [
        len(json.loads(line)["tokens"]) for line in out.read_text(encoding="utf-8").splitlines()
    ]
    assert lengths == [-(-(size + 5) // 4) * 4 for size in prompts] and len(set(prompts)) > 1


@pytest.mark.parametrize("suffix", [".png", ".gif", ".mid", ".fasta"])
def test_a_file_that_cannot_hold_text_is_refused(run, tmp_path, suffix):
    with pytest.raises(
        ValueError,
        match=r"generates text, whose file has a JSON object per line: must end in \.jsonl",
    ):
        generate(Options(run=str(run), out=tmp_path / f"a{suffix}"), quiet())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [evaluate, generating])
def test_a_file_that_cannot_be_written_is_refused_before_weights_are_read(
    command, tmp_path, monkeypatch
):
    def read(*_, **__):
        raise AssertionError("weights are read")

    monkeypatch.setattr("recipes.model_io.opening.find_saved", read)
    (tmp_path / "file").write_text("", encoding="utf-8")
    for out, message in (
        ("", "is a folder, must be a file"),
        ("file/out", "file is a file, must be a folder"),
    ):
        with pytest.raises(SystemExit, match=message) as caught:
            command.main(["them/theirs", "--out", str(tmp_path / out)])
        assert str(caught.value).startswith(f"error: out={tmp_path / out}: ")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    if command is generating:
        with pytest.raises(SystemExit, match="must contain a prompt on each"):
            main(["them/theirs", "--prompts", str(tmp_path / "file")])


def test_a_result_that_cannot_be_written_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="directory"):
        evaluate.write(tmp_path, {})
    assert not list(tmp_path.parent.glob(f".{tmp_path.name}.*"))


def test_how_a_model_of_others_is_read_is_no_matter_of_a_run(run):
    for name, value in {"family": "a2d", "block_size": 4}.items():
        with pytest.raises(ValueError, match=f"{name}={value!r}: only for third-party models"):
            open_saved(run, **{name: value})


def test_a_file_without_prompts_and_a_tokenizer_without_chats_are_refused(run, tmp_path):
    (tmp_path / "none.txt").write_text("\n", encoding="utf-8")
    refused_with(run=str(run), tmp_path=tmp_path)(r"""
        generate(Options(run=run, prompts=tmp_path / "none.txt"), quiet())
            | ValueError | none\.txt: must contain a prompt on each
        generate(Options(run=run, prompts=tmp_path / "not_there.txt"), quiet())
            | FileNotFoundError | prompts=.*not_there\.txt: cannot be
        generate(Options(run=run, chat=True, prompt="Who are you?"), quiet())
            | ValueError | chat: the tokenizer of .* has no chat template
    """)
