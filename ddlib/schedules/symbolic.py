"""Schedules given as formulas, differentiated by sympy."""

import ast
import operator
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import mpmath
import sympy
import torch
from sympy.printing.str import StrPrinter
from torch import Tensor

from ddlib.schedules.base import Schedule
from ddlib.schedules.symbol import TIME
from ddlib.utils.validation import require

_FUNCTIONS = {
    name: getattr(sympy, name)
    for name in [
        "exp",
        "log",
        "sqrt",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "erf",
    ]
}
_CONSTANTS = {"t": TIME, "pi": sympy.pi, "e": sympy.E}
_PRECISION = threading.RLock()
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def parse(text: str) -> sympy.Expr:
    """Parse a formula in ``t`` into a sympy expression, from its syntax tree.

    Nothing is evaluated as code.

    Allowed: numbers, ``t``, ``pi``, ``e``, ``+ - * / **``, parentheses, and exp, log, sqrt, the
        trigonometric and
    hyperbolic functions and their inverses, erf.

    Raises:
        ValueError: not a formula, too long, or a name or construct that is not in the list above.
    """
    require(len(text) <= 1000, f"formula has {len(text)} characters, must have at most 1000")
    try:
        return _build(ast.parse(text.strip(), mode="eval").body, text)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"formula {text!r} cannot be read: {error}") from None


def _build(node: ast.expr, text: str) -> sympy.Expr:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            require(
                abs(value) <= 1e12, f"formula {text!r} holds {value}, numbers must be at most 1e12"
            )
            return sympy.Integer(value) if isinstance(value, int) else sympy.Float(value)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_build(operand, text)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _build(operand, text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            a = _build(left, text)
            b = _build(right, text)
            if isinstance(op, ast.Pow):  # sympy would expand 9**9**9 before any check of the result
                small = not b.is_number or bool(abs(b) <= 1000)
                require(small, f"formula {text!r} has the exponent {b}, must be at most 1000")
            return _OPERATORS[type(op)](a, b)
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_build(argument, text))
    allowed = ", ".join([*_CONSTANTS, *_FUNCTIONS])
    raise ValueError(
        f"formula {text!r} holds {ast.unparse(node)!r}, must be built from numbers, + - * / **, "
        f"{allowed}"
    )


class Compiled:
    """Torch function of one tensor, compiled from an expression; equal if the expressions are.

    Constants become tensors of the input's shape.
    """

    def __init__(self, expression: sympy.Expr) -> None:
        self.expression = expression
        # torch.exp(1) raises an error: exact numbers of sympy are evaluated first
        folded = expression.replace(
            lambda e: e.is_number and not e.is_Rational, lambda e: sympy.N(e, 20)
        )
        self._function = sympy.lambdify(TIME, folded, modules="torch", cse=True)

    def __call__(self, t: Tensor) -> Tensor:
        result: Tensor = self._function(t) * torch.ones_like(t)
        return result

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Compiled) and bool(self.expression == other.expression)

    def __hash__(self) -> int:
        return hash(self.expression)

    def __reduce__(self) -> Any:
        return Compiled, (self.expression,)  # compiled functions do not pickle


@contextmanager
def digits(count: int) -> Iterator[None]:
    """Context manager in which mpmath has this precision, in decimal digits.

    One thread at a time, as it is global.
    """
    with _PRECISION, mpmath.workdps(count):
        yield


def limit(expression: sympy.Expr, point: int, wanted: int) -> tuple[Any, bool]:
    """Return the limit at t = 0 or t = 1, and whether it equals ``wanted``."""
    try:
        result = sympy.limit(expression, TIME, point, "+" if point == 0 else "-")
        return result, sympy.simplify(result - wanted) == 0 or abs(
            complex(sympy.N(result)) - wanted
        ) < 1e-12
    except (TypeError, ValueError, ArithmeticError, NotImplementedError) as error:
        return f"a limit that sympy cannot compute ({type(error).__name__})", False


def _tail(expression: sympy.Expr, terms: int = 12) -> tuple[float, list[float]] | None:
    """Coefficients of alpha as a power series in d = 1 - t, and the d below which the series is
    more accurate.

    A formula such as 1 - sin(pi t / 2) suffers from cancellation where alpha is close to 0; its
    series does not. Returns None if there is no such series, as for exp(-t / (1 - t)), or if the
    series agrees with the formula nowhere.
    """
    formula = Compiled(expression)
    exact = sympy.lambdify(TIME, expression, modules="mpmath")
    with digits(60):
        try:
            taylor = mpmath.taylor(lambda d: exact(1 - d), 0, terms)
        except (ValueError, ZeroDivisionError, TypeError):
            return None
        if not all(mpmath.isfinite(c) and abs(mpmath.im(c)) < 1e-25 for c in taylor):
            return None
        coefficients = [float(mpmath.re(c)) if abs(c) > 1e-25 else 0.0 for c in taylor]
    for d in 2.0 ** -torch.arange(4, 20, dtype=torch.float64):
        if abs(float(_horner(coefficients, d) / formula(1 - d)) - 1) < 1e-10:
            return float(d), coefficients
    return None


