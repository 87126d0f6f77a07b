"""Faults planted in a copy of csrc are found by the same checks that the real kernels pass: the tests can fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from ptx import Module, PTXError, nvcc
from ptx.hash_checks import CHUNK, HOSTILE, WIDTHS, Functions, check_fold, check_rows, check_stage, row_cases
from ptx.launcher import Launcher
from ptx.layout import RowsCase


def short_rows(on: Functions) -> Iterator[None]:
    for width in WIDTHS:
        if width <= 200:
            yield from (check_rows(on, case, seed) for seed, case in enumerate(row_cases(width)))


def long_rows(on: Functions) -> Iterator[None]:
    for width in (*(w for w in WIDTHS if w > 30_000), 257 * CHUNK):
        yield check_rows(on, RowsCase(1, width, width), width)


def far_rows(on: Functions) -> Iterator[None]:
    yield check_rows(on, RowsCase(5, 130, 2**33 + 7), 1)


def staged_rows(on: Functions) -> Iterator[None]:
    for width in (64, 66, 1025):
        yield check_stage(on, RowsCase(5, width, width, offset=2), width + 1, 3, width)


def hostile_spans(on: Functions) -> Iterator[None]:
    yield from (check_fold(on, 10, list(bounds), np.int32, 16) for bounds in HOSTILE)


@dataclass(frozen=True)
class Plant:
    """`right` in csrc/`file` becomes `wrong`; one of `checks` must fail with `found`."""

    file: str
    right: str
    wrong: str
    checks: Callable[[Functions], Iterator[None]]
    found: type[Exception]


PLANTS = {
    "a wrong rotate": Plant("blake3.cuh", "rotate_right<7>(b ^ c)", "rotate_right<8>(b ^ c)", short_rows, AssertionError),
    "a chunk counter of 6 bits": Plant(
        "fingerprint_kernels.cuh", "static_cast<uint32_t>(chunk),", "static_cast<uint32_t>(chunk) & 63u,", long_rows, AssertionError
    ),
    "no ROOT above a block": Plant(
        "fingerprint_kernels.cuh", "parent_flags(root)", "parent_flags(root && level)", long_rows, AssertionError
    ),
    "a tail read one byte too far": Plant("load_store.cuh", "4 * i + 4 <= end", "4 * i + 3 <= end", short_rows, PTXError),
    "a row offset of 32 bits": Plant(
        "fingerprint_kernels.cuh", "row * in.stride,", "row * static_cast<int>(in.stride),", far_rows, PTXError
    ),
    "a bound not clamped": Plant(
        "fingerprint_kernels.cuh", "x > num_rows ? num_rows : x", "x", hostile_spans, PTXError
    ),
    "a copy one byte too long": Plant(
        "load_store.cuh", "if (4 * i + j < count) p[4", "if (4 * i + j <= count) p[4", staged_rows, AssertionError
    ),
}  # fmt: skip


def planted(plant: Plant, folder: Path) -> Path:
    """PTX of a copy of csrc with the fault in it."""
    source = folder / "csrc"
    source.mkdir()
    for path in nvcc.CSRC.glob("*.*"):
        text = path.read_text()
        if path.name == plant.file:
            pattern = r"\s+".join(re.escape(word) for word in plant.right.split())
            text, count = re.subn(pattern, lambda _: plant.wrong, text)
            assert count == 1, f"{plant.right!r} stands {count} times in {path.name}"
        (source / path.name).write_text(text)
    return nvcc.ptx(90, folder, source)


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_found(name, cuda, tmp_path):
    plant = PLANTS[name]
    faulty = Launcher(Module(planted(plant, tmp_path).read_text()), cuda(90).library)
    with pytest.raises(plant.found) as found:
        for _ in plant.checks(faulty):
            pass
    assert type(found.value) is plant.found
    for _ in plant.checks(cuda(90)):  # and the kernels without it pass the same checks
        pass
