"""SIGTERM to ``torchrun``, which hands it to its processes: each saves, and ends as a run after a
stop signal.
"""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_engine_reliability import until
from training_runs import steps_made
from zoo.runs import recipe_in

from recipes.config import Hardware, recipe_yaml
from recipes.engine import checkpoint

ROOT = Path(__file__).parents[2]
WORKER = """
import os, sys
from pathlib import Path
from recipes import train

status = 0
try:
    train.main(["run.yaml"])
except SystemExit as end:
    status = end.code or 0
Path(f"status{os.environ['RANK']}").write_text(str(status))
"""


def torchrun(folder):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "worker.py",
    ]
    paths = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }
    with (folder / "log").open("w") as log:
        return subprocess.Popen(
            command, cwd=folder, env=os.environ | paths, stdout=log, stderr=subprocess.STDOUT
        )


@pytest.mark.parametrize("shard", [False, True], ids=["copies", "shards"])
def test_a_sigterm_to_torchrun_saves_in_every_process(tmp_path, shard):
    given = recipe_in(
        tmp_path,
        steps=5000,
        hardware=Hardware(threads=1, shard=shard),
    )
    given = replace(
        given, output=replace(given.output, validate_every=5000, sample_every=5000, save_every=5000)
    )
    (tmp_path / "run.yaml").write_text(recipe_yaml(given))
    (tmp_path / "worker.py").write_text(WORKER)
    made = 0
    for _ in range(2):  # the second goes on from the first
        before = made
        started = torchrun(tmp_path)
        until(lambda least=before + 3: steps_made(given.output.folder) >= least, 120)
        started.send_signal(signal.SIGTERM)
        started.wait(60)
        log = (tmp_path / "log").read_text()
        made = steps_made(given.output.folder)
        assert [(tmp_path / f"status{rank}").read_text() for rank in range(2)] == ["0", "0"], log
        assert f"stopping at a signal: saved after step {made}" in log
        assert (
            checkpoint.list_checkpoints(given.output.folder / "checkpoints")[0].name
            == f"step_{made:08d}"
        )
        for rank in range(2):
            (tmp_path / f"status{rank}").unlink()
    assert f"resuming from step {before}" in log and made > before
    print("status of torchrun", started.returncode)
