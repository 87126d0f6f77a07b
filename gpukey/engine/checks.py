"""Numbers that are not integers (those are gpukey._checks.integer), or an error that names the argument."""

from __future__ import annotations

import math
from typing import Any


def as_number(name: str, value: Any, *, low: float, high: float = math.inf) -> float:
    """`value` as a finite float in [low, high]."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} is a {type(value).__name__}; a number is needed")
    number = float(value)
    if not (math.isfinite(number) and low <= number <= high):
        bound = f"a finite number of at least {low:g}" if math.isinf(high) else f"a number from {low:g} to {high:g}"
        raise ValueError(f"{name} is {number}; {bound} is needed")
    return number
