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
    width, stride = rows.shape[1] * size, rows.stride(0) * size
    to = rows if staged is None else staged
    to_stride = to.stride(0) * size
    aligned = (rows.data_ptr() | to.data_ptr() | width | stride | to_stride) % 16 == 0
    if plan is None:
        plan = choose(num_rows, width, aligned, *_shape_of(rows.device))
    key, digests = _words(key), _digests(out)
    arguments = (num_rows, width, stride, to_stride)
    words, stage = out.shape[1] // 4, staged is not None
    programs = -(-num_rows // plan.rows_each)
    with _on(rows.device):
        if plan.levels:
            kernels.hash_lanes[(programs,)](
                _bytes(rows), _bytes(to), key, digests, *arguments,
                LANES=plan.lanes, LEVELS=plan.levels, OUT_WORDS=words, STAGE=stage, num_warps=1,
            )  # fmt: skip
        else:
            one = plan.tiles == 1
            nodes = digests if one else out.new_empty((num_rows, plan.tiles, 32))
            kernels.hash_tiles[(programs, plan.tiles)](
                _bytes(rows), _bytes(to), key, nodes, *arguments, (plan.width - 1).bit_length(),
                LANES=plan.lanes, ALIGNED=aligned, OUT_WORDS=words if one else 8, STAGE=stage, num_warps=1,
            )  # fmt: skip
            _merge(nodes, key, digests, plan.lanes)
    return out if digests is out else out.copy_(digests)


def _merge(nodes: torch.Tensor, key: torch.Tensor, digests: torch.Tensor, lanes: int) -> None:
    """Digests from nodes, uint8 [num_rows, count, 32]; none to make if these are the digests."""
    while nodes is not digests:
        num_rows, count, _ = nodes.shape
        width = min(lanes, power_of_two(count))
        groups = -(-count // width)
        to = digests if groups == 1 else nodes.new_empty((num_rows, groups, 32))
        words = digests.shape[1] // 4 if groups == 1 else 8
        kernels.merge_tiles[(-(-num_rows // (lanes // width)), groups)](
            nodes, key, to, num_rows, count, (width - 1).bit_length(), LANES=lanes, OUT_WORDS=words, num_warps=1
        )
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
            rows, cu_seqlens.contiguous(), key, digests, rows.shape[0],
            LANES=lanes, OUT_WORDS=digest_size // 4, num_warps=1,
        )  # fmt: skip
    return out if digests is out else out.copy_(digests)
