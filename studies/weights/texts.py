"""Texts from which no study chose anything, and the hashes that were committed before any run."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from recipes.data import local, prepare
from studies.corpus.packages import Package, deb_files
from studies.corpus.public_domain import documents, write
from studies.corpus.sources import osis, sword_blocks

HASHES = Path(__file__).parent / "unseen.json"
"""Hash of the documents of each text."""
COUNTS = {"sealed": 420, "moby_dick": 140, "faq": 140}
"""Number of documents of each text."""
READ = 240
"""Documents of Moby Dick that earlier studies and the search read, the first that are held out."""
COMMENTARY = Package(
    "apt",
    "sword-comm-mhcc",
    "2.0-1",
    "sword-comm-mhcc_2.0-1_all.deb",
    "06f748215de78ff48fdfdee93e3ffc5af6318b976485f7aedf22309236967e35",
)
FAQ = Package(
    "apt",
    "anarchism",
    "15.3-3",
    "anarchism_15.3-3_all.deb",
    "cf21c10948b00e923c62eb31c39a3390413fa26c5ee0e3b925feb0ec7fe42948",
)


def commentary(deb: Path) -> str:
    """Return Matthew Henry's Concise Commentary on the Whole Bible."""
    place = "usr/share/sword/modules/comments/zcom/mhcc/"
    text = b""
    for testament in ("ot", "nt"):
        names = [f"{place}{testament}.bzs", f"{place}{testament}.bzz"]
        index, blocks = deb_files(deb, names)
        text += b"".join(sword_blocks(index, blocks))
    return osis(text.decode("utf-8"))


def faq(deb: Path) -> str:
    """Return section I of An Anarchist FAQ."""
    names = [f"usr/share/doc/anarchism/html/secI{number}.html" for number in range(1, 9)]
    return "\n".join(osis(page.decode("utf-8")) for page in deb_files(deb, names))


def spaced(every: list[str], count: int) -> list[str]:
    """Return documents at equal distances."""
    return [every[place * len(every) // count] for place in range(count)]


def extract(work: Path, packages: Path) -> None:
    """Write the documents of each text; packages that are missing in the folder are downloaded."""
    held_out = (work / "text" / "held_out_moby_dick.jsonl").read_text(encoding="utf-8")
    unread = [json.loads(line)["text"] for line in held_out.splitlines()[READ:]]
    every = {
        "sealed": list(documents(commentary(COMMENTARY.fetch(packages)))),
        "moby_dick": unread,
        "faq": list(documents(faq(FAQ.fetch(packages)))),
    }
    for name, count in COUNTS.items():
        write(path_of(work, name), spaced(every[name], count))


def path_of(work: Path, name: str) -> Path:
    """Return the path of the documents of a text."""
    return work / "text" / f"unseen_{name}.jsonl"


def check(work: Path, hashes: Mapping[str, str]) -> None:
    """Refuse documents other than those whose hashes were committed.

    Raises:
        FileNotFoundError: the documents are missing.
        ValueError: a text has another hash.
    """
    for name, sha256 in hashes.items():
        path = path_of(work, name)
        content = path.read_bytes()
        if (actual := hashlib.sha256(content).hexdigest()) != sha256:
            raise ValueError(
                f"{path} has sha256 {actual}, must have {sha256}, which was committed before the "
                "runs"
            )


def prepare_unseen(work: Path, hashes: Mapping[str, str]) -> None:
    """Prepare the texts in the tokens of the corpus."""
    check(work, hashes)
    for name in hashes:
        unseen = local(
            files=str(work / "text" / "search.jsonl"),
            held_out=str(path_of(work, name)),
            tokenizer=str(work / "data" / "tokenizer.json"),
        )
        prepare(unseen, work / "unseen" / name)
