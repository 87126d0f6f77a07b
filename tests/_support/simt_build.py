"""Builds csrc/fingerprint.cu for the host with the shim of tests/simt, and writes case files for it."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import itertools
import os
import pathlib
import struct
import subprocess
from collections.abc import Mapping, Sequence

import blake3

ROOT = pathlib.Path(__file__).resolve().parents[2]
CSRC, SIMT = ROOT / "csrc", ROOT / "tests" / "simt"
COMMON = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Wno-unknown-pragmas", f"-I{SIMT}"]
# Kernels get `kernel`; the shim, which is no part of what is tested, only `shim`.
FLAVOURS = {
    "asan": {
        "kernel": ["-fsanitize=address", "-fno-omit-frame-pointer"],
        "shim": ["-fsanitize=address", "-DSIMT_ASAN"],
        "link": ["-fsanitize=address"],
        "sources": ["scheduler.cpp"],
    },
    "ubsan": {  # apart from ASan: together they take three times as long to compile
        "kernel": ["-fsanitize=undefined", "-fno-sanitize-recover=undefined"],
        "shim": [],
        "link": ["-fsanitize=undefined"],
        "sources": ["scheduler.cpp"],
    },
    "check": {
        "kernel": ["-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0", "-fno-pie", "-DSIMT_CHECK"],
        "shim": ["-O2", "-fno-pie", "-DSIMT_CHECK"],
        "link": ["-no-pie"],
        "sources": ["scheduler.cpp", "races.cpp"],
    },
}


@dataclasses.dataclass
class Builder:
    """Compiles into `folder`, which several test processes share: a file is built once, under a lock."""

    folder: pathlib.Path

    def program(self, flavour: str, changes: Mapping[str, tuple[str, str]] | None = None) -> pathlib.Path:
        """run_cases over csrc as it is, or with one text replaced in each of the named files."""
        changes = changes or {}
        tag = hashlib.sha256(repr((flavour, sorted(changes.items()))).encode()).hexdigest()[:12]
        source = CSRC
        if changes:
            source = self.folder / f"csrc-{tag}"
        flags = FLAVOURS[flavour]
        with self._locked(tag):
            program = self.folder / f"run-{tag}"
            if not program.exists():
                if changes:
                    _copy_changed(source, changes)
                shim = [self._object(SIMT / name, flags["shim"], CSRC) for name in (*flags["sources"], "run_cases.cpp")]
                kernel = self._object(source / "fingerprint.cu", flags["kernel"], source)
                _run(["g++", *flags["link"], kernel, *shim, "-o", f"{program}.part"])
                os.rename(f"{program}.part", program)
        return program

    def plain(self, flavour: str, source: pathlib.Path) -> pathlib.Path:
        """A program of one file of tests/simt and the shim."""
        flags = FLAVOURS[flavour]
        with self._locked(f"{flavour}-{source.name}"):
            program = self.folder / f"run-{flavour}-{source.stem}"
            if not program.exists():
                shim = [self._object(SIMT / name, flags["shim"], CSRC) for name in flags["sources"]]
                _run(["g++", *flags["link"], self._object(source, flags["kernel"], CSRC), *shim, "-o", program])
        return program

    def _object(self, source: pathlib.Path, flags: Sequence[str], include: pathlib.Path) -> pathlib.Path:
        tag = hashlib.sha256(repr((source, flags)).encode()).hexdigest()[:12]
        target = self.folder / f"{source.stem}-{tag}.o"
        with self._locked(target.name):
            if not target.exists():
                command = ["g++", *COMMON, *flags, f"-I{include}", "-c", "-x", "c++", source, "-o", f"{target}.part"]
                _run(command)
                os.rename(f"{target}.part", target)
        return target

    def _locked(self, name: str) -> _Lock:
        return _Lock(self.folder / f"{name}.lock")


class _Lock:
    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        self.file = open(self.path, "w")
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self.file.close()


def _run(command: Sequence[object]) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _copy_changed(target: pathlib.Path, changes: Mapping[str, tuple[str, str]]) -> None:
    target.mkdir(exist_ok=True)
    for name in (
        "blake3.cuh",
        "device.h",
        "load_store.cuh",
        "fingerprint_kernels.cuh",
        "plan.h",
        "fingerprint.h",
        "fingerprint.cu",
    ):
        text = (CSRC / name).read_text()
        if name in changes:
            old, new = changes[name]
            assert text.count(old) == 1, f"{name} holds {old!r} {text.count(old)} times, one is needed"
            text = text.replace(old, new)
        (target / name).write_text(text)


@dataclasses.dataclass
class Case:
    """Rows of `width` bytes at `stride`, their first byte `at` bytes after a multiple of 16; likewise the copy and the digests."""

    num_rows: int
    width: int
    stride: int
    at: int = 0
    digest_size: int = 16
    digests_at: int = 0
    staged_stride: int = 0
    staged_at: int = 0
    bounds: Sequence[int] | None = None
    bound_bytes: int = 4

    def pack(self) -> bytes:
        """The case as run_cases.cpp reads it, with the digests that the blake3 package gives."""
        key = hashlib.sha256(repr(self).encode()).digest()
        extent = (self.num_rows - 1) * self.stride + self.width if self.num_rows else 0
        data = hashlib.shake_128(key).digest(extent)
        operation = 2 if self.bounds is not None else 1 if self.staged_stride else 0
        bounds = list(self.bounds or [])
        header = struct.pack(
            "<11q", operation, self.num_rows, self.width, self.stride, self.at, self.staged_stride, self.staged_at,
            self.digest_size, self.digests_at, max(len(bounds) - 1, 0), self.bound_bytes,
        )  # fmt: skip
        packed_bounds = struct.pack(f"<{len(bounds)}{'i' if self.bound_bytes == 4 else 'q'}", *bounds)
        return header + key + data + packed_bounds + b"".join(self._digests(key, data))

    def _digests(self, key: bytes, data: bytes) -> list[bytes]:
        if self.bounds is None:
            parts = [data[i * self.stride : i * self.stride + self.width] for i in range(self.num_rows)]
        else:
            clamped = [min(max(bound, 0), self.num_rows) for bound in self.bounds]
            parts = [data[b * self.width : e * self.width] for b, e in itertools.pairwise(clamped)]
        return [blake3.blake3(part, key=key).digest(self.digest_size) for part in parts]


def run_cases(
    program: pathlib.Path, folder: pathlib.Path, cases: Sequence[Case], order: str = "fwd", fill: str = "0xA5"
) -> subprocess.CompletedProcess[str]:
    """Runs the cases; the caller looks at the exit status and the output."""
    path = folder / "cases.bin"
    path.write_bytes(b"".join(case.pack() for case in cases))
    env = {
        **os.environ,
        "SIMT_ORDER": order,
        "SIMT_FILL": fill,
        "ASAN_OPTIONS": "detect_stack_use_after_return=0:detect_leaks=0",
    }
    return subprocess.run([program, path], capture_output=True, text=True, env=env)
