"""A tiny causal model made a diffusion model: bound and samples before and after, resumed, saved,
refused.
"""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pretrained_by_others import SHORT, SIZE, small_tokenizer, write_small
from safetensors.torch import load_file
from training_runs import curve
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    PreTrainedTokenizerFast,
)

import ddlib as dd
import recipes
from recipes import adapt, evaluate, generate, owt, train
from recipes import prepare as prepare_command
from recipes.data import Source, prepare
from recipes.data.tokens import load_tokenizer
from recipes.logging import read_metrics
from recipes.model_io import open_saved

SMALL = [
    "--data.length",
    "16",
    "--batch",
    "4",
    "--output.folder",
    "run",
    "--output.validate-sequences",
    "8",
]
SMALL += [
    "--output.sample-steps",
    "4",
    "--output.samples",
    "1",
    "--optimizer.lr",
    "0.01",
    "--optimizer.warmup",
    "2",
]
SMALL += ["--output.log-every", "1", "--output.validate-every", "4", "--output.save-every", "4"]
SMALL += ["--output.no-tensorboard"]


def write_tokenizer(folder: Path, *more: str) -> int:
    tokens = small_tokenizer(marks=("<|endoftext|>", *more))
    PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token="<|endoftext|>").save_pretrained(
        folder
    )
    return tokens.get_vocab_size()


@pytest.fixture
def llama(tmp_path, monkeypatch) -> Path:
    """A folder with a tiny Llama whose table has rows beyond its tokenizer, and text beside it."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{number}. {SHORT[number % 3]} {SHORT[0]}" for number in range(60)]
    Path("texts").mkdir()
    Path("texts/mine.txt").write_text("\n\n".join(lines) + "\n")
    Path("one.jsonl").write_text(json.dumps({"text": SHORT[1]}) + "\n")
    end = "<|endoftext|>"
    return write_small(Path("llama"), small_tokenizer(marks=(end,)), "llama", eos_token=end)


def run(*words: str) -> None:
    adapt.main([words[0], "--from", "llama", "--text", "texts", *SMALL, *words[1:]])


def bounds() -> list[tuple[int, float]]:
    records = (record for _, record in read_metrics(Path("run/metrics.jsonl")))
    return [(one["step"], one["nats_per_token"]) for one in records if one["kind"] == "bound"]


def test_a_causal_model_becomes_a_diffusion_model_and_forgets_where_it_came_from(llama, capsys):
    run("mdlm", "--steps", "4", "--model.anneal", "2")
    (begin, before), (end, after) = bounds()
    assert (begin, end) == (0, 4) and after < before - 0.05
    assert {path.name for path in Path("run/samples").iterdir()} == {
        "step_00000000.txt",
        "step_00000004.txt",
    }
    shutil.rmtree(llama)
    saved = open_saved("run")
    assert (
        type(saved.model).__name__ == "CausalLM"
        and saved.model.shift == 1
        and saved.model.sight == 1
    )
    assert saved.process.vocab_size == 271 and saved.special.eos == saved.special.pad == 270, (
        "no word was added"
    )
    table = saved.model.network.get_input_embeddings().weight
    assert saved.model.decoder.weight is table and len(table) == 277


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(llama):
    """The future that is seen is drawn anew at every step, from the step's own seed."""
    run("mdlm", "--steps", "8", "--model.anneal", "8")
    whole = curve(Path("run"))
    shutil.rmtree("run/checkpoints/step_00000008")
    run("mdlm", "--steps", "8", "--model.anneal", "8")
    assert curve(Path("run")) == whole
    shutil.rmtree("run/checkpoints")  # as if it had been killed before the first
    run("mdlm", "--steps", "8", "--model.anneal", "8")
    assert curve(Path("run")) == whole and [step for step, _ in bounds()] == [0, 4, 8]
    train.main(["run/recipe.yaml"])  # an ordinary recipe, whose folder the other commands take
    generate.main(["run", "--samples", "1", "--length", "8", "--steps", "4"])
    short = ["--scorer", "none", "--samples", "1", "--steps", "2", "--replicates", "1"]
    evaluate.main(["run", "--sequences", "8", "--out", "bound.json", *short])
    assert Path("bound.json").exists()
    for changed in (["--model.anneal", "2"], ["--model.anneal", "8", "--model.shift", "0"]):
        with pytest.raises(SystemExit, match=r"is of another run: model\.(anneal|shift) is"):
            run("mdlm", "--steps", "9", *changed)


