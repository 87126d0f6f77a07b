"""The CPU core without torch under AddressSanitizer and UndefinedBehaviorSanitizer, once for each instruction set."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("cpu_driver.cpp")
KEY = b"whats the Elvish word for friend"
SOURCES = ["fingerprint_cpu", "lanes_avx512", "lanes_avx2", "lanes_baseline", "block_keys"]
WIDTHS = [
    1,
    2,
    3,
    31,
    63,
    64,
    65,
    127,
    128,
    129,
    1000,
    1023,
    1024,
    1025,
    1088,
    1792,
    2047,
    2048,
    2049,
    3072,
    5121,
    8192,
]
LONG = [16_385, 262_143, 262_144, 262_145, 600_001]


def pattern(size: int) -> bytes:
    i = np.arange(size, dtype=np.uint64)
    return ((i * np.uint64(2654435761) >> np.uint64(13)) ^ i).astype(np.uint8).tobytes()


def digest(data: bytes, size: int = 32) -> str:
    return blake3(data, key=KEY).digest(size).hex()


def row_cases():
    for width in WIDTHS:
        for num_rows, gap, offset in [(1, 0, 0), (7, 1, 3), (16, 0, 1), (19, 5, 2), (35, 64, 0)]:
            yield num_rows, width, width + gap, offset, 16
    yield from ((2, width, width + 1, 1, 32) for width in LONG)
    yield from [
        (0, 64, 64, 0, 16),
        (300, 9, 9, 0, 32),
        (40, 2048, 0, 5, 16),
        (257, 1024, 1024, 0, 16),
        (20, 1792, 7, 0, 16),
    ]


def folds():
    return [(16, [0, 1, 1, 2, 0, 0, 64, 64, 64, 576, 5000]), (32, [3, 3, 0, 31, 32, 33, 9000]), (16, [])]


def cases() -> tuple[list[str], list[str]]:
    """(lines for the driver, lines that it must print)."""
    requests, wanted = [], []
    for num_rows, width, stride, offset, size in row_cases():
        data = pattern(offset + num_rows * stride + width)
        digests = [digest(data[offset + i * stride :][:width], size) for i in range(num_rows)]
        for verb in ("rows", "stage"):
            requests.append(f"{verb} {num_rows} {width} {stride} {offset} {size}")
            wanted += digests
    for size, lengths in folds():
        requests.append(" ".join(map(str, ["fold", size, *lengths])))
        data = pattern(sum(lengths) * size)
        bounds = np.cumsum([0, *lengths]) * size
        wanted += [digest(data[bounds[i] : bounds[i + 1]], size) for i in range(len(lengths))]
    for block_size in (1, 2, 3, 16, 123, 124, 125, 252, 1000):
        num_ids = 3 * block_size + block_size // 2
        requests.append(f"keys {block_size} {num_ids}")
        ids, parent = [i * 40503 % 151936 for i in range(num_ids)], KEY
        for start in range(0, num_ids - block_size + 1, block_size):
            block = ids[start : start + block_size]
            parent = blake3(parent + struct.pack(f"<I{block_size}Q", block_size, *block), key=KEY).digest()
            wanted.append(parent.hex())
    return requests, wanted


FLAGS = ["-std=c++17", "-O2", "-g1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/csrc", "-fsanitize=address,undefined"]
FLAGS += ["-fno-sanitize-recover=all"]


def compile_(*arguments: str | Path) -> None:
    done = subprocess.run(["g++", *FLAGS, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def core(tmp_path_factory) -> list[Path]:
    """The core's objects, compiled with sanitizers."""
    folder = tmp_path_factory.mktemp("cpu_core")
    objects = [folder / f"{name}.o" for name in SOURCES]
    for name, output in zip(SOURCES, objects, strict=True):
        compile_("-c", ROOT / f"csrc/{name}.cpp", "-o", output)
    return objects


def run(binary: Path, requests: list[str], **env: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LD_PRELOAD": "", **env}
    return subprocess.run([binary], input="\n".join(requests), capture_output=True, text=True, env=env)


@pytest.fixture(scope="session")
def driver(core) -> Path:
    binary = core[0].with_name("driver")
    compile_("-static-libasan", DRIVER, *core, "-o", binary)
    return binary


@pytest.mark.parametrize("isa", ["avx512", "avx2", "baseline"])
def test_digests_and_memory(driver, isa):
    requests, wanted = cases()
    done = run(driver, requests, GPUKEY_CPU_ISA=isa)
    assert done.returncode == 0, done.stderr[-3000:]
    chosen, *printed = done.stdout.split("\n")[:-1]
    assert chosen in (isa, "baseline")  # the latter where this CPU has not the set
    assert len(printed) == len(wanted)
    wrong = [i for i, (came, want) in enumerate(zip(printed, wanted, strict=True)) if came != want]
    assert not wrong, (printed[wrong[0]], wanted[wrong[0]], len(wrong))


def test_the_sanitizer_sees_one_byte_too_many(core, tmp_path):
    """The test above can fail: rows that claim a byte more than their buffer has are caught."""
    source = DRIVER.read_text()
    planted = source.replace("num_rows, width, stride};", "num_rows, width + 1, stride};")
    assert planted != source
    (tmp_path / "planted.cpp").write_text(planted)
    compile_("-static-libasan", tmp_path / "planted.cpp", *core, "-o", tmp_path / "planted")
    done = run(tmp_path / "planted", ["rows 1 1000 1000 0 16"])
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
