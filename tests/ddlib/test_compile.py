"""Noising and loss compile to one graph, without the shape checks that tests put on every call."""

import os
import subprocess
import sys

SCRIPT = """
import torch, ddlib as dd
torch.manual_seed(0)
parents = [0, 0, 1, 1, 2]
for process in (
    dd.presets.mdlm(5), dd.presets.gidd(5, 0.2), dd.presets.hdlm(parents, xi=0.9),
    dd.presets.hdlm_levels([parents, [0, 1, 1]]), dd.processes.Uniform(5, dd.schedules.Cosine()),
):
    x, t = torch.randint(5, (4, 6)), dd.sample_times(4)
    z, logits = process.sample(x, t), torch.randn(4, 6, 5)
    loss = lambda logits: dd.training_loss(process, logits, x, z, t, weight_clip=(0.0, 2.0))
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    assert torch.equal(compiled(logits), loss(logits))
    noised = torch.compile(lambda x, t: process.sample(x, t), fullgraph=True, backend="eager")(x, t)
    assert noised.max() < process.num_states
print("compiled")
"""


def test_loss_and_noising_compile_to_one_graph():
    environment = {**os.environ, "JAXTYPING_DISABLE": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "compiled", done.stderr[-2000:]
