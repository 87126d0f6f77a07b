"""Clocks of the device scripts: the device's own time, the host's time a call, and the card's clock under load. On a
CPU (a rehearsal) all of it is wall-clock."""

from __future__ import annotations

import json
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def kernel_us(function: Callable[[], Any], device: str, rep_ms: int = 30) -> float:
    """Median microseconds of the device's work, its second-level cache flushed before each round."""
    if device == "cuda":
        from triton.testing import do_bench

        return float(do_bench(function, warmup=5, rep=rep_ms, return_mode="median")) * 1e3
    return wall_us(function, device, rounds=3)


def wall_us(function: Callable[[], Any], device: str, rounds: int = 20) -> float:
    """Median microseconds from the call until its work is done, as the host sees it."""
    times = []
    for _ in range(rounds + 2):
        synchronize(device)
        start = time.perf_counter()
        function()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:]) * 1e6


def host_us(function: Callable[[], Any], device: str, calls: int = 200) -> float:
    """Mean microseconds that a call keeps the host; nothing waits for the device in between."""
    for _ in range(10):
        function()
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        function()
    spent = time.perf_counter() - start
    synchronize(device)
    return spent / calls * 1e6


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


class SmClock:
    """The highest multiprocessor clock (MHz) that nvidia-smi saw while the block ran; None where it has none."""

    mhz: float | None = None

    def __enter__(self) -> SmClock:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        command = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"]
        while not self._stop.is_set():
            try:
                seen = float(subprocess.check_output(command, text=True, timeout=5).splitlines()[0])
            except (OSError, subprocess.SubprocessError, ValueError, IndexError):
                return
            self.mhz = max(self.mhz or 0.0, seen)


def machine(device: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"torch": torch.__version__, "device": device, "rehearsal": device != "cuda"}
    if device == "cuda":
        card = torch.cuda.get_device_properties(0)
        facts |= {"card": card.name, "sms": card.multi_processor_count, "capability": f"{card.major}.{card.minor}"}
    return facts


def write(path: str, report: dict[str, Any]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(report, indent=1) + "\n")