def test_clusters_are_those_of_its_own_embeddings_and_begin_at_their_means(llama):
    run("hdlm", "--steps", "4", "--process.clusters", "6", "--optimizer.lr", "0")
    saved = open_saved("run")
    assert saved.process.levels == (271, 6, 1)
    table = saved.model.network.get_input_embeddings().weight[:271]
    parents = saved.clusters.parents[0]
    found = dd.hierarchies.semantic_clusters(
        table.detach(), [6], nested="up", fingerprint=saved.clusters.fingerprint
    )
    assert torch.equal(found.parents[0], parents)
    means = torch.stack([table[parents == cluster].mean(0) for cluster in range(6)])
    assert torch.allclose(saved.model.clusters.weight[:6], means, atol=1e-6)
    assert torch.allclose(saved.model.clusters.weight[6], table.mean(0), atol=1e-6)


def test_adapters_train_resume_and_are_merged_on_publishing(llama):
    run("mdlm", "--steps", "8", "--model.lora", "2", "--hardware.bf16")
    whole = curve(Path("run"))
    published = Path("run/weights/model.safetensors").read_bytes()
    shutil.rmtree("run/checkpoints/step_00000008")
    run("mdlm", "--steps", "8", "--model.lora", "2", "--hardware.bf16")
    assert (
        curve(Path("run")) == whole
        and Path("run/weights/model.safetensors").read_bytes() == published
    )
    assert json.loads(Path("run/weights/config.json").read_text())["lora"] == 0
    saved = open_saved("run")
    assert bounds()[-1][1] < bounds()[0][1] and not any(
        "lora" in name for name in saved.model.state_dict()
    )


def test_it_learns_by_blocks(llama):
    """The network gets the blocks of the pace, and all of a text's in one call."""
    run("mdlm", "--steps", "8", "--pace", "blocks:size=4", "--model.anneal", "0")
    saved = open_saved("run")
    assert saved.model.block_size == 4 and bounds()[-1][1] < bounds()[0][1]


def test_a_dit_from_scratch_reads_the_same_tokens_in_the_same_order(llama):
    run("scratch", "--steps", "2", "--model.dim", "16", "--model.depth", "1", "--model.heads", "2")
    saved = open_saved("run")
    assert type(saved.model).__name__ == "DiT" and saved.process.vocab_size == 271


def test_text_can_be_prepared_beforehand_with_the_models_own_padding(llama):
    from recipes import prepare as command

    local = [
        "local",
        "--files",
        "texts",
        "--tokenizer",
        "llama",
        "--pad",
        "<|endoftext|>",
        "--out",
        "data/mine",
    ]
    command.main([*local, "--sample-by", "paragraph"])
    adapt.main(["mdlm", "--from", "llama", "--data.folder", "data/mine", "--steps", "2", *SMALL])
    assert open_saved("run").process.vocab_size == 271


def test_text_is_cut_as_prepare_cuts_it_and_the_table_is_the_same(llama, capsys):
    """Both commands cut text files line by line, and print what came of it."""
    from recipes import prepare as command
    from recipes.data import open_prepared

    for cut, held in ((None, "6"), ("paragraph", "2"), ("document", "2")):
        flags = ["--sample-by", cut] if cut else []
        where = "-".join(["data/mine", *flags])
        for extra in (2, 3):  # a folder of files, each with two paragraphs
            Path(f"texts/{extra}.txt").write_text(
                "One line.\nAnother line that is as long as a row.\n\nThe end.\n" * 3
            )
        local = [
            "local",
            "--files",
            "texts",
            "--tokenizer",
            "llama",
            "--pad",
            "<|endoftext|>",
            "--out",
            where,
        ]
        command.main([*local, "--held-out", held, "--length", "16", *flags])
        table = capsys.readouterr().out.partition("train on it")[0].splitlines()[1:]
        shutil.rmtree("run", ignore_errors=True)
        shutil.rmtree("data/adapt-llama", ignore_errors=True)
        run("mdlm", "--steps", "1", "--held-out", held, "--unknown", "0", *flags)
        printed = capsys.readouterr().out.splitlines()
        assert [line for line in printed if line in table] == table
        one, other = (open_prepared(Path(folder)) for folder in (where, "data/adapt-llama"))
        assert [d.tolist() for d in one.train] == [d.tolist() for d in other.train]
        rule = {"document": "a whole file", "paragraph": "a block between empty lines"}.get(
            cut, "a line"
        )
        assert any(f"3 .txt files, each document is {rule} (--sample-by" in line for line in table)


