"""Rows as callers hold them (torch tensors, CuPy and numpy arrays, anything with DLPack) as plain torch tensors,
without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from gpukey.checks import check_rows

_PLAIN_DISPATCH = torch.Tensor.__torch_dispatch__


def take_rows(rows: Any) -> torch.Tensor:
    """`rows` as a checked tensor [num_rows, hidden] over the same memory; TypeError or ValueError for what has no plain
    rows."""
    tensor: torch.Tensor = rows
    if type(rows) is not torch.Tensor:
        tensor = _plain(rows) if isinstance(rows, torch.Tensor) else _borrow(rows)
    return check_rows(tensor)


def _plain(rows: torch.Tensor) -> torch.Tensor:
    # A subclass may hold its values anywhere: only one that leaves dispatch alone is a view of its storage. Fakes stand
    # for plain tensors.
    kind = type(rows)
    if kind.__torch_dispatch__ is _PLAIN_DISPATCH:
        return rows.as_subclass(torch.Tensor)
    from torch._subclasses import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    if isinstance(rows, (FakeTensor, FunctionalTensor)):
        return rows
    raise TypeError(
        f"rows is a {kind.__name__}, a tensor subclass without plain storage; take the tensor that it wraps"
    )


def _borrow(rows: Any) -> torch.Tensor:
    wanted = "a torch tensor or an array with __dlpack__ or __cuda_array_interface__ is needed"
    try:
        if isinstance(rows, np.ndarray):
            return from_numpy(rows)
        if hasattr(rows, "__dlpack__"):
            return from_dlpack(rows)
        if hasattr(rows, "__cuda_array_interface__"):
            return torch.as_tensor(rows, device="cuda")
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise TypeError(
            f"rows is a {type(rows).__name__} that torch cannot read in place ({error}); {wanted}"
        ) from error
    raise TypeError(f"rows is a {type(rows).__name__}; {wanted}")


class _Writable:
    """The same memory, called writable: torch reads no other array in place, and nothing here writes."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def from_numpy(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """An array of any shape and torch's or ml_dtypes' dtype, over the same memory; TypeError or ValueError for others."""
    if any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array)
    if array.dtype.kind == "V":
        # ml_dtypes (bfloat16, float8) are named as torch names them.
        dtype = getattr(torch, array.dtype.name, None)
        if not isinstance(dtype, torch.dtype) or dtype.itemsize != array.dtype.itemsize:
            raise TypeError(f"dtype {array.dtype} has no torch dtype of that name")
        return from_numpy(array.view(f"u{array.dtype.itemsize}")).view(dtype)
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Writable(array)))
