"""Keys of a Secret as tensors where the rows live, kept for the next call, safe on every stream and in compiled
code."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from gpukey import streams
from gpukey.secret import Secret, default_secret, find

_lock = threading.Lock()


class DeviceKey:
    """A key on a CUDA device; `on_current_stream()` orders the current stream after the copy that brought it there.

    The copy runs on a stream of its own, which nothing holds up, so it is over within microseconds and no caller waits
    for it.
    """

    def __init__(self, host: torch.Tensor, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            if streams.capturing():
                raise RuntimeError(
                    "the key for these rows is not on the device yet, and its copy must not be captured; "
                    "run the step once before the capture, or call secret.row_key and secret.span_key for the device"
                )
            copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            with torch.cuda.stream(copies):
                # Not pinned: allocating pinned memory may wait for the device, and 32 bytes are staged by the driver.
                self._tensor = host.to(device, non_blocking=True)
                self._copied = copies.record_event()
        self._ordered: set[int] = {copies.cuda_stream}

    def on_current_stream(self) -> torch.Tensor:
        """uint8 [32]."""
        # As Inductor's code asks for it: a Stream object would cost as much as the launch.
        if torch._C._cuda_getCurrentRawStream(self._device.index) not in self._ordered:
            stream = torch.cuda.current_stream(self._device)
            # A capture cannot wait for an event from outside; it begins with a synchronisation of the device, after
            # the copy.
            with torch.cuda.device(self._device):
                if not streams.capturing():
                    stream.wait_event(self._copied)
                    self._ordered.add(stream.cuda_stream)
            self._tensor.record_stream(stream)
        return self._tensor


def device_key(
    secret: Secret, label: str, dtype: torch.dtype | str, hidden: int, digest_size: int, device: torch.device
) -> torch.Tensor:
    """Kr (label "row") or Ks ("span") as uint8 [32] on `device`, which has an index unless it is the CPU."""
    slot = (label, dtype, hidden, digest_size, device)
    key = secret._device_keys.get(slot)
    if key is None:
        with _lock:
            key = secret._device_keys.get(slot)
            if key is None:
                key = secret._device_keys[slot] = _make(secret, *slot)
    return key.on_current_stream() if isinstance(key, DeviceKey) else key


def _make(
    secret: Secret, label: str, dtype: torch.dtype | str, hidden: int, digest_size: int, device: torch.device
) -> torch.Tensor | DeviceKey:
    value = secret.host_key(label, str(dtype), hidden, digest_size)
    # Whatever mode the caller is in (fake tensors, inference), what is kept is an ordinary tensor.
    with _disable_current_modes(), torch.inference_mode(False):
        host = torch.tensor(list(value), dtype=torch.uint8, device="cpu")
        if device.type == "cpu":
            return host
        return DeviceKey(host, device) if device.type == "cuda" else host.to(device)


def dtype_named(dtype: Any) -> torch.dtype:
    """A torch.dtype, or the one with this name. A name that torch does not know would be the key of rows that nobody
    has."""
    found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if isinstance(found, torch.dtype):
        return found
    came = repr(dtype) if isinstance(dtype, str) else f"a {type(dtype).__name__}"
    raise TypeError(f"dtype is {came}; a torch.dtype or its name, such as 'bfloat16', is needed")


def usable_device(device: Any) -> torch.device:
    """As torch.device; ValueError for one that torch does not know, RuntimeError for a GPU that it cannot use here."""
    if not isinstance(device, (str, int, torch.device)):
        raise TypeError(f"device is a {type(device).__name__}; a torch.device or its name is needed")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device is {device!r}; 'cpu', 'cuda' or 'cuda:N' is needed") from error
    if place.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(f"device is {str(place)!r}; torch {torch.__version__} can use no GPU here")
    return place


# --- compiled code ----------------------------------------------------------------------------------------------------


class _Constants:
    """Keys that compiled code reads, each an attribute: Dynamo guards it, and makes it an input of its graph."""


CONSTANTS = _Constants()
F = TypeVar("F", bound=Callable[..., Any])


def _constant(function: F) -> F:
    """Called while Dynamo traces, once. As torch.compiler.assume_constant_result, which would import Dynamo, and Triton
    with it."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


# Dynamo cannot trace a Secret, but it can guard its public key id.
@_constant
def constant_name(
    key_id: str, label: str, dtype: torch.dtype, hidden: int, digest_size: int, device: torch.device
) -> str:
    """The attribute of CONSTANTS that holds this key of the living Secret with this key id."""
    name = f"{label}_{dtype}_{hidden}_{digest_size}_{device}_{key_id}".replace(".", "_").replace(":", "_")
    setattr(CONSTANTS, name, device_key(find(key_id), label, dtype, hidden, digest_size, device))
    return name


@_constant
def default_key_id() -> str:
    """The key id of this process' default secret."""
    return default_secret().key_id
