"""Instruction tuning by ``recipes.adapt --sft``: of causal models and of runs, also by adapters."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from pretrained_by_others import write
from training_runs import curve

from recipes import adapt, evaluate, generate
from recipes.data import open_prepared
from recipes.logging import read_metrics
from recipes.model_io import open_saved

TEMPLATE = (
    "{% for one in messages %}[{{ one['role'] }}]{% if one['role'] == 'assistant' %}"
    "{% generation %} {{ one['content'] }}[SEP]{% endgeneration %}"
    "{% else %} {{ one['content'] }}[SEP]{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
SMALL = ["--data.length", "80", "--batch", "4", "--held-out", "8", "--output.folder", "run"]
SMALL += ["--output.sample-steps", "4", "--output.samples", "1", "--output.log-every", "1"]
SMALL += ["--output.validate-sequences", "8", "--output.validate-every", "4"]
SMALL += ["--output.save-every", "4", "--output.no-tensorboard"]
SMALL += ["--optimizer.lr", "0.01", "--optimizer.warmup", "2"]
SFT = ["--sft", "chats.jsonl", "--template", "chat.jinja"]


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder with conversations, a template with spans, and a tiny causal model without them."""
    monkeypatch.chdir(tmp_path)
    write(Path("causal"), "causal")
    chats = []
    for number in range(24):
        turns = [("user", f"No. {number}?"), ("assistant", f"The {number % 5}."), ("user", "So?")]
        turns = [*turns, ("assistant", "Yes.")] if number % 3 else turns[:2]
        chats.append({"messages": [dict(role=role, content=text) for role, text in turns]})
    Path("chats.jsonl").write_text("".join(json.dumps(one) + "\n" for one in chats))
    Path("chat.jinja").write_text(TEMPLATE)
    return tmp_path


def run(*words: str, variant: str = "mdlm", name: str = "causal") -> None:
    adapt.main([variant, "--from", name, *SFT, *SMALL, *words])


def bounds(folder: str = "run") -> list[tuple[int, float]]:
    records = (record for _, record in read_metrics(Path(folder) / "metrics.jsonl"))
    return [(one["step"], one["nats_per_token"]) for one in records if one["kind"] == "bound"]


def weights(folder: str) -> dict[str, torch.Tensor]:
    return open_saved(folder).model.state_dict()


def test_a_causal_model_learns_answers_and_keeps_the_template(place, capsys):
    run("--steps", "8")
    printed = capsys.readouterr()
    assert "answers=each" in printed.out and "chat template is not kept" not in printed.err
    (begin, before), (_, _), (end, after) = bounds()
    assert (begin, end) == (0, 8) and after < before - 0.1
    data = open_prepared(Path("data/sft-causal"))
    saved = open_saved("run")
    assert saved.recipe.loss["count_padding"] and saved.recipe.data.folder == data.folder
    assert saved.special.eos == data.eos_id == data.tokenizer.token_to_id("[SEP]")
    sample = Path("run/samples/step_00000008.txt").read_text()
    assert "[assistant]" in sample  # behind a prompt of the validation data
    generate.main(["run", "--chat", "--prompt", "So?", "--samples", "2", "--steps", "4"])
    capsys.readouterr()
    short = ["--scorer", "none", "--samples", "1", "--steps", "2", "--replicates", "2"]
    evaluate.main(["run", *short, "--out", "bound.json"])
    bound = json.loads(Path("bound.json").read_text())["bound"]["nats_per_token"]
    assert bound["value"] > 0 and bound["error"] > 0


def test_a_stopped_run_goes_on(place):
    run("--steps", "8", "--model.anneal", "8")
    whole = curve(Path("run"))
    shutil.rmtree("run/checkpoints/step_00000008")
    run("--steps", "8", "--model.anneal", "8")
    assert curve(Path("run")) == whole


def test_adapters_learn_answers(place):
    adapters = ["--model.lora", "8", "--optimizer.lr", "0.03", "--model.anneal", "0"]
    run("--steps", "24", *adapters, "--answers", "last", "--loss.no-count-padding")
    assert bounds()[-1][1] < bounds()[0][1] - 0.1
    assert len(open_prepared(Path("data/sft-causal")).train) == 16
    assert not any("lora" in name for name in weights("run"))


