"""Traces of training steps by torch's profiler, one file for each process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.profiler import ProfilerActivity, profile, schedule

from recipes.config import WARM_UP, Recipe
from recipes.engine.parallel import World

PROFILE = "profile"
"""Folder of the traces in that of the run."""


def activities(device: str) -> list[ProfilerActivity]:
    """Return the activities for the profiler."""
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]


@contextmanager
def profile_steps(
    recipe: Recipe, world: World, say: Callable[[str], None]
) -> Iterator[Callable[[], None]]:
    """Yield a function to be called after each step, which writes the trace of ``output.profile``
    steps.

    The steps are those after the first ``WARM_UP`` of this process. If the run ends within them,
    the trace has those that were made.

    Args:
        recipe: the run.
        world: this process among others.
        say: function that prints the path; called when the file is written.
    """
    if not recipe.output.profile:
        yield lambda: None
        return
    path = recipe.output.folder / PROFILE / f"rank{world.rank}.json.gz"
    path.parent.mkdir(exist_ok=True)

    def write(profiler: profile) -> None:
        profiler.export_chrome_trace(str(path))
        say(f"  trace of {recipe.output.profile} steps in {path}")

    steps = schedule(wait=WARM_UP - 1, warmup=1, active=recipe.output.profile, repeat=1)
    # acc_events: there is one cycle; torch warns without it
    how = dict(
        activities=activities(world.device.type),
        schedule=steps,
        on_trace_ready=write,
        acc_events=True,
    )
    with profile(**how) as profiler:
        yield profiler.step
