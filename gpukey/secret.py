"""The secret that every fingerprint and key is derived from. Imports without torch.

`Secret` keeps only `M = B3D("secret", S)` (docs/spec.md, section "Secret"); it never shows in a repr, a log, an
exception or a pickle.
"""

from __future__ import annotations

import itertools
import os
import secrets
import struct
import sys
import threading
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, cast

from blake3 import blake3

if TYPE_CHECKING:
    import torch

if sys.byteorder != "little":
    raise ImportError("gpukey hashes rows as they lie in memory; this host is big-endian and would give other bytes")

CONTEXT = "gpukey 2026-11-30 v1 "
MIN_SECRET_BYTES = 16
DIGEST_SIZES = (16, 32)


def keyed_hash(key: bytes, data: bytes, length: int = 32) -> bytes:
    """B3K: BLAKE3 keyed with 32 bytes, cut to `length`."""
    return blake3(data, key=key).digest(length)


def lp(data: bytes) -> bytes:
    """Length-prefixed: u32 len ‖ data."""
    if len(data) >> 32:
        raise ValueError(f"{len(data)} bytes are too long for their 32-bit length")
    return struct.pack("<I", len(data)) + data


def check_digest_size(digest_size: int) -> int:
    """The same number, or an error unless it is 16 or 32."""
    if isinstance(digest_size, bool) or not isinstance(digest_size, int):
        raise TypeError(f"digest_size is a {type(digest_size).__name__}; the integer 16 or 32 is needed")
    if digest_size not in DIGEST_SIZES:
        raise ValueError(f"digest_size is {digest_size}; 16 or 32 is needed")
    return digest_size


def domain(dtype: str, hidden: int, digest_size: int) -> bytes:
    """D: lp(dtype as torch prints it, without "torch.") ‖ u64 hidden ‖ u8 digest_size."""
    return lp(dtype.encode("ascii")) + struct.pack("<QB", hidden, digest_size)


class Secret:
    """At least 16 bytes with at least 128 bits of entropy (`gpukey keygen`), used for nothing else; never a password.

    Secret(value) takes bytes. `Secret.from_env()` reads GPUKEY_SECRET (UTF-8 of the value) or GPUKEY_SECRET_FILE (the
    file's bytes, less one trailing LF or CRLF). `Secret.random()` serves one process and its keys stay private to it.
    """

    __slots__ = ("__weakref__", "_device_keys", "_master", "is_random", "key_id")

    def __init__(self, value: bytes) -> None:
        # Deleted before an error: some tracebacks show what local variables held.
        if not issubclass(type(value), (bytes, bytearray, memoryview)):
            kind = type(value).__name__
            del value
            raise TypeError(f"value is a {kind}; at least {MIN_SECRET_BYTES} bytes are needed")
        value = bytes(value)
        if error := _too_short("value", value):
            del value
            raise error
        self._master = blake3(value, derive_key_context=CONTEXT + "secret").digest()
        self._device_keys: dict[Any, Any] = {}
        self.is_random = False
        self.key_id: str = self.derive("key id")[:8].hex()
        """16 hex digits, public, to tell two secrets apart."""
        _living[next(_serial)] = self

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Secret:
        """The configured secret; ValueError when neither variable is set, or both are."""
        found = _configured(os.environ if environ is None else environ)
        del environ
        if isinstance(found, Exception):
            raise found
        return cls(found)

    @classmethod
    def random(cls) -> Secret:
        """A fresh secret from the operating system's generator; nothing that it keys can be shared between
        processes."""
        secret = cls(secrets.token_bytes(32))
        secret.is_random = True
        return secret

    def require_configured(self) -> Secret:
        """Itself, unless it is random: then its keys mean nothing to another process, and nothing may be shared."""
        if self.is_random:
            raise ValueError(
                "secret is a random one of this process; to share keys, "
                "set GPUKEY_SECRET or GPUKEY_SECRET_FILE (`gpukey keygen` makes a secret)"
            )
        return self

    def derive(self, label: str, suffix: bytes = b"") -> bytes:
        """B3D(label, M ‖ suffix), 32 bytes."""
        return blake3(self._master + suffix, derive_key_context=CONTEXT + label).digest()

    def row_key(
        self, dtype: torch.dtype | str, hidden: int, *, digest_size: int = 16, device: torch.device | str | None = None
    ) -> torch.Tensor:
        """Kr as uint8 [32] on `device` (CPU by default), for `torch.ops.gpukey.fingerprint_rows`. Kept for the next
        call."""
        return self._device_key("row", dtype, hidden, digest_size, device)

    def span_key(
        self, dtype: torch.dtype | str, hidden: int, *, digest_size: int = 16, device: torch.device | str | None = None
    ) -> torch.Tensor:
        """Ks as uint8 [32] on `device` (CPU by default), for `torch.ops.gpukey.fold_spans`. Kept for the next call."""
        return self._device_key("span", dtype, hidden, digest_size, device)

    def host_key(self, label: str, dtype: str, hidden: int, digest_size: int) -> bytes:
        """Kr (label "row") or Ks (label "span") as 32 bytes, without torch."""
        check_digest_size(digest_size)
        if isinstance(hidden, bool) or not isinstance(hidden, int):
            raise TypeError(f"hidden is a {type(hidden).__name__}; the number of elements in a row is needed")
        if not 0 < hidden < 1 << 64:
            raise ValueError(f"hidden is {hidden}; at least 1 element in a row is needed")
        return self.derive(label, domain(dtype.removeprefix("torch."), hidden, digest_size))

    def _device_key(self, label: str, dtype: Any, hidden: int, digest_size: int, device: Any) -> torch.Tensor:
        import torch

        from gpukey.device_keys import device_key, dtype_named, usable_device

        dtype = dtype_named(dtype)
        place = usable_device("cpu" if device is None else device)
        if place.type == "cuda" and cast("int | None", place.index) is None:
            place = torch.device("cuda", torch.cuda.current_device())
        return device_key(self, label, dtype, hidden, digest_size, place)

    def __repr__(self) -> str:
        # In a traceback it may be half made.
        return f"Secret(key_id={getattr(self, 'key_id', '')!r})"

    def __eq__(self, other: object) -> bool:
        return secrets.compare_digest(self._master, other._master) if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key_id)

    def __getstate__(self) -> NoReturn:
        self.__reduce__()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not pickled or copied; hand its source (GPUKEY_SECRET_FILE) to the other process")


