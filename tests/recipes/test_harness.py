import json
import os
import subprocess
import sys
from copy import copy
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.utils import make_table
from zoo.runs import LENGTH, publish_tiny, publishes

import ddlib as dd
from recipes.generation.prompt import batches
from recipes.generation.samples import until
from recipes.harness import DiffusionLM, Row, key

published = publishes("clusters, xi")


@pytest.fixture(scope="module")
def model(run):
    return DiffusionLM(str(run), samples=4, batch_size=3)


def request(*arguments, doc=0, kind="loglikelihood"):
    return Instance(kind, {}, arguments, 0, metadata=("task", doc, 1))


def scores_of(model, *pairs):
    return [
        score
        for score, _ in model.loglikelihood([request(*pair) for pair in pairs], disable_tqdm=True)
    ]


def rows_of(model, monkeypatch, *requests):
    """The texts that are measured for the requests."""
    with monkeypatch.context() as patch:
        patch.setattr(model, "_bounds", lambda rows, _: seen.extend(rows) or [0.0] * len(rows))
        seen: list[Row] = []
        model.loglikelihood(list(requests), disable_tqdm=True)
    return seen


def test_the_score_is_minus_the_mean_of_bounds_without_the_beginning(model):
    saved = model.saved
    x = torch.tensor([[saved.special.bos, *saved.encode("The state of our union")]])
    first = key(request("The state of", " our union"), "The state of")
    expected = []

    def denoiser(z, t):
        return saved.denoiser(torch.cat([x[:, :1], z[:, 1:]], 1), t)

    for number in range(first, first + 4):
        noise = dd.KeyedGenerator(0, 0, torch.tensor([number]))
        with torch.no_grad():
            bound = dd.bound(saved.process, denoiser, x, noise, parameterization="posterior")
        expected.append(float(bound.total[:, 1:].sum()))
    assert scores_of(model, ("The state of", " our union"))[0] == pytest.approx(
        -sum(expected) / 4, rel=1e-5
    )


def test_scores_do_not_depend_on_batch_or_order(run, model):
    pairs = [
        ("The state of", " our union"),
        ("The state of", " free people"),
        ("", "No."),
        ("We", " pay for them"),
    ]
    expected = scores_of(model, *pairs)
    assert scores_of(DiffusionLM(str(run), samples=4), *pairs) == pytest.approx(expected, rel=1e-5)
    assert scores_of(model, *pairs[::-1])[::-1] == pytest.approx(expected, rel=1e-5)


def test_choices_of_a_question_share_times_and_noise(model):
    """The same completion gets the same score; a question of another number gets other noise."""
    same = (
        request("The state", " of"),
        request("The state", " of"),
        request("The state", " of", doc=1),
    )
    (one, _), (two, _), (other, _) = model.loglikelihood(list(same), disable_tqdm=True)
    assert one == two and one != other


def test_choices_of_a_question_meet_the_same_noisy_context(model):
    context = "The state of"
    choices = (" our union", " roads")
    seen = watched(
        model,
        lambda: [model.loglikelihood([request(context, c)], disable_tqdm=True) for c in choices],
    )
    shared = 1 + len(model.saved.encode(context))
    assert len(seen) == 2 and torch.equal(seen[0][:, :shared], seen[1][:, :shared])
    assert seen[0].shape[1] != seen[1].shape[1]


def watched(model, call):
    """The states that the network sees."""
    seen = []
    network = model.saved.model
    handle = network.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    call()
    handle.remove()
    return seen


def test_times_of_a_question_are_stratified():
    for doc in range(5):
        start = key(request("The", " state", doc=doc), "The")
        t = dd.sample_times(16, generator=dd.KeyedGenerator(0, 0, torch.arange(start, start + 16)))
        assert sorted((t * 16).long().tolist()) == list(range(16))


def test_scores_per_token(run, model):
    context = "The state of"
    completion = " our union"
    size = len(model.saved.encode(context + completion))
    per_token = scores_of(DiffusionLM(str(run), samples=4, per_token=True), (context, completion))[
        0
    ]
    assert per_token * size == pytest.approx(scores_of(model, (context, completion))[0], rel=1e-5)


def test_greedy_is_never_claimed(model):
    assert model.loglikelihood([request("The", " state")], disable_tqdm=True)[0][1] is False


