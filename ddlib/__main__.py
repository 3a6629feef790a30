"""``python -m ddlib``: what is registered."""

import argparse
import inspect
from collections.abc import Sequence

import ddlib
from ddlib import registry


def table() -> str:
    """Every registered class with its arguments and the first line of its docstring, by kind."""
    lines = [f"ddlib {ddlib.__version__}: schedule x hierarchy = process, then one bound and every sampler"]
    for kind in registry.GROUPS:
        lines += ["", kind]
        for name, point in registry.available(kind).items():
            try:
                cls = registry.get(kind, name)
            except ImportError as error:
                lines.append(f"  {name:<14} broken: {error}")
                continue
            arguments = ", ".join(str(p).split(":")[0] for p in inspect.signature(cls).parameters.values())
            summary = (inspect.getdoc(cls) or "no description").splitlines()[0]
            lines.append(f"  {name:<14} {point.value.split(':')[1]}({arguments})")
            lines.append(f"  {'':<14} {summary}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m ddlib", description="Shows what is registered.")
    parser.parse_args(arguments)
    print(table())


if __name__ == "__main__":
    main()
