"""Two tokenizers that meet: compared wherever the weights of one read the ids of the other, both
named.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pretrained_by_others import SHORT, small_tokenizer, write_small
from tokenizers import AddedToken
from transformers import (
    LlamaForCausalLM,
)
from zoo.runs import ALONE, publish_tiny, write_texts

from ddlib.hierarchies import save_clusters, semantic_clusters
from ddlib.vocabulary import fingerprint
from ddlib_models.io.manifest import read_facts, write_manifest
from recipes import adapt, clusters, train
from recipes.data import Layout, local, open_prepared, prepare
from recipes.data.agreement import Vocabulary, check_same_tokens, prepare_with
from recipes.engine.run import Run
from recipes.model_io import open_saved, publish

OTHER = ("Quark jumps vex lazy kings by foggy moonlight,", "zebras quiz five dozen jovial wizards.")


def model(folder, tokens, kind="bert"):
    return write_small(folder, tokens, kind, layers=1, mask_token="[MASK]", eos_token="[SEP]")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_texts(Path("text.jsonl"), SHORT)
    return tmp_path


def recipe(folder, kind="masked_lm", **changes):
    values = {
        "data": {"folder": str(folder), "length": 16},
        "process": {"kind": "mdlm"},
        "model": {"kind": kind, "name_or_path": "mine"},
        "optimizer": {"lr": 1e-3, "warmup": 2, "ema": 0.0},
        "output": {
            "folder": "run",
            "validate_sequences": 4,
            "sample_steps": 2,
            "samples": 1,
            "tensorboard": False,
        },
        "hardware": {"threads": 1},
        "batch": 4,
        "steps": 1,
    }
    Path("mine.yaml").write_text(yaml.safe_dump(values | changes))
    return "mine.yaml"


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_text_that_another_tokenizer_prepared_is_refused_before_any_work_and_both_are_named(
    here, kind
):
    """As many tokens, so that every size fits and only the ids mean other tokens."""
    theirs = small_tokenizer(OTHER)
    mine = small_tokenizer()
    assert theirs.get_vocab_size() == mine.get_vocab_size()
    model("mine", mine, kind), model("theirs", theirs, kind)
    prepare(local("text.jsonl", "theirs", 8), Path("data/theirs"))
    lines = [fingerprint(one.get_vocab())[:12] for one in (theirs, mine)]
    message = (
        r"data.folder=data/theirs: made with another tokenizer than the model's. The data's "
        r"is theirs \(274 tokens, "
        rf"fingerprint {lines[0]}\), the model's mine \(274 tokens, fingerprint "
        rf"{lines[1]}\); id \d+ is '.+' of the "
        r"data's and '.+' of the model's. .*prepare local --files FILES --tokenizer mine "
        r"--out FOLDER"
    )
    backbone = {"bert": "masked_lm", "llama": "causal_lm"}[kind]
    with pytest.raises(SystemExit, match=message):
        train.main([recipe("data/theirs", backbone)])
    if kind == "llama":
        for variant in ("mdlm", "hdlm"):
            with pytest.raises(SystemExit, match=message):
                adapt.main(
                    [
                        variant,
                        "--from",
                        "mine",
                        "--data.folder",
                        "data/theirs",
                        "--data.length",
                        "16",
                    ]
                )
        assert not list(Path("data/theirs").glob("embedded*")), (
            "nothing is left beside the other's text"
        )
    assert not Path("run").exists()


def test_the_command_that_prepares_data_is_that_of_its_source():
    commands = {
        "array": (
            "python -m recipes.prepare array --out FOLDER, with the options of the model's data"
        ),
        "my.data:Tunes": (
            "python -m recipes.prepare source my.data:Tunes --out FOLDER, with the options"
        ),
        "ids": "recipes.data.prepare_ids(..., symbols=) with the symbols of the model",
    }
    for kind, shown in commands.items():
        assert prepare_with("runs/mine", Layout(kind=kind)).startswith(shown)
    assert "recipes.prepare local --files FILES --tokenizer gpt2" in prepare_with("gpt2")


def test_padding_beyond_the_models_tokens_are_taken(here):
    made = small_tokenizer(marks=("[CLS]", "[SEP]", "[MASK]"))
    model("mine", made)
    prepared = prepare(local("text.jsonl", "mine", 8), Path("data"))
    assert prepared.pad_id == made.get_vocab_size(), (
        "a token that the model's tokenizer lacks, in a row to spare"
    )
    manifest = json.loads(Path("data/manifest.json").read_text())
    manifest["tokenizer"].pop(
        "vocabulary"
    )  # what is compared is derived from the tokenizer in the folder
    Path("data/manifest.json").write_text(json.dumps(manifest))
    train.main(
        [recipe("data", model={"kind": "masked_lm", "name_or_path": "mine", "mask_token": 272})]
    )
    assert open_saved("run").process.vocab_size == prepared.vocab_size


def test_a_padding_token_that_the_model_reads_as_another_one_is_refused(here):
    made = small_tokenizer(marks=("[CLS]", "[SEP]", "[MASK]"))
    Path("plain").mkdir()
    made.save("plain/tokenizer.json")
    prepare(local("text.jsonl", "plain", 8), Path("data"))
    made.add_special_tokens([AddedToken("<|turn|>", normalized=False)])
    model("mine", made)
    with pytest.raises(
        SystemExit, match=r"id 273 is '\[PAD\]' of the data's and '<\|turn\|>' of the model's"
    ):
        train.main([recipe("data")])


def test_weights_without_a_tokenizer_are_not_compared_and_the_output_names_that(here):
    made = small_tokenizer()
    model("mine", made)
    prepare(local("text.jsonl", "mine", 8), Path("data"))
    for file in Path("mine").glob("tokenizer*"):
        file.unlink()
    changed = recipe("data", model={"kind": "masked_lm", "name_or_path": "mine", "mask_token": 273})
    with pytest.warns(
        UserWarning,
        match=r"name_or_path='mine': has no tokenizer.json to compare .* mine \(274 tokens",
    ):
        train.main([changed])


def test_a_run_starts_at_no_weights_of_another_tokenizer_or_of_other_clusters(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one").mkdir()
    first = publish_tiny("clusters", tmp_path / "one", process={"kind": "hdlm", "clusters": 4})
    again = replace(open_saved(first.run).recipe, start=str(first.run))
    again = replace(
        again, output=replace(again.output, folder=tmp_path / "run", validate_sequences=4)
    )
    Run.prepare(again, ALONE)
    vectors = torch.randn(first.data.vocab_size, 8, generator=torch.Generator().manual_seed(1))
    save_clusters(
        tmp_path / "other", semantic_clusters(vectors, [4], fingerprint=first.data.fingerprint)
    )
    other = replace(again, process=again.process | {"clusters": str(tmp_path / "other")})
    with pytest.raises(
        ValueError,
        match=r"start=.*: its states are other clusters .* --process.clusters .*/clusters",
    ):
        Run.prepare(other, ALONE)
    wider = replace(again, model=again.model | {"dim": 2 * again.model["dim"], "depth": 2})
    message = (
        r"start=.*do not fit: (.+; ){4}.+ and \d+ more\. The network must be that of "
        r".*recipe\.yaml.*; model\.d"
    )
    with pytest.raises(ValueError, match=message) as error:
        Run.prepare(wider, ALONE)
    assert len(str(error.value)) < 800
    rows = [json.dumps({"text": f"{OTHER[number % 2]} {number}"}) for number in range(40)]
    Path("other.jsonl").write_text("\n".join(rows) + "\n")
    prepare(local("other.jsonl", "train:300", 8), Path("data"))
    foreign = replace(again, data=replace(again.data, corpus=None, folder=Path("data")))
    with pytest.raises(
        ValueError, match=r"start=.*: made with another tokenizer .* The data's is train:300"
    ):
        Run.prepare(foreign, ALONE)


def test_a_run_starts_at_no_network_that_differs_in_an_argument_without_weights(tmp_path):
    first = publish_tiny("masks", tmp_path)
    again = replace(open_saved(first.run).recipe, start=str(first.run))
    again = replace(
        again, output=replace(again.output, folder=tmp_path / "run", validate_sequences=4)
    )
    for changes in ({"dropout": 0.1}, {"block_size": 4}):
        Run.prepare(replace(again, model=again.model | changes), ALONE)
    message = (
        r"start=.*: model.heads is 2 there, 4 here: the weights fit, .* must be that of "
        r".*recipe\.yaml"
    )
    with pytest.raises(ValueError, match=message):
        Run.prepare(replace(again, model=again.model | {"heads": 4}), ALONE)
    shaped = again.model | {"positions": "rope2d", "shape": [4, 6]}
    with pytest.raises(ValueError, match=r"model.positions is 'rope' there, 'rope2d' here"):
        Run.prepare(replace(again, model=shaped), ALONE)


def test_a_run_starts_at_no_weights_whose_output_has_another_meaning(tmp_path):
    first = publish_tiny("masks", tmp_path)
    trained = open_saved(first.run).recipe
    output = replace(trained.output, folder=tmp_path / "run", validate_sequences=4)
    again = replace(trained, start=str(first.run), output=output)
    message = (
        "loss.parameterization='cavity': the weights of start=.* were trained with 'posterior'"
    )
    kinds = (
        dict(kind="bound"),
        dict(kind="preference", pairs="pairs.jsonl", reference=str(first.run)),
        dict(kind="reward", reward="rewards:one"),
    )
    for loss in kinds:
        with pytest.raises(ValueError, match=message):
            Run.prepare(replace(again, loss=loss), ALONE)
    Run.prepare(replace(again, loss=dict(kind="bound", parameterization="posterior")), ALONE)


def test_weights_in_half_precision_are_trained_and_multiplied_in_float32(tmp_path):
    first = publish_tiny("masks", tmp_path)
    saved = open_saved(first.run)
    publish(
        tmp_path / "half",
        saved.model.bfloat16(),
        saved.process,
        first.data,
        length=24,
        parameterization="posterior",
    )
    opened = open_saved(tmp_path / "half")
    assert opened.precision == "float32" and {p.dtype for p in opened.model.parameters()} == {
        torch.float32
    }
    assert torch.equal(opened.model.embedding.weight, saved.model.embedding.weight.float())
    again = replace(saved.recipe, start=str(tmp_path / "half"))
    again = replace(
        again, output=replace(again.output, folder=tmp_path / "run", validate_sequences=4)
    )
    state = Run.prepare(again, ALONE).state
    values = [*state.model.parameters(), *state.average.weights.values()]
    assert {value.dtype for value in values} == {torch.float32}


def test_embeddings_of_another_tokenizer_are_not_clustered(here):
    mine = small_tokenizer()
    theirs = small_tokenizer(OTHER)
    model("mine", mine)
    theirs.save("theirs.json")
    prepare(local("text.jsonl", "theirs.json", 8), Path("data"))
    few = ["--clusters", "4", "--vectors", "mine", "--out", "out", "--restarts", "1"]
    with pytest.raises(
        SystemExit,
        match=r"--vectors mine: made with another tokenizer .* data's is theirs.json \(274",
    ):
        clusters.main([*few, "--data", "data"])
    with pytest.raises(
        SystemExit,
        match=r"--vectors mine: made with another tokenizer .* data's is theirs.json \(274",
    ):
        clusters.main([*few, "--tokenizer", "theirs.json", "--first-year", "2019"])


def test_clusters_of_one_models_embeddings_are_not_taken_for_another_ones(here):
    made = small_tokenizer()
    for name in ("mine", "second"):
        model(name, made, "llama")
    network = LlamaForCausalLM.from_pretrained("second")
    with torch.no_grad():
        network.get_input_embeddings().weight.normal_(generator=torch.Generator().manual_seed(5))
    network.save_pretrained("second")
    prepare(local("text.jsonl", "mine", 8), Path("data"))
    data = open_prepared(Path("data"))
    noise = {"kind": "hdlm", "clusters": 6}
    found = {}
    for name in ("mine", "second", "mine"):
        begun = replace(adapt.variants(name)["hdlm"][1], process=noise)
        path = adapt.with_own_clusters(name, begun, data).process["clusters"]
        assert found.setdefault(name, path) == path
    assert found["mine"] == "data/embedded-6" and found["second"].startswith("data/embedded-6-")


def test_padding_that_a_published_tokenizer_lacks_is_refused_and_not_taken_for_a_state(tmp_path):
    """Added after words and tokens are compared, it would have the id of the mask."""
    folder = publish_tiny("masks", tmp_path).run / "weights"
    path = folder / "recipe.yaml"
    path.write_text(path.read_text().replace("pad: '[PAD]'", "pad: '[FILL]'"))
    write_manifest(folder, read_facts(folder))
    with pytest.raises(ValueError, match=r"vocabulary has 303 tokens, the process 302 tokens"):
        open_saved(folder)


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.lists(st.text(min_size=1, max_size=3), min_size=2, max_size=300, unique=True),
    moved=st.data(),
)
def test_any_two_ids_that_change_places_are_found(tokens, moved):
    ids = {token: number for number, token in enumerate(tokens)}
    first, second = (moved.draw(st.integers(0, len(tokens) - 1)) for _ in range(2))
    other = ids | {tokens[first]: second, tokens[second]: first}
    mine = Vocabulary("a", ids)
    theirs = Vocabulary("b", other)
    check_same_tokens("here", mine, Vocabulary("b", dict(ids)), "")
    if first == second:
        return check_same_tokens("here", mine, theirs, "")
    with pytest.raises(ValueError, match=rf"id {min(first, second)} is "):
        check_same_tokens("here", mine, theirs, "")
    check_same_tokens("here", mine, theirs, "", size=min(first, second))
    return None