def _horner(coefficients: Sequence[float], d: Tensor) -> Tensor:
    result = torch.zeros_like(d)
    for coefficient in reversed(coefficients):
        result = result * d + coefficient
    return result


class _Exact(StrPrinter):
    """Printer of formulas with all digits of each number, and Euler's number as ``e``, which
    ``parse`` reads.
    """

    def _print_Float(self, expr: sympy.Float) -> str:  # sympy dispatches on this name
        return repr(float(expr))

    def _print_Exp1(self, expr: sympy.Expr) -> str:
        return "e"


def as_expression(formula: str | sympy.Expr) -> sympy.Expr:
    """Return a formula as a sympy expression in ``TIME``.

    Raises:
        TypeError: neither a string nor a sympy expression.
        ValueError: as ``parse``; symbols other than t.
    """
    if not isinstance(formula, (str, sympy.Expr)):
        raise TypeError(f"formula is {formula!r}, must be a string or a sympy expression")
    expression = parse(formula) if isinstance(formula, str) else formula
    names = {symbol.name for symbol in expression.free_symbols}
    require(names <= {"t"}, f"formula {formula} has the symbols {sorted(names)}, must have only t")
    return expression.subs({symbol: TIME for symbol in expression.free_symbols})


def exact_text(formula: str | sympy.Expr, expression: sympy.Expr) -> str:
    """Return a string that ``parse`` reads as ``expression``: the formula as given, or printed with
    all digits.

    Raises:
        TypeError: the expression has numbers or functions that ``parse`` cannot read from a string.
    """
    text = formula if isinstance(formula, str) else str(_Exact().doprint(expression))
    try:
        unchanged = parse(text) == expression
    except ValueError:
        unchanged = False
    if not unchanged:
        raise TypeError(
            f"formula {text!r} changes when it is converted to a string, must be passed as a "
            "string to have plain "
            "values"
        )
    return text


class Symbolic(Schedule):
    r"""Schedule given by any formula in t, a string or a sympy expression.

    Sympy computes the derivative.

    Args:
        formula: e.g. ``"(1 - t)**2 * exp(-t)"``, or a sympy expression whose one free symbol is
            called t.

    Raises:
        TypeError: neither a string nor a sympy expression.
        ValueError: not a formula in t alone, not 1 at 0, not 0 at 1, or not decreasing.

    Example:
        >>> Symbolic("(1 - t)**2 * exp(-t)").rate(torch.tensor([0.5]))
        tensor([5.])
    """

    def __init__(self, formula: str | sympy.Expr) -> None:
        self._expression = as_expression(formula)
        require(
            self._expression.has(TIME), f"formula {formula} is constant, must decrease from 1 to 0"
        )
        self.formula = str(self._expression)
        self.declare(formula=formula)
        for point, value in ((0, 1), (1, 0)):
            end, exact = limit(self._expression, point, value)
            require(exact, f"formula {formula} tends to {end} at t = {point}, must be {value}")
        derivative = sympy.diff(self._expression, TIME)
        self._alpha = Compiled(self._expression)
        self._alpha_prime = Compiled(derivative)
        self._rate = Compiled(
            -sympy.diff(sympy.expand_log(sympy.log(self._expression), force=True), TIME)
        )
        self._end, self._late = _tail(self._expression) or (0.0, [0.0, 1.0])
        self.check()

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls("(1 - t)**2 * exp(-t)"), cls("1 - sin(pi*t/2)"), cls("(1 - t) / (1 + 3*t)")]

    def arguments(self) -> dict[str, Any]:
        """Return the formula as a string.

        A sympy expression is printed with all digits of its numbers.

        Raises:
            TypeError: the expression has numbers or functions that ``parse`` cannot read from a
                string.
        """
        return {"formula": exact_text(super().arguments()["formula"], self._expression)}

    def expression(self) -> sympy.Expr:
        return self._expression

    def alpha(self, t: Any, xp: Any = torch) -> Any:
        if xp is not torch:
            return self._expression.subs(TIME, t)
        return torch.where(1 - t < self._end, _horner(self._late, 1 - t), self._alpha(t))

    def alpha_prime(self, t: Tensor) -> Tensor:
        return self._alpha_prime(t)

    def rate(self, t: Tensor) -> Tensor:
        slope = [k * c for k, c in enumerate(self._late)][1:]
        late = _horner(slope, 1 - t) / _horner(self._late, 1 - t)
        return torch.where(1 - t < self._end, late, self._rate(t))
