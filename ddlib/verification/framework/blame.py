"""Location of an exception in the code of the verified object."""

import linecache
import sysconfig
import traceback
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import nn

from ddlib.verification.report import Place

_OURS = Path(__file__).parents[2]
_LIBRARIES = {Path(path).resolve() for name, path in sysconfig.get_paths().items() if "lib" in name}
_LIBRARIES |= {_OURS, Path(torch.__file__).parent}


def locate_error(error: BaseException, *subjects: Any) -> tuple[Place | None, str]:
    """Return the last frame of the traceback in the author's code, and advice on the fix if there
    is any.

    The author's code consists of the packages of the classes of ``subjects`` and of their parts,
    and of all files that belong neither to ddlib, torch or Python nor to an installed package. If
    there is no such frame, it is the last frame in the module of such a class. None if there is
    none either: then the caller failed on a returned value.
    """
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    modules = {module for subject in subjects for module in _modules(subject)}
    packages = {module.partition(".")[0] for module in modules} - {"ddlib"}
    for matches in (
        lambda frame: _module(frame).partition(".")[0] in packages or _is_authors(frame),
        lambda frame: _module(frame) in modules,
    ):
        for frame, line in reversed(frames):
            if matches(frame):
                return _place(frame, line), _advice(frame, error)
    return None, ""


def _modules(subject: Any, depth: int = 3) -> Iterator[str]:
    """Yield the modules of the classes of an object and its parts, without inherited classes of
    ddlib.
    """
    bases = type(subject).__mro__
    kinds = tuple(takewhile(lambda kind: not kind.__module__.startswith("ddlib."), bases))
    # a class of ddlib itself counts alone; an object without a base in ddlib is not a part: a
    # number, a tensor
    kinds = () if kinds == bases else kinds or bases[:1]
    yield from (kind.__module__ for kind in kinds)
    if depth and (kinds or isinstance(subject, (tuple, nn.Module))):
        parts = (
            list(subject)
            if isinstance(subject, tuple)
            else list(getattr(subject, "__dict__", {}).values())
        )
        parts += list(subject.children()) if isinstance(subject, nn.Module) else []
        for part in parts:
            yield from _modules(part, depth - 1)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_authors(frame: FrameType) -> bool:
    """Return whether the frame belongs to a file outside all libraries."""
    path = Path(frame.f_code.co_filename)
    return path.is_file() and not any(
        path.resolve().is_relative_to(library) for library in _LIBRARIES
    )


def _place(frame: FrameType, line: int) -> Place:
    path = Path(frame.f_code.co_filename)
    cwd = Path.cwd()
    name = str(path.relative_to(cwd) if path.is_relative_to(cwd) else path)
    method = frame.f_code.co_qualname.rpartition("<locals>.")[2]
    code = linecache.getline(frame.f_code.co_filename, line, frame.f_globals).strip()
    return Place(name, line, method, code)


def _advice(frame: FrameType, error: BaseException) -> str:
    """Return advice if the cause may be a time that is not a tensor, or a namespace other than
    ``xp``.
    """
    arguments = {
        name: frame.f_locals.get(name)
        for name in frame.f_code.co_varnames[: frame.f_code.co_argcount]
    }
    floats = [name for name in ("s", "t") if isinstance(arguments.get(name), float)]
    if floats and "float" in str(error):
        line = (
            "s, t = span(s, t, self.device)"
            if len(floats) > 1
            else f't = scalar({floats[0]}, "t", self.device)'
        )
        return (
            "times may be floats here; begin with this line, with the function of "
            f"ddlib.processes: {line}"
        )
    named = {**frame.f_globals, **frame.f_locals}
    modules = [
        name
        for name in frame.f_code.co_names
        if name != "xp" and isinstance(named.get(name), ModuleType)
    ]
    if "xp" in arguments and modules:
        return (
            "xp is torch, sympy or mpmath: write xp. instead of "
            f"{' and '.join(f'{name}.' for name in modules)}"
        )
    return ""
