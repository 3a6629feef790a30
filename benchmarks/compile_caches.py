"""Compiled code of torch.compile and Triton, kept in a folder between machines.

Both caches are used at one fixed path, so that a later process finds their entries again.
``Caches.save`` packs both into parts that are small enough to be copied.
(``torch.compiler.save_cache_artifacts`` would keep only what this process compiled or used, and no
kernels that Triton compiled without inductor.)
"""

import gzip
import os
import shutil
import tarfile
import tempfile
import zlib
from io import BytesIO
from pathlib import Path

PLACE = Path(tempfile.gettempdir()) / "ddlib_compiled"
NAME = "compiled.tar.gz"
PART, MOST = 15 * 2**20, 60 * 2**20
"""Bytes of a part, and of all parts together."""
FOLDERS = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


class Caches:
    """The two caches at ``place``, which torch and Triton use from now on, as ``folder`` has them.

    It must be made before anything is compiled.
    """

    def __init__(self, folder: Path, place: Path = PLACE) -> None:
        self.folder = folder
        self.place = place
        for variable, name in FOLDERS.items():
            (place / name).mkdir(parents=True, exist_ok=True)
            os.environ[variable] = str(place / name)
        self._unpack()
        self._packed = self._bytes()

    def save(self) -> None:
        """Pack the caches into the folder if anything is new, and not more than ``MOST`` bytes.

        A process that is killed meanwhile leaves the parts of the last call, or parts that are not
        unpacked.
        """
        if (held := self._bytes()) == self._packed:
            return
        self._packed = held
        packed = BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=4) as archive:
            for name in FOLDERS.values():
                archive.add(self.place / name, arcname=name)
        data = packed.getvalue()
        if len(data) > MOST:
            print(
                f"compiled code: {len(data)} bytes, not saved, as it must be at most {MOST}",
                flush=True,
            )
            return
        new = self.folder / "new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        for number, begin in enumerate(range(0, len(data), PART)):
            (new / f"{NAME}.{number}").write_bytes(data[begin : begin + PART])
        for part in _parts(self.folder):
            part.unlink()
        for part in _parts(new):
            part.replace(self.folder / part.name)
        new.rmdir()

    def _unpack(self) -> None:
        if not (parts := _parts(self.folder)):
            return
        try:
            # whole at once, since that compares the checksum
            unpacked = gzip.decompress(b"".join(part.read_bytes() for part in parts))
        except (OSError, EOFError, zlib.error) as error:
            print(f"{self.folder}: compiled code is damaged ({error}), all is compiled again")
            return
        with tarfile.open(fileobj=BytesIO(unpacked)) as archive:
            archive.extractall(self.place, filter="data")

    def _bytes(self) -> int:
        return sum(file.stat().st_size for file in self.place.rglob("*") if file.is_file())


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{NAME}.*"))