def test_a_validation_of_one_sequence_is_refused_before_the_first_step(llama):
    refused(
        r"--held-out 1: must be at least 2, the mean over one", "--from", "llama", "--held-out", "1"
    )
    assert not Path("data").exists(), "no text is prepared that no run could take"
    prepare(
        replace(adapt.corpus_for("llama", "texts", 2), validation=Source(path="one.jsonl")),
        Path("data/mine"),
    )
    message = (
        r"data/mine: holds 1 document for validation, must hold at least 2: .* --held-out "
        r"NUMBER, or --validation"
    )
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        adapt.main(["mdlm", "--from", "llama", "--data.folder", "data/mine", *SMALL])
    message = r"output.validate_sequences=1: must be at least 2, the mean over one sequence"
    with pytest.raises(SystemExit, match=message):
        run("mdlm", "--output.validate-sequences", "1")
    assert not Path("run/checkpoints").exists() and not Path("run/metrics.jsonl").exists()


@pytest.mark.parametrize(
    "flag", [["--held-out", "1"], ["--sample-by", "document"], ["--unknown", "0.5"]], ids=" ".join
)
def test_arguments_of_the_preparation_are_refused_for_prepared_text(llama, flag):
    prepare(adapt.corpus_for("llama", "texts", 2), Path("data/mine"))
    with pytest.raises(SystemExit, match=rf"error: {' '.join(flag)}: not with --data.folder alone"):
        adapt.main(["mdlm", "--from", "llama", "--data.folder", "data/mine", *SMALL, *flag])


def test_a_second_text_for_one_model_is_answered_by_the_flags_that_it_needs(llama):
    run("mdlm", "--steps", "1")
    Path("other.txt").write_text("\n".join(f"{number}. {SHORT[1]}" for number in range(60)))
    words = ["mdlm", "--from", "llama", *SMALL, "--steps", "1", "--text", "other.txt"]
    with pytest.raises(
        SystemExit, match=r"contains other data.* A second text requires separate folders"
    ) as error:
        adapt.main(words)
    flags = str(error.value).partition("repeat the command with ")[2].split()
    assert flags == ["--data.folder", "data/adapt-llama-2", "--output.folder", "run-2"]
    adapt.main([*words, *flags])
    adapt.main([*words, *flags])  # resumes
    assert open_saved("run-2").recipe.data.folder == Path("data/adapt-llama-2")


@pytest.mark.parametrize("module", ["adapt", "owt"])
def test_prepare_ends_with_a_command_that_begins_at_the_weights_beside_the_tokenizer(
    llama, module, capsys
):
    name = "llama"
    if module == "owt":
        name = "bert"
        words = write_tokenizer(Path("bert"), "[MASK]", "[PAD]")
        PreTrainedTokenizerFast.from_pretrained(name, mask_token="[MASK]").save_pretrained(name)
        BertForMaskedLM(BertConfig(vocab_size=words + 1, **SIZE)).save_pretrained(name)
    prepare_command.main(["local", "--files", "texts", "--tokenizer", name, "--out", "data/mine"])
    begin = f"or start from the weights of {name}: python -m recipes.{module} "
    (line,) = (one for one in capsys.readouterr().out.splitlines() if one.startswith(begin))
    small = ["--steps", "1", "--data.length", "16", "--batch", "4", "--output.no-tensorboard"]
    {"adapt": adapt, "owt": owt}[module].main([*line.removeprefix(begin).split(), *small])
    kind = {"adapt": "CausalLM", "owt": "MaskedLM"}[module]
    assert type(open_saved("runs/mine").model).__name__ == kind


def refused(message: str, *words: str) -> None:
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        adapt.main(["mdlm", "--text", "texts", *SMALL, *words])


