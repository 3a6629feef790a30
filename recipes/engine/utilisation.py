"""Utilisation of the devices (MFU): the seconds that a step would take at their peak.

Operations are those of matrix products and attention in the network, forwards once and backwards
twice, for rows of ``data.length`` tokens and all logits (PaLM, Chowdhery et al. 2022, appendix B).
Work that is repeated (``hardware.recompute``) and a first pass (``loss.memory``) do not count, and
logits that the loss leaves out do.
"""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from recipes.config import Hardware, at_once, own_times
from recipes.engine.run import Run
from recipes.metrics.conditioned import takes_labels

PEAKS = {
    "H200": (989.5, 67.0),
    "H100 NVL": (835.5, 60.0),
    "H100 PCIe": (756.0, 51.0),
    "H100": (989.5, 67.0),
    "A100": (312.0, 19.5),
}
"""Dense TFLOP/s in bfloat16 and in float32, by part of the device's name; the first that fits.

From data sheets.
"""


def peak(name: str, half: bool = True) -> float | None:
    """Return the operations per second of a device by its name.

    None for one that is not in the table.

    Args:
        name: name of the device.
        half: whether matrix products are in bfloat16, else in float32.
    """
    peaks = [values for part, values in PEAKS.items() if part in name]
    return peaks[0][0 if half else 1] * 1e12 if peaks else None


def device_peak(hardware: Hardware, device: torch.device) -> float | None:
    """Return the operations per second of a run's device: ``hardware.peak``, else by its name; None
    if unknown.
    """
    if hardware.peak is not None:
        return hardware.peak * 1e12
    return (
        peak(torch.cuda.get_device_name(device), hardware.bf16) if device.type == "cuda" else None
    )


def operations(run: Run) -> int:
    """Count the operations of a training step for one row, by a forward pass of one row.

    Every process takes part: sharded weights are gathered.
    """
    length = run.recipe.data.length
    device = run.world.device
    x = torch.zeros(1, length, dtype=torch.int64, device=device)
    options = {"clean": x} if at_once(run.pace, run.network.model) else {}
    if takes_labels(run.network.model):
        options["label"] = x[:, 0]
    t = torch.full(x.shape if own_times(run.pace, length) else (1,), 0.5, device=device)
    run.network.eval()  # dropout off
    from torch.utils.flop_counter import (
        FlopCounterMode,
    )  # imports triton, which takes half a second

    # fused kernels for a CPU have no count, and compiled ones no operations
    eager = torch.compiler.set_stance("force_eager")
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), eager, torch.no_grad(), counter:
        run.network.denoiser(x, t, **options)
    run.network.train()
    return 3 * counter.get_total_flops()


def fastest(run: Run) -> float | None:
    """Return the seconds of a step at the peak of all devices; None where it is unknown."""
    at_best = device_peak(run.recipe.hardware, run.world.device)
    return (
        None if at_best is None else operations(run) * run.recipe.batch / (at_best * run.world.size)
    )
