"""Folder of a run: where it may be, and the lock that one training at a time holds."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from ddlib_models.io.manifest import MANIFEST
from recipes.data import prepared
from recipes.engine.parallel import World

LOCK, OWNER = ".lock", "running.json"
"""File of the lock; and that of its owner, which a run removes at its end."""
_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
"""Environment variables of schedulers that hold the number of a job."""


def check_place(folder: Path) -> None:
    """Create the folder of a run, and raise if a run may not write there.

    Raises:
        ValueError: the folder holds prepared data, or weights.
        OSError: it cannot be written to.
    """
    for name, content in ((prepared.MANIFEST, "prepared data"), (MANIFEST, "published weights")):
        if (folder / name).exists():
            raise ValueError(
                f"output.folder={folder}: holds {content} ({name}), must be the folder of a run or "
                "a new one"
            )
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"probe")
        probe.unlink()
    except OSError as error:
        raise OSError(f"output.folder={folder}: cannot be written ({error.strerror})") from error


@contextmanager
def hold(folder: Path, world: World) -> Iterator[None]:
    """Hold the folder of a run: the first process locks it for all.

    The lock is one of the operating system (flock), which ends with the process, however that ends.
    Where the file system has none, a file takes its place; if its process was killed on another
    machine, it must be removed by hand.

    Raises:
        ValueError: another run trains there, named by its host, process and job; in every process.
        OSError: as ``check_place``.
    """
    lock = FileLock(folder / LOCK, timeout=0)
    refusal: Exception | None = None
    if world.first:
        try:
            check_place(folder)
            lock.acquire()
        except Timeout:
            refusal = ValueError(
                f"output.folder={folder}: another run trains there{_owner(folder)}. Stop that one, "
                "or choose another "
                f"folder; if it has ended, remove {folder / LOCK}"
            )
        except (ValueError, OSError) as error:
            refusal = error
    refusals = [error for error in world.gather(refusal) if isinstance(error, Exception)]
    if refusals:
        raise refusals[0]
    if not world.first:
        yield
        return
    try:
        _write_owner(folder)
        yield
    finally:
        for name in (
            OWNER,
            LOCK,
        ):  # removed while locked: a process that opened the old file begins again
            (folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # empty where a run was refused before its first file
            folder.rmdir()
        lock.release()


def _write_owner(folder: Path) -> None:
    """Name this process in the folder of a run."""
    jobs = [os.environ[name] for name in _JOBS if name in os.environ]
    owner = {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "job": jobs[0] if jobs else None,
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    (folder / OWNER).write_text(json.dumps(owner) + "\n", encoding="utf-8")


def _owner(folder: Path) -> str:
    """Describe the owner of a lock; empty if it has not named itself yet."""
    try:
        owner = json.loads((folder / OWNER).read_text(encoding="utf-8"))
        job = "" if owner["job"] is None else f", job {owner['job']}"
        return f": process {owner['process']} on {owner['host']}{job}, since {owner['since']}"
    except (OSError, ValueError, KeyError):
        return ""