@pytest.fixture
def trained(place) -> str:
    """A run of a causal model on a text, in two levels."""
    Path("text.txt").write_text("".join(f"The {number} is a number.\n" for number in range(40)))
    words = ["hdlm", "--from", "causal", "--text", "text.txt", "--process.clusters", "6"]
    place_of = SMALL.index("--output.folder") + 1
    words = [*words, *SMALL[: place_of - 1], *SMALL[place_of + 1 :], "--steps", "2"]
    adapt.main([*words, "--data.length", "16", "--output.folder", "base"])
    return "base"


@pytest.mark.parametrize("lora", [[], ["--model.lora", "2"]], ids=["whole", "adapters"])
def test_a_run_learns_answers_from_its_weights_in_its_process(place, trained, lora):
    before = weights(trained)
    run("--steps", "1", "--optimizer.lr", "0", *lora, variant="run", name=trained)
    saved = open_saved("run")
    assert (
        saved.process.levels
        == open_saved(trained).process.levels
        == (
            saved.process.vocab_size,
            6,
            1,
        )
    )
    assert saved.recipe.start == trained and saved.recipe.model["anneal"] == 0
    after = weights("run")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    shutil.rmtree("run")
    run("--steps", "8", *lora, variant="run", name=trained)
    assert bounds()[-1][1] < bounds()[0][1]
    # again, in its own template
    words = ["--steps", "1", "--output.folder", "second", "--data.folder", "data/second"]
    adapt.main(["run", "--from", "run", "--sft", "chats.jsonl", *SMALL, *words])
    first, second = (open_prepared(Path("data") / name) for name in ("sft-base", "second"))
    assert [one.tolist() for one in first.train] == [one.tolist() for one in second.train]


def test_blocks_take_one_answer_at_the_end_of_a_sequence(place):
    blocks = ["--pace", "blocks:size=4", "--model.anneal", "0"]
    run("--steps", "4", *blocks)
    assert open_saved("run").model.block_size == 4 and bounds()[-1][1] < bounds()[0][1]
    generate.main(["run", "--chat", "--prompt", "So?", "--samples", "1", "--steps", "4"])
    shutil.rmtree("run")
    with pytest.raises(SystemExit, match=r"given tokens in a later block .*--answers each or last"):
        run("--answers", "all", "--data.folder", "data/all", *blocks)


def refused(message: str, *words: str, variant: str = "mdlm", name: str = "causal") -> None:
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        adapt.main([variant, "--from", name, *words])


def test_arguments_that_do_not_fit_are_refused_before_any_data_are_made(place):
    refused(r"--text t: not with --sft chats.jsonl, which names the data", *SFT, "--text", "t")
    refused(r"--unknown 0.1: not with --sft", *SFT, "--unknown", "0.1")
    refused(r"--template chat.jinja: only with --sft FILE", "--template", "chat.jinja")
    refused(r"--held-out 1: must be at least 2", *SFT, "--held-out", "1")
    refused(r"source.answers: Input should be 'each', 'last' or", *SFT, "--answers", "some")
    refused(r"has no {% generation %}.*--template FILE", *SFT[:2])
    refused(r"there is no \.jsonl file", "--sft", "none.jsonl", *SFT[2:])
    assert not Path("data/sft-causal").exists() and not Path("runs").exists()
    message = r"data.length=8: .*/sft-causal holds sequences of up to \d+ tokens, .*--longest"
    refused(message, *SFT, "--data.length", "8")


def test_a_run_needs_conversations(trained):
    refused("base: is a run of ddlib, must come with conversations", variant="run", name=trained)
    with pytest.raises(SystemExit, match="must be a variant, one of run"):
        adapt.main(["mdlm", "--from", trained, *SFT])
    (Path(trained) / "weights" / "counts.safetensors").touch()
    refused("has the frequencies of the tokens of its text", *SFT, variant="run", name=trained)
