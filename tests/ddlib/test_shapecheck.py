"""Checks that this test run makes on every call: their messages, and when they are on."""

import ast
import importlib
import inspect
import os
import pkgutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self

import jaxtyping
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import ddlib
import ddlib_models
from ddlib.typing import AXES
from ddlib.utils import shapecheck
from ddlib.utils.shapecheck import checked

ROOT = Path(ddlib.__file__).parents[1]


@checked
def weigh(
    x: Float[Tensor, "B L"], weight: Float[Tensor, "L"], scale: float = 1.0
) -> Float[Tensor, "B"]:
    return scale * x @ weight if scale else x


def test_the_message_names_function_argument_wanted_and_given():
    with pytest.raises(TypeError) as caught:
        weigh(torch.ones(2, 3), torch.ones(4))
    for part in (
        "test_shapecheck.weigh",
        "parameter 'weight'",
        "Float[Tensor, 'L']",
        "f32[4]",
        "B=2\nL=3",
    ):
        assert part in str(caught.value)
    with pytest.raises(TypeError, match=r"parameter 'x'.\nActual value: i64\[2,3\]"):
        weigh(torch.ones(2, 3, dtype=torch.int64), torch.ones(3))
    with pytest.raises(
        TypeError, match=r"return value of test_shapecheck.weigh.\nActual value: f32\[2,3\]"
    ):
        weigh(torch.ones(2, 3), torch.ones(3), scale=0.0)


def test_an_int_passes_for_a_float_and_a_string_does_not():
    assert weigh(torch.ones(2, 3), torch.ones(3), 2).tolist() == [6.0, 6.0]
    with pytest.raises(TypeError, match="parameter 'scale'"):
        weigh(torch.ones(2, 3), torch.ones(3), "2")


def test_checks_can_be_switched_off_as_jaxtyping_switches_them_off(as_users_call):
    assert weigh(torch.ones(2, 3), torch.ones(3), scale=0.0).shape == (2, 3)