def test_the_conditional_score_leaves_the_context_clean(run, model, monkeypatch):
    conditional = DiffusionLM(str(run), samples=4, conditional=True)
    question = request("The state of ", "our union")
    (row,) = rows_of(conditional, monkeypatch, question)
    assert row.given == 1 + len(conditional.saved.encode("The state of"))
    assert rows_of(model, monkeypatch, question)[0].given == 1
    seen = watched(conditional, lambda: scores_of(conditional, ("The state of ", "our union")))
    words = torch.tensor(row.words)
    for z in seen:
        assert bool((z[:, : row.given] == words[: row.given]).all())
    assert any(bool((z[:, row.given :] != words[row.given :]).any()) for z in seen)
    score, together = (
        scores_of(one, ("The state of ", "our union"))[0] for one in (conditional, model)
    )
    assert together < score < 0


def test_a_continuation_that_merges_with_the_context_is_measured(run, monkeypatch):
    """A token across the border is none of the context: both choices pay for their letters."""
    conditional = DiffusionLM(str(run), samples=4, conditional=True)
    context = "The state of our un"
    choices = ("ion", "ited")
    tokens = [conditional._words(context + choice) for choice in choices]
    alone = conditional._words(context)
    assert len(tokens[0]) == len(alone) and tokens[0] != alone
    assert tokens[1][: len(alone)] == alone
    rows = rows_of(conditional, monkeypatch, *(request(context, choice) for choice in choices))
    for row in rows:
        assert row.given < len(row.words) and list(row.words[: row.given]) == alone[: row.given]
    assert rows[0].words[rows[0].given] != alone[rows[0].given]
    assert max(scores_of(conditional, *((context, choice) for choice in choices))) < -1
    assert rows[0].given == rows[1].given, "the letters of the context are paid by both or none"


@pytest.mark.parametrize(("conditional", "context"), [(True, "We pay"), (True, ""), (False, "")])
def test_a_continuation_without_tokens_is_refused(run, conditional, context):
    own = DiffusionLM(str(run), samples=1, conditional=conditional)
    with pytest.raises(ValueError, match=f"^continuation='': .* {context!r}, must have"):
        scores_of(own, ("We", " pay"), (context, ""))
    assert scores_of(own, (context, " for them"))[0] < 0


def test_an_empty_continuation_together_with_its_context_is_the_context(model):
    assert scores_of(model, ("The state", "")) == scores_of(model, ("The", " state"))


def test_the_conditional_score_is_the_bound_behind_a_prompt():
    """One free position of a masked process: -log p(word | context) exactly, so the mean of bounds
    is that.
    """
    process = dd.presets.mdlm(5)
    table = torch.randn(6, 6, 5, generator=torch.Generator().manual_seed(0))

    model = object.__new__(DiffusionLM)
    model._device = torch.device("cpu")
    model.samples = 2048
    model.seed = 0
    denoiser = lambda z, t: torch.stack([table[z[:, 0], z[:, 1]]] * 2, 1)  # noqa: E731
    model.saved = SimpleNamespace(process=process, parameterization="cavity", denoiser=denoiser)
    shares = []
    for context, word in product(range(3), range(3)):
        exact = -table[context, 5].log_softmax(-1)[word]
        shares.append(float(model._bound([Row((context, word), 1, 0)])[0] / exact))
    # the same noise for all: a mask in a share t of the draws, each counted 1/t, with a deviation
    # of 6 % over 2,048
    assert shares == pytest.approx([shares[0]] * 9, rel=1e-5) and shares[0] == pytest.approx(
        1, abs=0.15
    )


@pytest.mark.parametrize("conditional", [False, True])
def test_the_choices_of_a_long_question_lose_the_same_tokens(run, monkeypatch, caplog, conditional):
    """Behind the beginning: what is left of them differs by the choice alone."""
    own = DiffusionLM(str(run), samples=1, conditional=conditional)
    context = "The state of our union is strong. " * 9
    choices = (" No.", " No. No. No.", " We pay")
    longest = max(len(own._words(context + choice)) for choice in choices)
    rows = rows_of(own, monkeypatch, *(request(context, choice) for choice in choices))
    for row, choice in zip(rows, choices, strict=True):
        bos, *words = own._words(context + choice)
        assert row.words == (bos, *words[longest - LENGTH :])
    assert max(len(row.words) for row in rows) == LENGTH
    assert len({row.given for row in rows}) == 1
    assert (rows[0].given > 1) if conditional else (rows[0].given == 1)
    (message,) = caplog.messages
    assert f"longer than the model's {LENGTH} tokens: 1. The beginning" in message


