"""What an argument of a fingerprint call must be. Everything is checked before a byte is read or an element is
copied."""

from __future__ import annotations

from itertools import pairwise

import torch

from gpukey.secret import check_digest_size

_PLAIN_DISPATCH = torch.Tensor.__torch_dispatch__
_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def check_plain(rows: torch.Tensor) -> None:
    """TypeError unless it is strided, with storage of its own: nothing is densified or dequantized to find out."""
    if rows.layout is not torch.strided:
        raise TypeError(f"rows has layout {rows.layout}; a strided tensor is needed (nothing is densified)")
    if rows.is_nested:
        raise TypeError("rows is a nested tensor; one strided tensor [num_rows, hidden] is needed")
    if rows.is_quantized:
        raise TypeError("rows is a quantized tensor; dequantize it, or give bytes and scales as one uint8 row")
    if rows.is_meta:
        raise TypeError("rows is a meta tensor, which has no bytes")


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether it is a view of memory: no fake tensor, no wrapper, nothing that is being traced."""
    return type(tensor).__torch_dispatch__ is _PLAIN_DISPATCH and not torch.compiler.is_compiling()


def check_stored(name: str, tensor: torch.Tensor) -> None:
    """ValueError unless all of it lies in its storage: a sharded model frees the storage and keeps the tensor, and torch
    itself would read past it."""
    if not has_memory(tensor) or tensor.layout is not torch.strided or not (end := tensor.numel()):
        return
    if not tensor.is_contiguous():
        end = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    stored, needed = tensor.untyped_storage().nbytes(), (tensor.storage_offset() + end) * tensor.element_size()
    if stored < needed and not tensor.is_meta:
        raise ValueError(
            f"{name} has shape {list(tensor.shape)} and storage of {stored} bytes, of {needed}: it was freed or resized"
        )


def check_rows(rows: torch.Tensor) -> torch.Tensor:
    """The same tensor when it is [num_rows, hidden], strided, with storage of its own; TypeError or ValueError
    otherwise."""
    check_plain(rows)
    if rows.dim() != 2:
        raise ValueError(f"rows has shape {list(rows.shape)}; [num_rows, hidden] is needed")
    if rows.shape[1] == 0:
        raise ValueError(f"rows has shape {list(rows.shape)}; hidden is at least 1")
    check_stored("rows", rows)
    return rows


def readable(rows: torch.Tensor) -> torch.Tensor:
    """`rows` with lazy conj and neg bits resolved and a contiguous last dimension: itself where it can be read in
    place, else a copy."""
    # Dynamo cannot ask for the bits; without them these are the tensor itself.
    if torch.compiler.is_compiling() or rows.is_conj() or rows.is_neg():
        rows = rows.resolve_conj().resolve_neg()
    if rows.stride(1) != 1 and rows.shape[1] != 1:
        rows = as_bits(rows).contiguous().view(rows.dtype)
    return rows


def as_bits(rows: torch.Tensor) -> torch.Tensor:
    """The same memory as elements that a copy cannot change: no dtype without copy kernels, no bool that is neither 0
    nor 1."""
    return rows.view(_INTEGER_OF_SIZE[rows.element_size()])


def check_key(key: torch.Tensor, device: torch.device) -> None:
    """ValueError unless `key` is uint8 [32], contiguous, on `device`."""
    if key.dtype is not torch.uint8 or key.shape != (32,) or not key.is_contiguous():
        raise ValueError(
            f"key is {_describe(key)}; contiguous uint8 [32] is needed (secret.row_key or secret.span_key)"
        )
    if key.device != device:
        raise ValueError(f"key is on {key.device}; rows is on {device}")
    check_stored("key", key)


def check_fingerprints(rows: torch.Tensor, digest_size: int) -> None:
    """ValueError unless `rows` is uint8 [num_rows, digest_size]."""
    if rows.dtype is not torch.uint8 or rows.dim() != 2 or rows.shape[1] != digest_size:
        raise ValueError(f"rows is {_describe(rows)}; fingerprints, uint8 [num_rows, {digest_size}], are needed")
    check_stored("rows", rows)


def check_bounds(cu_seqlens: torch.Tensor, device: torch.device) -> None:
    """TypeError or ValueError unless `cu_seqlens` is int32 or int64 [num_spans + 1] on `device`. Values are not
    read."""
    if not isinstance(cu_seqlens, torch.Tensor):
        raise TypeError(
            f"cu_seqlens is a {type(cu_seqlens).__name__}; a tensor int32 or int64 [num_spans + 1] is needed"
        )
    if cu_seqlens.dtype not in (torch.int32, torch.int64) or cu_seqlens.dim() != 1 or cu_seqlens.shape[0] == 0:
        raise ValueError(f"cu_seqlens is {_describe(cu_seqlens)}; int32 or int64 [num_spans + 1] is needed")
    if cu_seqlens.device != device:
        raise ValueError(f"cu_seqlens is on {cu_seqlens.device}; rows is on {device}")
    check_stored("cu_seqlens", cu_seqlens)


def check_cu_seqlens(cu_seqlens: torch.Tensor, num_rows: int) -> list[int]:
    """The bounds as integers; ValueError unless they go from 0 to `num_rows` without falling. For CPU tensors."""
    bounds: list[int] = cu_seqlens.tolist()
    if not bounds or bounds[0] != 0 or bounds[-1] != num_rows:
        ends = f"from {bounds[0]} to {bounds[-1]}" if bounds else "nowhere"
        raise ValueError(f"cu_seqlens goes {ends}; from 0 to {num_rows}, the number of rows, is needed")
    for span, (begin, end) in enumerate(pairwise(bounds)):
        if end < begin:
            raise ValueError(f"cu_seqlens falls from {begin} to {end} at span {span}; it may not fall")
    return bounds


def check_out(out: torch.Tensor, count: int, digest_size: int, device: torch.device, name: str = "out") -> None:
    """TypeError or ValueError unless `out` is contiguous uint8 [count, digest_size] on `device`."""
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"{name} is a {type(out).__name__}; a uint8 tensor [{count}, {digest_size}] is needed")
    if out.dtype is not torch.uint8 or out.shape != (count, digest_size) or not out.is_contiguous():
        raise ValueError(f"{name} is {_describe(out)}; contiguous uint8 [{count}, {digest_size}] is needed")
    if out.device != device:
        raise ValueError(f"{name} is on {out.device}; rows is on {device}")
    check_stored(name, out)


def check_apart(name: str, written: torch.Tensor, **read: torch.Tensor) -> None:
    """ValueError when `written` shares memory with what is read: digests would be of digests."""
    for other, tensor in read.items():
        if has_memory(written) and has_memory(tensor) and _meet(written, tensor):
            raise ValueError(f"{name} shares memory with {other}")


def _meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of contiguous rows share a byte."""
    if not a.numel() or not b.numel() or a.device != b.device:
        return False
    (start, width, step, count), (other, other_width, other_step, others) = _region(a), _region(b)
    if start + (count - 1) * step + width <= other or other + (others - 1) * other_step + other_width <= start:
        return False
    for begin in range(start, start + max(1, count * step), step) if step else [start]:
        # The first row of the other that ends after this one begins is the one that may meet it.
        behind = begin - other - other_width
        first = behind // other_step + 1 if behind >= 0 and other_step else 0
        if first < others and begin - other_width < other + first * other_step < begin + width:
            return True
    return False


