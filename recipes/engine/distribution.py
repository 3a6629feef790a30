"""Distribution of a model over the processes of a run: copies (DDP) or shards (FSDP2)."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ddlib.typing import implements
from recipes.config import Hardware
from recipes.engine.model_protocols import CompilesTrunk, HasBlocks, able, blocks
from recipes.engine.network import Network
from recipes.engine.parallel import World


def spread(network: Network, hardware: Hardware, world: World) -> nn.Module:
    """Move the network to its device, recompute, compile and shard its blocks as configured.

    Return what to call.

    Blocks are treated one by one: they are alike, so one compilation is enough.

    Raises:
        ValueError: recomputation, or one graph for all blocks, of a network without blocks;
            sharded blocks whose modulations are one product.
    """
    model = network.to(world.device).model
    if hardware.shard and getattr(model, "joint_modulation", False):
        raise ValueError(
            "model.joint_modulation=True: not with hardware.shard=True, which gathers the weights "
            "of one block at a time"
        )
    if hardware.recompute:
        able(model, HasBlocks, "hardware.recompute=True", "blocks")
    for block in blocks(model):
        if hardware.recompute:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        if hardware.compile and hardware.graph != "trunk":
            block.compile()
    if hardware.graph == "trunk":
        able(model, CompilesTrunk, "hardware.graph='trunk'", "compile_trunk").compile_trunk()
    if hardware.shard and world.size > 1:
        half = torch.bfloat16 if hardware.bf16 else None
        # inputs keep their dtype: a time in bfloat16 would have two digits
        policy = MixedPrecisionPolicy(
            half, torch.float32 if half else None, cast_forward_inputs=False
        )
        mesh = init_device_mesh(world.device.type, (world.size,))
        for part in (*(model.blocks if implements(model, HasBlocks) else ()), network):
            fully_shard(part, mesh=mesh, mp_policy=policy)
        register_fsdp_forward_method(network, "predict")
        return network
    if world.size > 1:
        ids = [world.device.index] if world.device.type == "cuda" else None
        return DistributedDataParallel(network, device_ids=ids, gradient_as_bucket_view=True)
    return network


def check_sharding(hardware: Hardware, world: World) -> list[str]:
    """Return a message if weights are to be sharded over one process."""
    if not hardware.shard or world.size > 1:
        return []
    return [
        "hardware.shard has no effect on one process: start several with torchrun --nproc-per-node "
        "NUMBER, or leave it "
        "out"
    ]


def gather_again(network: Network) -> None:
    """Make sharded weights be gathered again: between two passes the outermost ones stay
    gathered.
    """
    for module in network.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@contextmanager
def accumulating(called: nn.Module, network: Network, last: bool) -> Iterator[None]:
    """Restrict the exchange of gradients to the ``last`` of several backward passes."""
    if isinstance(network, FSDPModule):
        network.set_requires_gradient_sync(last)
    apart = isinstance(called, DistributedDataParallel) and not last
    with called.no_sync() if apart else nullcontext():
        yield