@checked
class Scale:
    """Every kind of member."""

    def __init__(self, by: Float[Tensor, "L"]) -> None:
        self._by = by

    def __call__(self, x: Float[Tensor, "B L"]) -> Float[Tensor, "B L"]:
        return self._by * x

    def twin(self) -> Self:
        return type(self)(self._by)

    def other(self, scale: "Scale") -> "Scale":
        return scale

    @classmethod
    def ones(cls, size: int) -> Self:
        return cls(torch.ones(size))

    @staticmethod
    def square(x: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
        return x**2

    @property
    def by(self) -> Float[Tensor, "L"]:
        """The factor."""
        return self._by

    @by.setter
    def by(self, value: Float[Tensor, "L"]) -> None:
        self._by = value

    @cached_property
    def unchecked(self):
        return 1


@checked
@dataclass(frozen=True)
class Pair:
    x: Float[Tensor, "L"]
    y: Float[Tensor, "L"]


class Point(NamedTuple):
    x: Float[Tensor, "L"]


def test_all_members_of_a_class_are_checked():
    scale = Scale(torch.ones(3))
    matrix = torch.ones(2, 3)
    scale.by = 2 * torch.ones(3)
    assert scale(matrix).shape == Scale.ones(3).twin()(matrix).shape == (2, 3)
    assert Scale.square(scale.by).tolist() == [4.0] * 3 and scale.other(scale) is scale
    assert Scale.by.__doc__ == "The factor." and scale.unchecked == 1
    refused = [
        lambda: Scale(matrix),
        lambda: scale(torch.ones(3)),
        lambda: Scale.ones(3.5),
        lambda: Scale.square(matrix),
        lambda: setattr(scale, "by", matrix),
        lambda: scale.other(3),
        lambda: Pair(torch.ones(2), torch.ones(3)),
    ]
    for call in refused:
        with pytest.raises(TypeError, match=r"Type-check error|violates type hint"):
            call()
    assert Pair(torch.ones(2), y=torch.zeros(2)).y.sum() == 0
    assert checked(Point)(3) == (3,)


def test_a_checked_function_is_not_checked_again_and_one_without_annotations_not_at_all():
    assert checked(weigh) is weigh

    def plain(x): ...

    assert checked(plain) is plain


def test_objects_other_than_functions_are_refused():
    for target in (3, torch.nn.Identity(), len):
        with pytest.raises(TypeError, match="must be a function or a class"):
            checked(target)


def test_a_string_annotation_may_name_later_definitions_but_not_missing_ones():
    @checked
    def later(x: "Later") -> int:
        return 1

    with pytest.raises(NameError, match="later, annotation of 'x': name 'Later' is not defined"):
        later(3)
    globals()["Later"] = int
    try:
        assert later(3) == 1
        with pytest.raises(TypeError, match="parameter x='3' violates type hint"):
            later("3")
    finally:
        del globals()["Later"]


def run(script, switch, *arguments):
    """Output of a fresh interpreter with DDLIB_SHAPECHECK set to ``switch``."""
    environment = {
        **os.environ,
        "DDLIB_SHAPECHECK": switch,
        "PYTHONPATH": str(Path(__file__).parent),
    }
    command = [sys.executable, *(arguments or ("-c", script))]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


CALLS = """
import {first}, sys, torch, ddlib, ddlib_models
def verdict(call):
    try: call()
    except Exception as error:
        return any(part in str(error) for part in ("Type-check error", "violates type hint"))
print(
    verdict(lambda: ddlib.schedules.Linear().rate("now")),
    verdict(lambda: ddlib_models.dit.layers.rotate(torch.ones(1, 2, 3, 4), torch.ones(5, 2))),
    *("beartype" in sys.modules, "torchtyping" in sys.modules),
)
"""


@pytest.mark.parametrize("first", ["ddlib.typing", "ddlib_models.dit.layers"])
def test_the_switch_checks_both_packages_whichever_is_imported_first(first):
    assert run(CALLS.format(first=first), "1") == "True True True False"


@pytest.mark.parametrize("switch", ["", "0"])
def test_without_the_switch_nothing_is_checked_and_no_checker_is_imported(switch):
    *verdicts, beartype, torchtyping = run(CALLS.format(first="ddlib"), switch).split()
    assert "True" not in verdicts and (beartype, torchtyping) == ("False", "False")


def test_without_beartype_the_error_names_the_package_to_install():
    script = (
        "import sys; sys.modules['beartype'] = None\ntry: import ddlib\nexcept ImportError as "
        "e: print(e)"
    )
    assert "pip install beartype" in run(script, "1")


def test_the_command_line_runs_checked():
    assert "ancestral" in run("", "1", "-m", "ddlib")


def is_checked(function):
    return hasattr(function, shapecheck._MARK)


def annotated_functions(package):
    """Functions that the source defines, in modules and in classes."""
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if info.name not in (
            "ddlib.__main__",
            "ddlib.utils.shapecheck",
            "ddlib.utils.torchtyping_hints",
        ):
            module = importlib.import_module(info.name)
            classes = [
                v for v in vars(module).values() if inspect.isclass(v) and v.__module__ == info.name
            ]
            for member in [
                member for owner in (module, *classes) for member in vars(owner).values()
            ]:
                function = getattr(
                    member, "__func__", getattr(member, "fget", getattr(member, "func", member))
                )
                code = getattr(inspect.unwrap(function), "__code__", None)
                if code and code.co_filename == module.__file__ and function.__annotations__:
                    yield function


@pytest.mark.parametrize("package", [ddlib, ddlib_models])
def test_every_annotated_function_is_checked_in_this_run_unless_it_is_switched_off(package):
    functions = list(annotated_functions(package))
    switched_on = os.environ["DDLIB_SHAPECHECK"] not in ("", "0")
    assert len(functions) > 10 and all(
        is_checked(function) == switched_on for function in functions
    )


PLUGIN = '''"""A package of someone else."""
from __future__ import annotations
from jaxtyping import Float
from torch import Tensor, no_grad

@no_grad()
def decorated(x: Float[Tensor, "a a"]) -> Float[Tensor, "a"]:
    def nested(y: Float[Tensor, "a"]) -> Float[Tensor, "a"]:
        return y
    return nested(x if x[0, 0] else x[0])

class Later:
    def __init__(self, other: Later | None) -> None:
        raise ValueError("line 14")
'''


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    (tmp_path / "their_plugin").mkdir()
    (tmp_path / "their_plugin" / "__init__.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield tmp_path / "their_plugin"
    sys.modules.pop("their_plugin", None)


def test_a_user_package_can_be_installed(plugin):
    shapecheck.install("their_plugin")
    their = importlib.import_module("their_plugin")
    with pytest.raises(TypeError, match=r"parameters of their_plugin.decorated.\n"):
        their.decorated(torch.ones(2, 3))
    with pytest.raises(TypeError, match=r"parameters of their_plugin.decorated.<locals>.nested.\n"):
        their.decorated(torch.ones(2, 2))
    assert their.decorated(torch.zeros(2, 2)).shape == (2,)
    with pytest.raises(TypeError, match="parameter other=3 violates type hint"):
        their.Later(3)
    with pytest.raises(ValueError, match="line 14") as caught:
        their.Later(None)
    assert caught.traceback[-1].lineno + 1 == 14, "the lines of a traceback are those of the file"
    assert inspect.getsource(inspect.unwrap(their.decorated)).startswith("@no_grad()")


def test_a_package_that_is_imported_already_is_refused(plugin):
    importlib.import_module("their_plugin")
    with pytest.raises(RuntimeError, match="their_plugin is imported already"):
        shapecheck.install("their_plugin")


def test_checked_and_unchecked_runs_do_not_share_bytecode(plugin, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)

    def imported():
        sys.modules.pop("their_plugin", None)
        return importlib.import_module("their_plugin")

    assert not is_checked(imported().decorated)
    del sys.modules["their_plugin"]
    shapecheck.install("their_plugin")
    assert is_checked(imported().decorated)
    with monkeypatch.context() as without:
        without.delattr(shapecheck, "_Decorate")  # from the cache
        assert is_checked(imported().decorated)
    del sys.meta_path[0]
    assert not is_checked(imported().decorated)


def axes(path):
    """Every axis named in a jaxtyping annotation of the file, ``*`` and all."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Subscript(ast.Name(kind), ast.Tuple([_, ast.Constant(str(shape))])) if hasattr(
                jaxtyping, kind
            ):
                yield from (
                    axis.strip("#?") for axis in shape.split() if axis.strip("#?*").isidentifier()
                )


def test_the_legend_lists_every_axis_and_no_other():
    files = [
        path
        for package in (ddlib, ddlib_models)
        for path in Path(package.__file__).parent.rglob("*.py")
    ]
    used = {axis for path in files for axis in axes(path)}
    assert used == set(AXES), (
        "left: axes in annotations, right: axes in the legend, ddlib.typing.AXES"
    )
