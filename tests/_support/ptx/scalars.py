"""PTX scalar types and literals. A register holds the unsigned NumPy type of its width; predicates are booleans."""

import re

import numpy as np

from .errors import PTXError

UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}

_POISON = {16: 0xA7C3, 32: 0xA7C3_95E1, 64: 0xA7C3_95E1_D2B8_F06D}


def bits(type_name: str) -> int:
    """Width of `u32`, `b64`, ... in bits; `pred` is 1."""
    if type_name == "pred":
        return 1
    width = type_name[1:] if type_name[:1] in "busf" else ""
    if width not in ("8", "16", "32", "64"):
        raise PTXError(f"type .{type_name} is not supported")
    return int(width)


def poison(width: int) -> np.generic:
    """What a register holds before its first write: a value that no test expects."""
    return np.bool_(True) if width == 1 else UNSIGNED[max(width, 16)](_POISON[max(width, 16)])


def literal(text: str) -> int | None:
    """The integer (or the bits of a hexadecimal float) that `text` spells, None if it is no literal."""
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}", text):
        return int(text[2:], 16)
    if text == "WARP_SZ":
        return 32
    match = re.fullmatch(r"(-?)(0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9]\d*)U?", text)
    if match is None:
        return None
    digits = match[2]
    base = 8 if re.fullmatch(r"0[0-7]+", digits) else 0
    return (-1 if match[1] else 1) * int(digits, base)