def test_a_long_question_shortens_no_other_one_and_no_text_without_context(model, monkeypatch):
    """Texts without context are those of ``acc_mutual_info``."""
    long = "The state of our union is strong. " * 9
    questions = [(long, " No.", 0), ("", " No.", 0), ("We pay", " for them", 1)]
    rows = rows_of(model, monkeypatch, *(request(*pair, doc=doc) for *pair, doc in questions))
    assert [len(rows[0].words), rows[0].given] == [LENGTH, 1]
    for row, (context, choice, _) in zip(rows[1:], questions[1:], strict=True):
        assert list(row.words) == model._words(context + choice)


def test_a_continuation_longer_than_the_sequence_loses_its_beginning(model, monkeypatch, caplog):
    long = "The state of our union is strong. " * 9
    rows = rows_of(model, monkeypatch, request("We pay", long), request("We pay", " No."))
    bos, *words = model._words("We pay" + long)
    assert rows[0].words == (bos, *words[1 - LENGTH :])
    assert list(rows[1].words) == model._words(" No.")
    assert "a continuation is longer" in caplog.messages[1]


def test_rolling_counts_every_word_once(model):
    text = "The state of our union is strong. " * 5
    words = [model.saved.special.bos, *model.saved.encode(text)]
    assert len(words) > 2 * LENGTH
    rows = []
    model._bounds, bounds = (
        lambda given, quiet: rows.extend(given) or bounds(given, quiet),
        model._bounds,
    )
    try:
        found = model.loglikelihood_rolling(
            [request(text, kind="loglikelihood_rolling")] * 2, disable_tqdm=True
        )
    finally:
        del model._bounds
    half = rows[: len(rows) // 2]
    assert [word for row in half for word in row.words] == words
    assert [row.given for row in half] == [1] + [0] * (len(half) - 1)
    assert len({row.key for row in half}) == len(half)
    assert found[0] == found[1] < 0


def test_text_is_written_behind_the_context_up_to_a_stop(model):
    many = {"until": [], "max_gen_toks": 6}
    requests = [
        request("The state of", many, doc=0, kind="generate_until"),
        request("We", many, doc=1),
    ]
    plain = model.generate_until(requests, disable_tqdm=True)
    assert all(isinstance(text, str) for text in plain) and any(plain)
    shorter = model.generate_until(
        [request("We", many | {"max_gen_toks": 2}, doc=1)], disable_tqdm=True
    )[0]
    assert len(shorter) < len(plain[1])
    assert model.generate_until(requests[::-1], disable_tqdm=True)[::-1] == plain
    warm = {"until": [], "do_sample": True, "temperature": 1.0}
    again = model.generate_until(
        [request("The", warm, kind="generate_until")] * 2, disable_tqdm=True
    )
    assert again[0] != again[1]


def test_a_long_context_leaves_room_to_write(model):
    job = model._job(
        request("The state of our union. " * 9, {"max_gen_toks": 5, "temperature": 0.7})
    )
    assert (len(job.sample.row.states), job.temperature, job.limit) == (LENGTH - 5, 0.0, 5)
    job = model._job(request("We", {"do_sample": True, "temperature": 0.7}))
    assert job.sample.row.states[0] == model.saved.special.bos
    assert (job.temperature, job.limit) == (0.7, LENGTH // 2)


def test_stops():
    assert until("one. two. three", ["three", ". "]) == "one"
    assert until("one", "\n") == "one" and until("one", ["", "x"]) == "one"


def test_batches_hold_sequences_of_like_length():
    words = ["a", "bb", "c", "dd", "e"]
    assert list(batches(words, len, 2)) == [[0, 2], [4], [1, 3]]


@pytest.mark.parametrize(
    "values", [{"samples": 0}, {"length": 1}, {"batch_size": "auto"}, {"sampler": "none"}]
)
def test_bad_arguments_are_refused(run, values):
    with pytest.raises(ValueError, match=next(iter(values))):
        DiffusionLM(str(run), **values)


def test_an_order_of_masks_in_uniform_noise_is_refused_before_the_network_is_loaded(
    tmp_path, monkeypatch
):
    run = publish_tiny("uniform", tmp_path).run
    monkeypatch.setattr(
        "recipes.model_io.opening.load_network", lambda *_: pytest.fail("the network was loaded")
    )
    with pytest.raises(ValueError, match="sampler='first_hitting': "):
        DiffusionLM(str(run), sampler="first_hitting")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pretrained": "x", "smaples": 4}, "smaples: no such key; did you mean samples"),
        (
            {"pretrained": "x", "foo": 1},
            "foo: no such key; there are pretrained, samples, .*revision$",
        ),
        ({"pretained": "x"}, r"pretained: no such key; did you mean pretrained\?"),
        ({"samples": 4}, "pretrained: is missing"),
    ],
)
def test_a_wrong_key_of_model_args_is_refused_with_the_nearest_one(arguments, message):
    with pytest.raises(ValueError, match=rf"^--model_args {message}"):
        DiffusionLM.create_from_arg_obj(
            arguments, {"batch_size": 1, "max_batch_size": None, "device": None}
        )


