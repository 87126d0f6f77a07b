"""Launchers of the kernels in fingerprint.py: on the tensors' device and its current stream, no host sync.

Arguments are checked by the caller: rows 2-D with a contiguous last dimension, key 32 bytes, all on one device.
"""

from __future__ import annotations

import contextlib
import functools

import torch
import triton
import triton.language as tl

from . import fingerprint as kernels
from .plan import Plan, choose, power_of_two

_INTERPRETED = (32, 4 * 32 * 132)  # CPU tensors, as on an H200


@functools.cache
def _shape_of(device: torch.device) -> tuple[int, int]:
    """Lanes of a warp, and lanes that a device runs at full speed: a warp on each of the 4 schedulers of an SM or CU."""
    if device.type == "cpu":
        return _INTERPRETED
    properties = torch.cuda.get_device_properties(device)
    lanes = int(getattr(properties, "warp_size", 32))
    return lanes, 4 * lanes * properties.multi_processor_count


def _one(device: torch.device) -> int | None:
    """Multiply-adds for adds on NVIDIA GPUs (see blake3.compress): elsewhere a multiplication costs more."""
    return 1 if device.type == "cuda" and torch.version.hip is None else None


def _on(device: torch.device) -> contextlib.AbstractContextManager[object]:
    return contextlib.nullcontext() if device.type == "cpu" else torch.cuda.device(device)


def _bytes(tensor: torch.Tensor) -> object:
    """The tensor's memory as uint8, whatever its dtype."""
    return triton.reinterpret(tensor, tl.uint8)


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` where words can be read from it, else a copy."""
    return tensor if tensor.data_ptr() % 4 == 0 else tensor.clone()


def _digests(out: torch.Tensor) -> torch.Tensor:
    """`out` where words can be written to it, else a tensor to copy from."""
    return out if out.data_ptr() % 4 == 0 else out.new_empty(tuple(out.shape))


def hash_rows(
    rows: torch.Tensor, staged: torch.Tensor | None, key: torch.Tensor, out: torch.Tensor, plan: Plan | None = None
) -> torch.Tensor:
    """Digests of rows [num_rows, hidden] to out, uint8 [num_rows, 16 or 32] contiguous; with `staged` the rows are also
    copied there. One launch, and one or two small ones more for rows of more than 32 KiB. `plan`: for tests."""
    num_rows, size = rows.shape[0], rows.element_size()
    if num_rows == 0:
        return out
    to = rows if staged is None else staged
    width = rows.shape[1] * size
    # The stride of a lone row is never used.
    stride, to_stride = (t.stride(0) * size if num_rows > 1 else 0 for t in (rows, to))
    aligned = (rows.data_ptr() | to.data_ptr() | width | stride | to_stride) % 16 == 0
    if plan is None:
        plan = choose(num_rows, width, aligned, *_shape_of(rows.device))
    key, digests = _words(key), _digests(out)
    nodes = digests if plan.tiles == 1 else out.new_empty((num_rows, plan.tiles, 32))
    arguments = (_bytes(rows), _bytes(to), key, nodes, num_rows, width, stride, to_stride)
    constants = {"LANES": plan.lanes, "OUT_WORDS": nodes.shape[-1] // 4, "STAGE": staged is not None, "num_warps": 1}
    programs, one = -(-num_rows // plan.rows_each), _one(rows.device)
    with _on(rows.device):
        if plan.levels:
            kernels.hash_lanes[(programs,)](*arguments, one, LEVELS=plan.levels, **constants)
        else:
            log = (plan.width - 1).bit_length()
            kernels.hash_tiles[(programs, plan.tiles)](*arguments, log, one, ALIGNED=aligned, **constants)
            _merge(nodes, key, digests, plan.lanes, one)
    return out if digests is out else out.copy_(digests)


def _merge(nodes: torch.Tensor, key: torch.Tensor, digests: torch.Tensor, lanes: int, one: int | None) -> None:
    """Digests from nodes, uint8 [num_rows, count, 32]; none to make if these are the digests."""
    while nodes is not digests:
        num_rows, count, _ = nodes.shape
        width = min(lanes, power_of_two(count))
        groups = -(-count // width)
        to = digests if groups == 1 else nodes.new_empty((num_rows, groups, 32))
        kernels.merge_tiles[(-(-num_rows // (lanes // width)), groups)](
            nodes, key, to, num_rows, count, (width - 1).bit_length(), one,
            LANES=lanes, OUT_WORDS=to.shape[-1] // 4, num_warps=1,
        )  # fmt: skip
        nodes = to


def fold_spans(rows: torch.Tensor, cu_seqlens: torch.Tensor, key: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Digests of the spans of rows, uint8 [num_rows, 16 or 32], to out [num_spans, the same]; one launch. Rows that are
    not contiguous or not on a multiple of 16 bytes are copied first."""
    num_spans, digest_size = out.shape
    if num_spans == 0:
        return out
    if not rows.is_contiguous() or rows.data_ptr() % 16:
        rows = rows.clone(memory_format=torch.contiguous_format)
    key, digests = _words(key), _digests(out)
    lanes, _ = _shape_of(rows.device)
    with _on(rows.device):
        kernels.fold_spans[(num_spans,)](
            rows, cu_seqlens.contiguous(), key, digests, rows.shape[0], _one(rows.device),
            LANES=lanes, OUT_WORDS=digest_size // 4, num_warps=1,
        )  # fmt: skip
    return out if digests is out else out.copy_(digests)