def _region(tensor: torch.Tensor) -> tuple[int, int, int, int]:
    """Address, bytes a row, bytes from row to row, rows."""
    size = tensor.element_size()
    if tensor.is_contiguous():
        return tensor.data_ptr(), tensor.numel() * size, 0, 1
    step, count = tensor.stride(0) * size, tensor.shape[0]
    if tensor.dim() == 1:
        return tensor.data_ptr(), (count - 1) * step + size, 0, 1
    last = (tensor.shape[1] - 1) * tensor.stride(1) * size + size
    return tensor.data_ptr(), last, step if count > 1 else 0, count if step else 1


def check_staged(rows: torch.Tensor, staged: torch.Tensor) -> None:
    """ValueError unless `staged` can take `rows`: same dtype, shape and device, last dimension contiguous, no two rows
    in one place."""
    if staged.dtype is not rows.dtype or staged.shape != rows.shape or staged.device != rows.device:
        raise ValueError(f"out is {_describe(staged)}; {_describe(rows)} is needed, like rows")
    num_rows, hidden = rows.shape
    if staged.stride(1) != 1 and hidden != 1:
        raise ValueError(f"out has strides {list(staged.stride())}; a contiguous last dimension is needed")
    if staged.stride(0) < hidden and num_rows > 1:
        raise ValueError(f"out has strides {list(staged.stride())}; its rows of {hidden} overlap")
    check_stored("out", staged)


def _describe(tensor: torch.Tensor) -> str:
    layout = "" if tensor.is_contiguous() else f" with strides {list(tensor.stride())}"
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}{layout} on {tensor.device}"


__all__ = [
    "as_bits",
    "check_apart",
    "check_bounds",
    "check_cu_seqlens",
    "check_digest_size",
    "check_fingerprints",
    "check_key",
    "check_out",
    "check_rows",
    "check_staged",
    "check_stored",
    "has_memory",
    "readable",
]
