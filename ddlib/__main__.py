"""``python -m ddlib``: what is registered; ``python -m ddlib verify package.module:object``: whether it is right."""

import argparse
import importlib
import inspect
from collections.abc import Sequence
from typing import Any

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


def load(path: str) -> Any:
    """The object at ``package.module:object``; a class or function there is called without arguments.

    Raises:
        ValueError: not of that form, or the module or the object is not there.
    """
    module, _, name = path.partition(":")
    if not module or not name:
        raise ValueError(f"{path!r} must be package.module:object")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"{path!r}: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{path!r}: {found!r} has no {part!r}")
        found = getattr(found, part)
    return found() if inspect.isclass(found) or inspect.isfunction(found) else found


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table, or verifies an object; the exit status is 1 if it is refuted and 2 if there is none."""
    parser = argparse.ArgumentParser(prog="python -m ddlib", description="Without a command: what is registered.")
    command = parser.add_subparsers(dest="command", metavar="verify").add_parser(
        "verify", help="prove a process, schedule, hierarchy or sampler right, or refute it"
    )
    command.add_argument("object", help="package.module:object; a class or function there is called without arguments")
    command.add_argument("--level", choices=("quick", "full"), default="quick", help="default: quick")
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args(arguments)
    if options.command is None:
        print(table())
        return 0
    try:
        report = ddlib.verify(load(options.object), options.level)
    except (TypeError, ValueError) as error:
        command.error(str(error))
    print(report.to_json() if options.json else report)
    return 0 if report.ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
