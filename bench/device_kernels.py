"""Rows, folds and staging on one GPU, from 1 KiB to 1 GiB, beside the copy bandwidth of the same run and beside what
engines do today: copy home, then BLAKE3 or SHA-256 on the host. Writes JSON.

    python bench/device_kernels.py OUT.json [--rehearse]

`--rehearse` runs the same code on a CPU with small sizes, to find typing errors before a GPU is lent.
"""

from __future__ import annotations

import argparse
import hashlib
from typing import Any

import torch
from blake3 import blake3
from device_timing import SmClock, host_us, kernel_us, machine, wall_us, write

import gpukey
from gpukey import backends

HIDDENS = (896, 4096, 8192)
SIZES = tuple(1 << bits for bits in (10, 14, 16, 20, 22, 24, 26, 28, 30))
SECRET = gpukey.Secret(b"a secret for benchmarks, nothing else")


def rows_of(size: int, hidden: int, device: str) -> torch.Tensor:
    """About `size` bytes of bfloat16 rows [num_rows, hidden]; at least one row."""
    num_rows = max(1, size // (2 * hidden))
    return torch.randint(-(2**15), 2**15, (num_rows, hidden), dtype=torch.int16, device=device).view(torch.bfloat16)


def useful_compressions(width: int) -> int:
    """Compressions that BLAKE3 needs for a row of `width` bytes."""
    chunks = max(1, -(-width // 1024))
    return max(1, -(-width // 64)) + chunks - 1


def copy_bandwidth(device: str, size: int) -> float:
    """GB/s, bytes read and written."""
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / kernel_us(lambda: target.copy_(source), device) / 1e3


def time_rows(backend: backends.Backend, device: str, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    found = []
    for hidden in HIDDENS:
        key = SECRET.row_key(torch.bfloat16, hidden, device=device)
        for size in sizes:
            rows = rows_of(size, hidden, device)
            out = torch.empty(rows.shape[0], 16, dtype=torch.uint8, device=device)
            staged = torch.empty_like(rows)
            real = rows.numel() * 2
            rows_us = kernel_us(lambda: backend.fingerprint_rows(rows, key, 16, out), device)  # noqa: B023
            stage_us = kernel_us(lambda: backend.stage_rows(rows, staged, key, 16, out), device)  # noqa: B023
            found.append({"backend": backend.NAME, "hidden": hidden, "bytes": real, "rows_us": rows_us})
            found[-1] |= {"rows_gbs": real / rows_us / 1e3, "stage_us": stage_us, "stage_gbs": real / stage_us / 1e3}
    return found


def time_folds(backend: backends.Backend, device: str, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    found = []
    key = SECRET.span_key(torch.bfloat16, 896, device=device)
    for size in sizes:
        for rows_per_span in (16, 576):
            num_spans = max(1, size // 16 // rows_per_span)
            num_rows = num_spans * rows_per_span
            prints = torch.randint(0, 256, (num_rows, 16), dtype=torch.uint8, device=device)
            bounds = torch.arange(0, num_rows + 1, rows_per_span, device=device)
            out = torch.empty(num_spans, 16, dtype=torch.uint8, device=device)
            us = kernel_us(lambda: backend.fold_spans(prints, bounds, key, 16, out), device)  # noqa: B023
            found.append(
                {"backend": backend.NAME, "rows_per_span": rows_per_span, "bytes": num_rows * 16, "fold_us": us}
            )
    return found


def time_home(device: str, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Wall-clock from rows on the device to digests on the host: ours, and copy home + one hash of all the bytes."""
    found = []
    for size in sizes:
        rows = rows_of(size, 4096, device)
        landing = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=device == "cuda")
        view = memoryview(landing.view(torch.int16).numpy()).cast("B")

        def copied(hasher: Any) -> bytes:
            landing.copy_(rows)  # noqa: B023
            return hasher(view).digest()  # noqa: B023

        entry: dict[str, Any] = {"bytes": rows.numel() * 2}
        ours = lambda: gpukey.fingerprint_rows_async(rows, secret=SECRET).result()  # noqa: B023, E731
        entry["ours_us"] = wall_us(ours, device)
        for name, hasher in (("blake3", blake3), ("sha256", hashlib.sha256)):
            entry[f"copy_{name}_us"] = wall_us(lambda: copied(hasher), device, rounds=5)  # noqa: B023
        entry["times_faster_than_blake3"] = entry["copy_blake3_us"] / entry["ours_us"]
        found.append(entry)
    return found


def time_latency(backend: backends.Backend, device: str, num_rows: int) -> dict[str, Any]:
    """576 rows of 4096 in bfloat16, an image of a LLaVA: kernel time and host time a call, public call included."""
    rows = rows_of(num_rows * 8192, 4096, device)
    key = SECRET.row_key(torch.bfloat16, 4096, device=device)
    out = torch.empty(rows.shape[0], 16, dtype=torch.uint8, device=device)
    calls = 200 if device == "cuda" else 5
    return {
        "backend": backend.NAME,
        "rows": rows.shape[0],
        "kernel_us": kernel_us(lambda: backend.fingerprint_rows(rows, key, 16, out), device),
        "host_us": host_us(lambda: backend.fingerprint_rows(rows, key, 16, out), device, calls),
        "public_host_us": host_us(lambda: gpukey.fingerprint_rows(rows[:1], secret=SECRET), device, calls),
    }


def bound(report: dict[str, Any], pipe_instructions: int) -> list[dict[str, Any]]:
    """Share of the arithmetic bound: multiprocessors x 64 lanes x clock / instructions of that pipe a compression."""
    rate = report["machine"]["sms"] * 64 * report["sm_clock_mhz"] * 1e6 / pipe_instructions
    shares = []
    for entry in report["rows"]:
        width = entry["hidden"] * 2
        gbs = rate / useful_compressions(width) * width / 1e9
        shares.append({**{k: entry[k] for k in ("backend", "hidden", "bytes", "rows_gbs")}, "bound_gbs": gbs})
        shares[-1]["share"] = entry["rows_gbs"] / gbs
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, with small sizes")
    parser.add_argument(
        "--pipe-instructions", type=int, default=0, help="of the shared pipe a compression (tests/sass prints it)"
    )
    options = parser.parse_args()
    device, sizes = ("cpu", SIZES[:4]) if options.rehearse else ("cuda", SIZES)
    report: dict[str, Any] = {"machine": machine(device), "backends": backends.status()}
    report["copy_gbs"] = copy_bandwidth(device, sizes[-1])
    working = [backends.load(name) for name in backends.ORDER[device] if backends.missing(name) is None]
    for part in ("rows", "folds", "latency"):
        report[part] = []
    with SmClock() as clock:
        for backend in working:
            report["rows"] += time_rows(backend, device, sizes)
    report["sm_clock_mhz"] = clock.mhz
    write(options.out, report)
    for backend in working:
        report["folds"] += time_folds(backend, device, sizes[2:7])
        report["latency"].append(time_latency(backend, device, 8 if options.rehearse else 576))
    report["home"] = time_home(device, sizes[2:8])
    if options.pipe_instructions and clock.mhz and not options.rehearse:
        report["arithmetic_bound"] = bound(report, options.pipe_instructions)
    write(options.out, report)
    show(report)


def show(report: dict[str, Any]) -> None:
    print(f"copy {report['copy_gbs']:.0f} GB/s, SM clock {report['sm_clock_mhz']} MHz")
    row = "{backend:7} hidden {hidden:5} {bytes:>11} B: rows {rows_us:9.1f} us {rows_gbs:7.1f} GB/s, stage {stage_us:9.1f}"
    call = "{backend:7} {rows} rows: kernel {kernel_us:.1f} us, host {host_us:.1f} us, public {public_host_us:.1f} us"
    home = (
        "home {bytes:>11} B: ours {ours_us:9.1f} us, copy+blake3 {copy_blake3_us:9.1f}, {times_faster_than_blake3:.1f}x"
    )
    for line, part in ((row, "rows"), (call, "latency"), (home, "home")):
        for entry in report[part]:
            print(line.format(**entry))


if __name__ == "__main__":
    main()
