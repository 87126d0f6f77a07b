"""`gpukey info`: what is installed, which backends work, and how fast each is on this machine."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import time
from typing import Any

import torch

from gpukey import __version__, backends
from gpukey.secret import Secret

PACKAGES = (
    "torch",
    "numpy",
    "blake3",
    "triton",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "transformers",
    "vllm",
    "lmdeploy",
    "sglang",
)
NUM_BYTES, HIDDEN = 32 << 20, 4096
REPORT = os.path.join(os.path.dirname(__file__), "_build_report.json")


def collect(speed: bool = True) -> dict[str, Any]:
    """{"versions", "secret", "cuda", "build", "backends": {name: {"missing", "registered_for", "gb_per_s"}}}."""
    versions = {"gpukey": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    found = backends.status()
    return {
        "versions": versions,
        "secret": _secret(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "forced_backend": backends.forced(),
        "build": _build_report(),
        "backends": {
            name: {"missing": missing, "gb_per_s": _speed(name) if speed and missing is None else None}
            for name, missing in found.items()
        },
        "registered": {device: _registered(device) for device in backends.ORDER},
    }


def print_info(speed: bool = True, as_json: bool = False) -> None:
    """The same for a reader, or as one JSON object."""
    found = collect(speed)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print("  ".join(f"{name} {version}" for name, version in found["versions"].items()))
    print(f"secret: {found['secret']}")
    print(f"GPU: {found['cuda'] or 'none that torch can use'}")
    for device, name in found["registered"].items():
        print(f"{device} tensors: {name}")
    for name, backend in found["backends"].items():
        rate = backend["gb_per_s"]
        state = backend["missing"] or ("works" if rate is None else f"works, {rate:.2f} GB/s")
        print(f"  {name:7} {state}")
    for part, reason in found["build"].items():
        print(f"build of {part}: {reason}")


def _registered(device_type: str) -> str:
    try:
        return backends.choose(device_type).NAME
    except RuntimeError as error:
        return f"none ({error})"


def _secret() -> str:
    if "GPUKEY_SECRET" not in os.environ and "GPUKEY_SECRET_FILE" not in os.environ:
        return "none configured (this process would make a random one)"
    try:
        return f"key id {Secret.from_env().key_id}"
    except (OSError, ValueError) as error:
        return f"configured and not usable: {error}"


def _build_report() -> dict[str, str]:
    """What setup.py left when a part of the compiled core was not built: {part: reason}."""
    try:
        with open(REPORT, encoding="utf-8") as file:
            report = json.load(file)
    except (OSError, ValueError):
        return {}
    return {part: str(half.get("reason")) for part, half in report.items() if not half.get("built")}


def _speed(name: str) -> float | None:
    """GB/s over bfloat16 rows of 4096 in a buffer of 32 MiB: the median of 7 after a first call. None for an
    interpreter."""
    backend = backends.load(name)
    device = backend.DEVICE_TYPE
    if name == "triton" and os.environ.get("TRITON_INTERPRET") == "1":
        return None
    rows = torch.zeros(NUM_BYTES // 2 // HIDDEN, HIDDEN, dtype=torch.bfloat16, device=device)
    key = Secret.random().row_key(rows.dtype, HIDDEN, device=device)
    times = []
    for _ in range(8):
        started = time.perf_counter()
        backend.fingerprint_rows(rows, key, 16)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return NUM_BYTES / statistics.median(times[1:]) / 1e9