def _too_short(name: str, value: bytes) -> ValueError | None:
    """An error that says where a short secret came from, and nothing of what it is."""
    if len(value) >= MIN_SECRET_BYTES:
        return None
    return ValueError(
        f"{name} has {len(value)} bytes; at least {MIN_SECRET_BYTES} are needed (`gpukey keygen` makes a secret)"
    )


def _configured(environ: Mapping[str, str]) -> bytes | Exception:
    """What the environment says, or why it does not serve: returned, as raising would keep this frame and the secret in
    it."""
    value, path = environ.get("GPUKEY_SECRET"), environ.get("GPUKEY_SECRET_FILE")
    if value is not None and path is not None:
        return ValueError("GPUKEY_SECRET and GPUKEY_SECRET_FILE are both set (an empty one too); set one")
    if value is not None:
        # Undecodable bytes arrive as surrogates, and leave as the bytes that they were.
        try:
            content, name = value.encode("utf-8", "surrogateescape"), "GPUKEY_SECRET"
        except UnicodeEncodeError:
            return ValueError("GPUKEY_SECRET has a character that UTF-8 cannot encode")
    elif path:
        try:
            with open(path, "rb") as file:
                content, name = _without_newline(file.read()), f"the file of GPUKEY_SECRET_FILE, {path!r},"
        except OSError as error:
            return type(error)(error.errno, f"GPUKEY_SECRET_FILE cannot be read: {error.strerror}", path)
    else:
        empty = "" if path is None else " (GPUKEY_SECRET_FILE is empty)"
        return ValueError(f"neither GPUKEY_SECRET nor GPUKEY_SECRET_FILE is set{empty}; `gpukey keygen` makes a secret")
    return _too_short(name, content) or content


def _without_newline(value: bytes) -> bytes:
    return value[:-2] if value.endswith(b"\r\n") else value.removesuffix(b"\n")


_serial = itertools.count()
_living: weakref.WeakValueDictionary[int, Secret] = weakref.WeakValueDictionary()


def find(key_id: str) -> Secret:
    """A living Secret with this key id, for code that can only carry a string; KeyError when there is none."""
    for secret in list(_living.values()):
        if secret.key_id == key_id:
            return secret
    raise KeyError(f"no living Secret has key id {key_id}")


_default: Secret | None = None
_default_lock = threading.Lock()


def default_secret() -> Secret:
    """The configured secret of this process, or one random secret made on first use."""
    global _default
    with _default_lock:
        if _default is None:
            configured = "GPUKEY_SECRET" in os.environ or "GPUKEY_SECRET_FILE" in os.environ
            _default = Secret.from_env() if configured else Secret.random()
        return _default


def resolve(secret: Secret | None) -> Secret:
    """`secret`, or the default one for None."""
    if secret is None:
        return default_secret()
    if not isinstance(secret, Secret):
        raise TypeError(f"secret is a {type(secret).__name__}; a gpukey.Secret or None is needed")
    return secret
