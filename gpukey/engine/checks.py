"""Arguments as plain Python numbers, or an error that names them."""

from __future__ import annotations

import math
import operator
from typing import Any


def as_int(name: str, value: Any, *, low: int = 0, high: int | None = None) -> int:
    """`value` as an int in [low, high]; booleans and floats are TypeError, others out of range ValueError."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is a {type(value).__name__}; an integer is needed") from None
    if number < low or (high is not None and number > high):
        bound = f"at least {low}" if high is None else f"{low} to {high}"
        raise ValueError(f"{name} is {number}; {bound} is needed")
    return number


def as_number(name: str, value: Any, *, low: float, high: float = math.inf) -> float:
    """`value` as a finite float in [low, high]."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} is a {type(value).__name__}; a number is needed")
    number = float(value)
    if not (math.isfinite(number) and low <= number <= high):
        bound = f"a finite number of at least {low:g}" if math.isinf(high) else f"a number from {low:g} to {high:g}"
        raise ValueError(f"{name} is {number}; {bound} is needed")
    return number
