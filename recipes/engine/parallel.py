"""Process group of a run."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class World:
    """Processes of a run. ``torchrun`` starts several; without it there is one."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """True if this process writes files and output."""
        return self.rank == 0

    def seed(self, value: int) -> None:
        """Seed the default random generators of the host and of the device."""
        # torch.manual_seed formats a stack trace for every other kind of device, in 2 ms a call
        torch.default_generator.manual_seed(value)
        if self.device.type != "cpu":
            torch.get_device_module(self.device).manual_seed(value)

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()

    def sum(self, values: Tensor) -> Tensor:
        """Sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def gather(self, value: object) -> list[object]:
        """Return the value of each process, by rank."""
        if self.size == 1:
            return [value]
        values: list[object] = [None] * self.size
        dist.all_gather_object(values, value)
        return values


def alone() -> World:
    """Return a single process, with a GPU where there is one."""
    return World(0, 1, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


@contextmanager
def join() -> Iterator[World]:
    """Join the process group of ``torchrun``; leave it at the end."""
    rank = int(os.environ.get("RANK", "0"))
    size = int(os.environ.get("WORLD_SIZE", "1"))
    cuda = torch.cuda.is_available()
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if cuda
        else torch.device("cpu")
    )
    if cuda:
        torch.cuda.set_device(device)
    if size == 1:
        yield World(rank, size, device)
        return
    # gloo beside nccl: checkpoints are gathered and objects exchanged on the CPU
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    try:
        yield World(rank, size, device)
    finally:
        dist.destroy_process_group()
