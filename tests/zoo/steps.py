"""Training steps of tiny runs: ordinary, and as one graph with ``STEP``."""

from contextlib import closing

from benchmarks.profile import TINY_PROFILE, run

SIZE = TINY_PROFILE._replace(sequences=4)
STEPS = 8
SCHEDULE = {"optimizer.warmup": 3, "optimizer.ema": 0.9, "steps": STEPS}
"""The learning rate rises, then falls, and the decay of the average rises."""
STEP = {"hardware.graph": "step"}
OPTIONS = {
    "hdlm": ("hdlm", {}),
    "hdlm, xi < 1": ("hdlm_xi", {}),
    "mdlm": ("mdlm", {}),
    "gidd": ("gidd", {}),
    "children": ("hdlm", {"model.head": "children"}),
    "edges": ("hdlm", {"loss": {"kind": "bound", "mode": "edges"}}),
    "micro-batches": ("hdlm", {"hardware.micro_batch": 2}),
    "dropout": ("hdlm", {"model.dropout": 0.2}),
}
"""Kind of the process, and other options of the recipe."""


def train_steps(kind, toggles, size=SIZE):
    """Numbers of the steps of a run, two steps in the queue, and the run."""
    trained = run(size._replace(kind=kind), SCHEDULE | toggles)
    results = []
    waiting = None
    with closing(trained.inputs(STEPS)) as inputs:
        for parts in inputs:
            launched = trained.launch(parts, False)
            if waiting is not None:
                results.append(trained.finish(waiting))
            waiting = launched
    return [*results, trained.finish(waiting)], trained