def test_models_that_cannot_be_adapted_are_refused_before_any_text_is_prepared(llama, monkeypatch):
    shutil.copytree(llama, "many")
    write_tokenizer(Path("many"), *(f"<{number}>" for number in range(7)))
    refused(
        "--from many: its tokenizer has 278 tokens, must have at most 277, the rows of",
        "--from",
        "many",
    )
    shutil.copytree(llama, "pickled")
    torch.save(load_file("pickled/model.safetensors"), "pickled/pytorch_model.bin")
    Path("pickled/model.safetensors").unlink()
    refused(
        "--from pickled: has pytorch_model.bin and no model.safetensors.* write safetensors",
        "--from",
        "pickled",
    )
    refused("shift=3: must be 0 or 1", "--from", "llama", "--model.shift", "3")
    monkeypatch.setitem(sys.modules, "peft", None)
    refused(
        r"lora=2 needs peft: pip install 'ddlib\[adapt\]'", "--from", "llama", "--model.lora", "2"
    )
    with pytest.raises(SystemExit, match="--from: must name a causal language model"):
        adapt.main(["mdlm"])
    assert not Path("data").exists() and not Path("run").exists()


def test_other_models_and_too_little_text_are_refused_by_name(llama):
    BertForMaskedLM(BertConfig(vocab_size=280, **SIZE)).save_pretrained("bert")
    write_tokenizer(Path("bert"))
    Path("empty").mkdir()
    refused(
        "architecture: 'bert' has an encoder, must be a causal language model", "--from", "bert"
    )
    refused("name_or_path='empty': this folder has no config.json", "--from", "empty")
    refused(
        "--from nowhere/here: no folder nowhere/here, and the hub does not answer",
        "--from",
        "nowhere/here",
    )
    refused("path='none.txt': there is no", "--from", "llama", "--text", "none.txt")
    message = r"data\.length=4000: must be at most \d+, the tokens of the train"
    refused(message, "--from", "llama", "--data.length", "4000")
    assert not Path("run").exists()


def test_more_tokens_than_positions_are_refused_by_name(llama):
    message = "data.length=32: must be at most 24, the positions of the network"
    refused(message, "--from", "llama", "--data.length", "32")


def test_a_run_on_a_text_keeps_the_chat_template(llama):
    chat = [{"role": "user", "content": "We pay."}]
    run("mdlm", "--steps", "1")
    pipe = recipes.pipeline("run", device="cpu")
    with pytest.raises(ValueError, match="chat: the tokenizer of run has no chat template"):
        pipe.chat(chat)
    shutil.rmtree("run")
    tokenizer = AutoTokenizer.from_pretrained("llama")
    tokenizer.chat_template = "{{ messages[0]['content'] }} And we"
    tokenizer.save_pretrained("llama")
    run("mdlm", "--steps", "1")
    for folder in ("run", "run/weights"):
        pipe = recipes.pipeline(folder, device="cpu")
        assert pipe.files.chat(chat) == "We pay. And we"
        prompt = tuple(pipe.files.encode("We pay. And we"))
        one = pipe.chat(chat, steps=2)[0]
        assert one.tokens[: len(prompt)] == prompt and len(one.tokens) > len(prompt)


def test_a_run_that_is_not_there_is_refused_by_its_folder():
    with pytest.raises(SystemExit, match=r"--from nowhere: must be the folder of a run of ddlib"):
        adapt.main(["run", "--from", "nowhere", "--sft", "chats.jsonl"])


def test_a_model_that_is_not_there_costs_one_request(llama, monkeypatch):
    tries = []

    def unreachable(self, name, timeout):
        tries.append(name)
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    refused(r"--from m/none: no folder m/none, and the hub does not answer", "--from", "m/none")
    with pytest.raises(
        FileNotFoundError, match=r"tokenizer='gpt2': no folder gpt2, and the hub does not answer"
    ):
        load_tokenizer("gpt2")
    assert tries == ["m/none", "gpt2"]


def test_help_needs_no_model(capsys):
    for words in (["--help"], ["mdlm", "--help"]):
        with pytest.raises(SystemExit) as stopped:
            adapt.main(words)
        assert not stopped.value.code
        assert "--model.kind" in capsys.readouterr().out