def test_text_that_a_model_of_symbols_cannot_read_is_refused_by_name(model):
    class Symbols:
        token = None
        reads_all = False
        become = "cannot be read"
        unknown = staticmethod(lambda text: {"Z": 1} if "Z" in text else {})

    own = copy(model)
    own.saved = SimpleNamespace(symbols=Symbols(), name="runs/dna", beginning=[], encode=list)
    message = "text: 1 symbols are not in the tokenizer of runs/dna and cannot be read: 'Z'"
    with pytest.raises(ValueError, match=message):
        own._words("ACZ")
    assert own._words("ACG") == ["A", "C", "G"]


TASK = """
task: local_union
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: acc
"""


def test_lm_eval_finds_the_model_and_runs_a_local_task(run, model, tmp_path):
    questions = [
        ("The state of our", ["union", "people"], 0),
        ("Tonight we", ["celebrate", "roads"], 1),
    ]
    file = tmp_path / "questions.jsonl"
    lines = [
        json.dumps({"context": c, "choices": options, "answer": a}) for c, options, a in questions
    ]
    file.write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "task.yaml").write_text(TASK.format(file=file), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "recipes.harness",
        "--model",
        "ddlib",
        "--tasks",
        "local_union",
    ]
    command += ["--model_args", f"pretrained={run},samples=4", "--include_path", str(tmp_path)]
    command += ["--output_path", str(tmp_path / "out"), "--log_samples"]
    alone = {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        command, env=os.environ | alone, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(
        next((tmp_path / "out").rglob("results_*.json")).read_text(encoding="utf-8")
    )
    samples = (
        next((tmp_path / "out").rglob("samples_*.jsonl")).read_text(encoding="utf-8").splitlines()
    )
    right = 0
    for line, (context, choices, answer) in zip(map(json.loads, samples), questions, strict=True):
        task = "local_union", line["doc_id"], 1
        requests = [Instance("loglikelihood", {}, (context, f" {c}"), 0, task) for c in choices]
        scores = [score for score, _ in model.loglikelihood(requests, disable_tqdm=True)]
        assert [float(response[0][0]) for response in line["resps"]] == pytest.approx(
            scores, rel=1e-5
        )
        right += scores.index(max(scores)) == answer
    assert results["results"]["local_union"]["acc,none"] == right / 2
    assert results["config"]["checkpoint_sha256"] == model.saved.sha256
    assert results["config"]["is_greedy"] == "not computed, always False"


def test_the_table_of_lm_eval_names_its_columns():
    """Before version 1, pytablewriter ignores them and heads the columns A to I."""
    pytest.importorskip(
        "pytablewriter", minversion="1", reason="an environment of before `make install`"
    )
    results = {"task": {"alias": "task", "acc,none": 0.5, "acc_stderr,none": 0.1}}
    table = make_table({"results": results, "versions": {"task": 1}, "n-shot": {"task": 0}})
    assert table.splitlines()[0].replace(" ", "").startswith("|Tasks|Version|Filter|n-shot|Metric|")
