"""Pretrained denoisers that no recipe trained, through the commands."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from lm_eval.api.instance import Instance
from pretrained_by_others import write
from refusals import refused_with
from safetensors.torch import load_file
from transformers import AutoTokenizer
from zoo.runs import ALONE, SENTENCES, publish_tiny, quiet, read_lines

import ddlib as dd
from ddlib.utils.validation import UsageWarning
from ddlib_models import hub
from recipes.data import local, open_prepared, prepare
from recipes.data.stream import examples
from recipes.evaluate import Options as EvaluateOptions
from recipes.evaluate import evaluate
from recipes.evaluation.generative import generate_and_judge
from recipes.frontier import Options as FrontierOptions
from recipes.frontier import frontier
from recipes.generate import Options, generate, main
from recipes.generation.sampling import NOISE, Sampling
from recipes.harness import DiffusionLM
from recipes.metrics.scoring import load_scorer
from recipes.model_io import LoadOptions, open_saved

KINDS = ("modernbert", "a2d", "bert")
EACH = pytest.mark.parametrize("kind", KINDS)


class Written(dict):
    """Folders by kind, made on first use."""

    def __init__(self, root):
        super().__init__()
        self._root = root

    def __missing__(self, kind):
        self[kind] = str(write(self._root / kind, kind, chat=kind in ("modernbert", "a2d")))
        return self[kind]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("others")
    return Written(root)


@pytest.fixture(scope="module")
def data(folders, tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text("\n".join(SENTENCES * 3), encoding="utf-8")
    return prepare(
        local(str(folder / "text.txt"), folders["modernbert"], held_out=5), folder / "data"
    ).folder


def ids(folder, text):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    begin = [] if tokenizer.cls_token_id is None else [tokenizer.cls_token_id]
    return [*begin, *tokenizer.encode(text, add_special_tokens=False)]


@EACH
def test_a_text_is_that_of_ddlib(folders, kind, tmp_path):
    out = tmp_path / "out.jsonl"
    sampling = Sampling(steps=4, sampler="confidence:threshold=0.5", pace="blocks:4")
    sees_all = LoadOptions(block_size=0 if kind == "a2d" else None)
    options = dict(prompt="We will", samples=2, new=5, sampling=sampling, reading=sees_all, out=out)
    texts = generate(Options(model=folders[kind], **options), quiet())
    process, denoiser, _, special = hub.load(folders[kind])
    prompt = torch.tensor(ids(folders[kind], "We will"))
    length = -(-(len(prompt) + 5) // 4) * 4  # whole blocks
    expected = dd.sample(
        process,
        denoiser,
        (2, length),
        dd.samplers.Confidence(threshold=0.5),
        4,
        prompt,
        pace=dd.paces.Blocks(4),
        generator=dd.KeyedGenerator(0, NOISE, torch.arange(2)),
    )
    lines = read_lines(out)
    assert [line["tokens"] for line in lines] == expected.tolist()
    assert all(text.startswith("We will") for text in texts) and special.mask not in expected
    assert len(lines[0]["protocol"]["checkpoint_sha256"]) == 64
    assert lines[0]["protocol"]["provenance"]["versions"]["transformers"]


def test_a_chat_follows_the_template_of_the_tokenizer_and_its_answer_is_shown(
    folders, tmp_path, capsys
):
    folder = folders["a2d"]
    out = tmp_path / "out.jsonl"
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Is our union strong?"},
    ]
    flags = [
        "--chat",
        "--system",
        "Be brief.",
        "--prompt",
        "Is our union strong?",
        "--new",
        "8",
        "--steps",
        "3",
    ]
    main(["--model", folder, *flags, "--samples", "1", "--out", str(out), "--stream"])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer.encode(text, add_special_tokens=False)
    line = json.loads(out.read_text(encoding="utf-8"))
    assert line["tokens"][: len(prompt)] == prompt and len(line["tokens"]) == len(prompt) + 8
    answer = line["tokens"][len(prompt) :]
    answer = (
        answer[: answer.index(tokenizer.eos_token_id)]
        if tokenizer.eos_token_id in answer
        else answer
    )
    assert line["text"] == tokenizer.decode(answer, skip_special_tokens=True)
    shown = capsys.readouterr().out
    assert (
        "sample 0  t = 0.000: " in shown and "[assistant]" not in shown and "Be brief." not in shown
    )


def test_end_tokens_inside_a_prompt_end_nothing(folders, tmp_path):
    out = tmp_path / "out.jsonl"
    spoken = "[user] Is our union strong?[SEP][assistant]"
    for kind, prompt in (("a2d", spoken), ("bert", "We[SEP] will [MASK:3]")):
        tokenizer = AutoTokenizer.from_pretrained(folders[kind])
        sampling = Sampling(steps=2)
        values = dict(
            run=folders[kind], prompt=prompt, new=6, samples=4, sampling=sampling, out=out
        )
        texts = generate(Options(**values), quiet())
        for line, text in zip(read_lines(out), texts, strict=True):
            words = line["tokens"]
            stood = len(ids(folders[kind], prompt.removesuffix(" [MASK:3]")))
            ends = [i for i in range(stood, len(words)) if words[i] in (0, 2)]  # padding and [SEP]
            shown = words[kind == "bert" : min(ends, default=len(words))]
            assert (
                text == tokenizer.decode(shown, skip_special_tokens=True)
                and len(shown) >= stood - 1
            )


def test_a_template_that_fails_and_a_sampler_that_does_not_serve_end_in_a_line(folders, tmp_path):
    for place, template in enumerate(
        ("{{ raise_exception('no system here') }}", "{% for %}", "{{ 1 + 'a' }}")
    ):
        folder = shutil.copytree(folders["a2d"], tmp_path / str(place))
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        with pytest.raises(
            SystemExit, match=r"^error: chat: .* template does not take messages of system, user: "
        ):
            main(
                [
                    str(folder),
                    "--chat",
                    "--system",
                    "Be brief.",
                    "--prompt",
                    "No?",
                    "--samples",
                    "1",
                ]
            )
    for name in ("prompt", "system"):
        with pytest.raises(ValueError, match=rf"{name}='We .udcff': must be text in UTF-8"):
            Options(run="r", **{"prompt": "We", "chat": True} | {name: "We \udcff"})
    with pytest.raises(SystemExit, match=r"^error: [^\n]*$"):
        main(
            [
                folders["gemma"],
                "--prompt",
                "We",
                "--sampler",
                "confidence:threshold=0.9",
                "--pace",
                "blocks:4",
            ]
        )


PROMPTS = ("We", "Tonight we celebrate the work of free people", "The [MASK:2] of our union")


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_of_several_lengths_give_the_same_together_as_alone(folders, kind, monkeypatch):
    options = dict(run=folders[kind], samples=2, new=6, sampling=Sampling(steps=2))
    alone = [
        text for prompt in PROMPTS for text in generate(Options(**options, prompt=prompt), quiet())
    ]
    sizes = []
    find = hub.find

    def watched(*given, **how):
        found = find(*given, **how)

        def load():
            loaded = found.load()
            network = loaded.denoiser.network.network  # transformers' own, below all that is ours
            network.register_forward_pre_hook(
                lambda *call: sizes.append(len(call[2]["inputs_embeds"])), with_kwargs=True
            )
            return loaded

        return replace(found, load=load)

    monkeypatch.setattr(hub, "find", watched)
    assert generate(Options(**options, prompt=PROMPTS), quiet()) == alone
    assert set(sizes) == {6}, "all in one batch, the shorter ones with padding"


def test_prompts_of_several_lengths_have_a_cache_each(folders):
    """One window has one length; the rows of each length are drawn in one batch."""
    sampling = Sampling(steps=2, sampler="confidence", pace="blocks:4", keep="dual")
    options = dict(
        run=folders["a2d"], samples=2, new=6, sampling=sampling, reading=LoadOptions(block_size=0)
    )
    alone = [
        text
        for prompt in PROMPTS[:2]
        for text in generate(Options(**options, prompt=prompt), quiet())
    ]
    assert generate(Options(**options, prompt=PROMPTS[:2]), quiet()) == alone


def test_a_causal_model_without_a_sign_of_training_with_masks_is_warned_of(folders):
    with pytest.warns(
        UsageWarning, match="describes a causal model, qwen3, and no file states .* --family a2d"
    ):
        open_saved(folders["causal"])
    open_saved(folders["causal"], family="a2d")
    open_saved(folders["a2d"])


def test_a_model_trained_by_blocks_is_read_by_them_and_drawn_at_their_pace(folders, data, tmp_path):
    out = tmp_path / "out.jsonl"
    folder = folders["a2d"]
    blocks = ["--block-size", "4", "--prompt", "We", "--new", "7", "--steps", "2"]
    main([folder, *blocks, "--samples", "2", "--out", str(out)])
    process, denoiser, _, _ = hub.load(folder, block_size=4)
    prompt = torch.tensor(ids(folder, "We"))
    expected = dd.sample(
        process,
        denoiser,
        (2, 8),
        dd.samplers.Ancestral(),
        2,
        prompt,
        pace=dd.paces.Blocks(4),
        generator=dd.KeyedGenerator(0, NOISE, torch.arange(2)),
    )
    lines = read_lines(out)
    assert [line["tokens"] for line in lines] == expected.tolist()
    assert (
        lines[0]["protocol"]["block_size"] == 4 and lines[0]["protocol"]["pace"] == "Blocks(size=4)"
    )
    values = dict(data=data, scorer="none", replicates=1, sequences=2, length=16)
    protocol = evaluate(
        EvaluateOptions(model=folder, reading=LoadOptions(block_size=4), **values), ALONE
    )["protocol"]
    assert (protocol["pace"], protocol["block_size"]) == ("Blocks(size=4)", 4)
    model = DiffusionLM(folder, samples=1, block_size=4, steps=2)
    values = ("We", {"until": [], "max_gen_toks": 3})
    answers = model.generate_until(
        [Instance("generate_until", {}, values, 0, metadata=("t", 0, 1))], disable_tqdm=True
    )
    assert len(answers) == 1 and model.saved.model.block_size == 4
    with pytest.raises(
        ValueError, match=r"has pace=Blocks\(size=4\), but only bounds with one time"
    ):
        model.loglikelihood_rolling([], disable_tqdm=True)


def test_blocks_of_a_pace_and_of_a_model_that_do_not_agree_are_refused(folders):
    values = dict(run=folders["a2d"], sampling=Sampling(steps=2, pace="blocks:8"))
    refused_with(values=values)(r"""
        generate(Options(**values), quiet())
            | ValueError
                | pace='blocks:8': the files do not determine whether .*a2d was trained by
                blocks.*=0 if
        generate(Options(**values, reading=LoadOptions(block_size=4)), quiet())
            | ValueError | pace='blocks:8': .*a2d has blocks of 4, block_size=4: must be a divisor
        LoadOptions(block_size=-1) | ValueError | block_size=-1: must be at least 0
    """)


def test_a_revision_is_one_of_a_repository(folders, monkeypatch):
    loads = []

    def downloaded(name, revision, ignore_patterns):
        loads.append((name, revision))
        return folders["modernbert"]

    monkeypatch.setattr("recipes.model_io.opening.snapshot_download", downloaded)
    assert LoadOptions(revision="v2").open("them/theirs", "cpu", "float32").name == "them/theirs"
    DiffusionLM("them/theirs", samples=1, revision=7)
    # each twice: without the weights, then with them
    assert loads == [("them/theirs", "v2")] * 2 + [("them/theirs", "7")] * 2
    with pytest.raises(
        ValueError, match=r"revision='v2': only for a repository on the hub, .* is a folder"
    ):
        open_saved(folders["modernbert"], revision="v2")


def test_weights_in_a_pickle_alone_are_answered_by_the_command_that_converts_them(
    folders, tmp_path, monkeypatch
):
    """``open_saved`` downloads no pickles, so its folder has no weights at all."""
    cache = tmp_path / "models--me--tiny"
    snapshot = shutil.copytree(folders["modernbert"], cache / "snapshots" / ("a" * 40))
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("a" * 40)
    torch.save(load_file(snapshot / "model.safetensors"), snapshot / "pytorch_model.bin")
    (snapshot / "model.safetensors").unlink()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(
        "recipes.model_io.opening.snapshot_download", lambda *_, **options: snapshot
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        OSError, match=r"me/tiny: has pytorch_model\.bin and no .* to a folder, and load tiny"
    ) as error:
        open_saved("me/tiny")
    exec(str(error.value).split('"')[1])
    assert (
        open_saved("tiny").process.vocab_size
        == open_saved(folders["modernbert"]).process.vocab_size
    )


def test_a_mask_may_be_given_by_its_id_if_no_token_has_that_spelling(folders, monkeypatch):
    masks = []
    find = hub.find

    def watched(*given, **how):
        found = find(*given, **how)
        masks.append(found.special.mask)
        return found

    monkeypatch.setattr(hub, "find", watched)
    ids = AutoTokenizer.from_pretrained(folders["a2d"]).get_vocab()
    for written in ("3", "255", "[MASK]"):
        open_saved(folders["a2d"], mask_token=written)
    DiffusionLM(folders["a2d"], samples=1, mask_token=255)
    assert ids["3"] != 3
    assert masks == [ids["3"], 255, ids["[MASK]"], 255]


def test_trust_must_name_a_module_or_a_model(folders, tmp_path):
    with pytest.raises(
        SystemExit, match=r"error: trust='True': must name what is trusted: .*, or the model, 'a/b'"
    ):
        main(["a/b", "--trust", "True"])
    with pytest.raises(ValueError, match="trust='True': must name"):
        DiffusionLM("a/b", trust=True)
    folder = shutil.copytree(folders["bert"], tmp_path / "own")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    changed = {"model_type": "llada", "use_mrope": 1, "auto_map": {"AutoModel": "code.Model"}}
    (folder / "config.json").write_text(json.dumps(config | changed), encoding="utf-8")
    with pytest.raises(
        SystemExit, match=r"then pass trust=True \(on the command line --trust NAME, the model's\)"
    ):
        main([str(folder)])


def test_gaps_are_filled_in_a_whole_text(folders, tmp_path):
    out = tmp_path / "out.jsonl"
    folder = folders["modernbert"]
    options = dict(samples=2, out=out, sampling=Sampling(steps=2))
    generate(Options(run=folder, prompt="The [MASK:2] is[MASK]", **options), quiet())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    the = tokenizer.encode("The", add_special_tokens=False)
    ends = tokenizer.encode(" is", add_special_tokens=False)
    for line in read_lines(out):
        words = line["tokens"]
        assert (
            words[: 1 + len(the)] == [tokenizer.cls_token_id, *the]
            and words[-1] == tokenizer.sep_token_id
        )
        assert words[3 + len(the) : 3 + len(the) + len(ends)] == ends and len(words) == 5 + len(
            the
        ) + len(ends)


def test_the_bound_is_that_of_each_text_alone_its_beginning_given(folders, data):
    options = dict(data=data, scorer="none", replicates=1, times="uniform", batch=3)
    result = evaluate(EvaluateOptions(model=folders["modernbert"], **options), ALONE)
    process, denoiser, _, _ = hub.load(folders["modernbert"])
    saved = open_saved(folders["modernbert"])
    prepared = open_prepared(data)
    stream = examples(
        prepared.validation, length=saved.length, pad_id=0, batch_size=5, seed=0, threads=0
    )
    batch = next(stream)
    nats = 0.0
    tokens = 0
    for number in range(5):
        x = batch.x[number : number + 1, : int(batch.mask[number].sum())]

        def shown(z, t, x=x):
            return denoiser(torch.cat([x[:, :1], z[:, 1:]], 1), t)

        noise = dd.KeyedGenerator(0, 0, batch.index[number : number + 1])
        with torch.no_grad():
            nats += float(
                dd.bound(process, shown, x, noise, levels="balanced").total[0, 1:].double().sum()
            )
        tokens += x.shape[1] - 1
    found = result["bound"]["nats_per_token"]
    assert found["value"] == pytest.approx(nats / tokens, rel=1e-5) and found["error"] > 0
    whole = prepared.validation
    bits = found["value"] * (int(whole.lengths.sum()) - 5) / int(whole.num_bytes.sum())
    assert result["bound"]["bits_per_byte"]["value"] == pytest.approx(
        bits / torch.log(torch.tensor(2.0)).item()
    )
    protocol = result["protocol"]
    assert (protocol["tokens"], protocol["beginning"], protocol["ema"]) == (tokens, "given", None)
    assert result["validation"] is None


def test_the_prompt_of_an_encoder_precedes_its_canvas(folders, data, tmp_path):
    """DiffusionGemma: uniform noise, and an encoder for what is given."""
    folder = folders["gemma"]
    out = tmp_path / "out.jsonl"
    options = dict(run=folder, samples=2, new=6, sampling=Sampling(steps=3))
    generate(Options(**options, prompt=PROMPTS[:2], out=out), quiet())
    process, denoiser, tokenizer, special = hub.load(folder)
    lines = read_lines(out)
    for place, prompt in enumerate(PROMPTS[:2]):
        words = torch.tensor(
            [[special.bos, *tokenizer.encode(prompt, add_special_tokens=False)]] * 2
        )
        expected = dd.sample(
            process,
            denoiser.after(words),
            (2, 8),
            steps=3,
            parameterization="posterior",
            pace=dd.paces.Blocks(4),
            controls=[dd.controls.WholeBatch()],
            generator=dd.KeyedGenerator(0, NOISE, torch.arange(2)),
        )
        drawn = [line["tokens"] for line in lines[2 * place : 2 * place + 2]]
        assert drawn == torch.cat([words, expected], 1).tolist()
    with pytest.raises(ValueError, match=r"prompt: has gaps, but Uniform"):
        generate(Options(**options, prompt=PROMPTS[2]), quiet())
    values = dict(
        scorer=folders["causal"], samples=2, sampling=Sampling(steps=2), replicates=1, sequences=2
    )
    found = evaluate(EvaluateOptions(model=folder, data=data, times="uniform", **values), ALONE)
    assert found["generative"]["samples"] == 2 and found["protocol"]["no_generative"] is None
    batch = next(
        examples(
            open_prepared(data).validation, length=512, pad_id=0, batch_size=2, seed=0, threads=0
        )
    )
    nats = 0.0
    tokens = 0
    for place in range(2):
        count = int(batch.mask[place].sum()) - 1
        x = batch.x[place : place + 1, : count + 1]
        canvas = torch.cat([x[:, 1:], x[:, -1:].expand(-1, -count % 4)], 1)

        def shown(z, t, clean, x=x, canvas=canvas, count=count):
            z = torch.where(torch.arange(canvas.shape[1]) < count, z, canvas)
            return denoiser.after(x[:, :1])(z, t, clean=clean)

        shown.own_times = True
        shown.block_size = 4
        with torch.no_grad():
            bound = dd.bound(
                process,
                shown,
                canvas,
                dd.KeyedGenerator(0, 0, batch.index[place : place + 1]),
                parameterization="posterior",
                pace=dd.paces.Blocks(4),
                at_once=True,
            )
        nats = nats + float(bound.total[0, :count].double().sum())
        tokens = tokens + count
    assert found["bound"]["nats_per_token"]["value"] == pytest.approx(nats / tokens, rel=1e-5)


def test_samples_behind_a_beginning_that_is_read_apart_are_scored(folders, data):
    saved = open_saved(folders["gemma"])
    scorer = load_scorer(folders["causal"])
    drawn = [
        [*saved.beginning, *saved.encode("We will build"), saved.special.eos] for _ in range(2)
    ]
    drawn = [(words * 8)[: len(saved.beginning) + 8] for words in drawn]  # two canvases
    found = generate_and_judge(saved, scorer, drawn, Sampling(steps=2), 0)
    assert (
        found["samples"] == 2
        and found["perplexity"]["value"] > 0
        and found["protocol"]["length"] == 8
    )


def test_calls_behind_a_beginning_that_is_read_apart_are_counted(folders, tmp_path):
    values = dict(
        scorer=folders["causal"], samples=2, calls=(4, 40), samplers=("ancestral",), length=12
    )
    cells = frontier(
        FrontierOptions(run=folders["gemma"], out=tmp_path / "f.json", **values), quiet()
    )["cells"]
    # three blocks, of which two are read again when they are finished
    assert [(cell["steps"], cell["calls"]) for cell in cells] == [(1, 5), (13, 41)]


def test_an_evaluation_by_blocks_with_likelihood_and_samples(folders, data):
    options = EvaluateOptions(model=folders["modernbert"], data=data, scorer="none")
    by_blocks = replace(
        options, replicates=2, sampling=Sampling(steps=2, pace="blocks:4"), length=16
    )
    found = evaluate(by_blocks, ALONE)["bound"]["nats_per_token"]
    assert 0 < found["error"] < found["value"]
    result = evaluate(replace(options, likelihood="confidence"), ALONE)
    bound, likely = (result[name]["nats_per_token"] for name in ("bound", "likelihood"))
    assert likely["value"] < bound["value"] + 3 * bound["error"]
    assert result["likelihood"]["protocol"]["tokens"] == result["protocol"]["tokens"]


def test_text_of_other_tokens_and_unnamed_text_are_refused(folders, data, tmp_path):
    other = publish_tiny("masks", tmp_path).data.folder
    options = EvaluateOptions(model=folders["bert"], scorer="none")
    refused_with(data=data, options=options, other=other)(r"""
        evaluate(options, ALONE)
            | ValueError
                | data: .* has no data .* --data FOLDER; prepare it by python -m recipes\.prepare
        evaluate(replace(options, data=other), ALONE) | ValueError | made with another tokenizer
        evaluate(replace(options, data=data, length=97), ALONE)
            | ValueError | length=97: must be at most 96, the maximum of .*bert
    """)


def test_zero_shot_tasks_take_them(folders):
    model = DiffusionLM(folders["modernbert"], samples=2)
    requests = [Instance("loglikelihood", {}, ("We", " will build"), 0, metadata=("task", 0, 1))]
    ((score, greedy),) = model.loglikelihood(requests, disable_tqdm=True)
    assert score < 0 and greedy is False and model.length == 96
    text = model.apply_chat_template([{"role": "user", "content": "No."}])
    assert (
        text.endswith("[SEP][assistant]")
        and model.chat_template(True)
        and model.chat_template(False) is None
    )
    going_on = model.apply_chat_template(
        [{"role": "assistant", "content": "We"}], add_generation_prompt=False
    )
    assert going_on.endswith("[assistant] We")
    until = {"until": [], "max_gen_toks": 4}
    requests = [Instance("generate_until", {}, (text, until), 0, metadata=("task", 0, 1))]
    assert len(model.generate_until(requests, disable_tqdm=True)) == 1
    beginning = model.saved.beginning
    assert len(beginning) == 1 and model._words("We")[:1] == beginning


def test_options_that_a_model_does_not_support_are_refused(folders, tmp_path):
    for kind in (Options, EvaluateOptions):
        with pytest.raises(
            ValueError, match=r"model: must be given once, as RUN or by --model; neither is given"
        ):
            kind()
        with pytest.raises(ValueError, match="got 'a' and 'b'"):
            kind(run="a", model="b")
    refused_with(bert=folders["bert"], tmp_path=tmp_path)(r"""
        main(["--model", bert, "--prompt", "Hello", "--chat"]) | SystemExit | has no chat template
        main(["--model", bert, "--prompt", "We", "--length", "200"])
            | SystemExit | length=200: must be at most 96, the maximum
        main([bert, "--family", "nobody"]) | SystemExit | family='nobody'
        main([str(tmp_path)]) | SystemExit | it has no config\.json of a third-party model
    """)
