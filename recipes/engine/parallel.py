"""Distributed training: process group, and the distribution of a model over its processes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ddlib.typing import implements
from recipes.config import Hardware
from recipes.engine.model_protocols import Blocks, able, blocks
from recipes.engine.objective import Objective


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


@contextmanager
def joined() -> Iterator[World]:
    """Join the process group of ``torchrun``; leave it at the end."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
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


def spread(objective: Objective, hardware: Hardware, world: World) -> nn.Module:
    """Move the network to its device, recompute, compile and shard its blocks as configured; return what to call.

    Blocks are treated one by one: they are alike, so one compilation serves all.

    Raises:
        ValueError: recomputation for a network without blocks.
    """
    model = objective.to(world.device).model
    if hardware.recompute:
        able(model, Blocks, "hardware.recompute=True", "blocks")
    for block in blocks(model):
        if hardware.recompute:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        if hardware.compile:
            block.compile()
    if hardware.shard and world.size > 1:
        half = torch.bfloat16 if hardware.bf16 else None
        # inputs keep their dtype: a time in bfloat16 would have two digits
        policy = MixedPrecisionPolicy(half, torch.float32 if half else None, cast_forward_inputs=False)
        mesh = init_device_mesh(world.device.type, (world.size,))
        for part in (*(model.blocks if implements(model, Blocks) else ()), objective):
            fully_shard(part, mesh=mesh, mp_policy=policy)
        register_fsdp_forward_method(objective, "predict")
        return objective
    if world.size > 1:
        ids = [world.device.index] if world.device.type == "cuda" else None
        return DistributedDataParallel(objective, device_ids=ids, gradient_as_bucket_view=True)
    return objective


def gathered_anew(objective: Objective) -> None:
    """Make sharded weights be gathered again: between two passes the outermost ones stay gathered."""
    for module in objective.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@contextmanager
def accumulating(called: nn.Module, objective: Objective, last: bool) -> Iterator[None]:
    """Restrict the exchange of gradients to the ``last`` of several backward passes."""
    if isinstance(objective, FSDPModule):
        objective.set_requires_gradient_sync(last)
    apart = isinstance(called, DistributedDataParallel) and not last
    with called.no_sync() if apart else nullcontext():
        yield
