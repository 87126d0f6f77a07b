"""The root key: everything that fixes what an empty prefix means. Imports without torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NoReturn

from gpukey._checks import U32, integer
from gpukey.fields import FieldValue, encode_fields, plain
from gpukey.secret import Secret, keyed_hash, resolve

OTHER_NAMES = re.compile(r"x-[a-z0-9_.-]+")
TYPES: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {
        "model": (str,),
        "dtype": (str,),
        "revision": (str,),
        "weights_version": (str,),
        "config": (bytes,),
        "kv_layout": (str,),
        "lora_name": (str,),
        "lora_version": (str,),
        "lora_scale": (float,),
        "cache_salt": (str, bytes),
    }
)


class Root:
    """Typed fields of the root key, immutable and hashable; None is an absent field, empty text is a value of its own.

    `model` and `dtype` (the KV cache scheme) are required. `revision`, `weights_version` (changes with every update of
    the weights), `kv_layout` and `lora_name` with `lora_version` are text, `config` is the bytes of a digest of
    whatever changes the forward, `lora_scale` a float, `cache_salt` text or bytes. Others are named `x-…`:
    Root(model=…, dtype=…, **{"x-tokenizer": "2"}). `block_size` is added by `block_keys`.
    """

    __slots__ = ("_encoded", "fields")

    fields: Mapping[str, FieldValue]
    """The fields that are present, as Python values; read-only."""
    _encoded: bytes

    def __init__(
        self,
        *,
        model: str,
        dtype: str,
        revision: str | None = None,
        weights_version: str | None = None,
        config: bytes | None = None,
        kv_layout: str | None = None,
        lora_name: str | None = None,
        lora_version: str | None = None,
        lora_scale: float | None = None,
        cache_salt: str | bytes | None = None,
        **others: FieldValue | None,
    ) -> None:
        for name in others:
            _check_name(name)
        given: dict[str, Any] = {
            "model": model,
            "dtype": dtype,
            "revision": revision,
            "weights_version": weights_version,
            "config": config,
            "kv_layout": kv_layout,
            "lora_name": lora_name,
            "lora_version": lora_version,
            "lora_scale": lora_scale,
            "cache_salt": cache_salt,
        }
        for name in ("model", "dtype"):
            if given[name] is None:
                raise TypeError(f"{name} is None; text is needed, a root without it names no model")
        given |= others
        fields = {name: _field(name, value) for name, value in given.items() if value is not None}
        if "lora_name" in fields and "lora_version" not in fields:
            raise ValueError(
                f"lora_name is {fields['lora_name']!r} without lora_version; "
                "an adapter's name outlives its weights, so both are needed"
            )
        for name in ("lora_version", "lora_scale"):
            if name in fields and "lora_name" not in fields:
                raise ValueError(f"{name} came without lora_name; give the adapter's name too")
        object.__setattr__(self, "fields", MappingProxyType(fields))
        object.__setattr__(self, "_encoded", encode_fields(fields))

    def key(self, secret: Secret | None = None, *, block_size: int | None = None) -> bytes:
        """Root key, 32 bytes; `block_keys` and `KeyChain` give their `block_size` as one more field."""
        encoded = self._encoded
        if block_size is not None:
            encoded = encode_fields({**self.fields, "block_size": integer("block_size", block_size, 1, U32)})
        return keyed_hash(resolve(secret).derive("root"), encoded)

    def require_shared(self, secret: Secret | None = None) -> Root:
        """Itself, when keys made with it may be shared between processes or stored; else a ValueError that lists what
        is missing."""
        missing = [name for name in ("config", "kv_layout") if name not in self.fields]
        if not self.fields.keys() & {"weights_version", "revision"}:
            missing.insert(0, "weights_version or revision")
        if missing:
            raise ValueError(
                f"root has no {', no '.join(missing)}; "
                "a shared store needs weights_version or revision, config and kv_layout"
            )
        resolve(secret).require_configured()
        return self

    def replace(self, **changes: Any) -> Root:
        """The same root with some fields changed, or taken away with None: root.replace(weights_version="4")."""
        return Root(**{**self.fields, **changes})

    def __eq__(self, other: object) -> bool:
        return self._encoded == other._encoded if isinstance(other, Root) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._encoded)

    def __repr__(self) -> str:
        shown = (f"{name}={'…' if name == 'cache_salt' else repr(value)}" for name, value in self.fields.items())
        return f"Root({', '.join(shown)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (dict(self.fields),)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Root is immutable; root.replace({name}=…) makes another")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Root is immutable; root.replace({name}=None) makes another")


def _rebuild(fields: dict[str, Any]) -> Root:
    return Root(**fields)


def _check_name(name: str) -> None:
    if name == "block_size":
        raise ValueError("block_size is reserved: give it to block_keys or KeyChain, which add it to the root")
    if not OTHER_NAMES.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a root field; {', '.join(TYPES)} are, "
            "and others are named x- and then a-z, 0-9, _, . or -"
        )


def _field(name: str, value: Any) -> FieldValue:
    wanted = TYPES.get(name)
    if wanted is None:
        return plain(name, value)
    needed = f"{name} is a {type(value).__name__}; {' or '.join(kind.__name__ for kind in wanted)} is needed"
    try:
        found = plain(name, value)
    except TypeError:
        raise TypeError(needed) from None
    if wanted == (float,) and type(found) is int:
        found = float(found)
    if type(found) not in wanted:
        raise TypeError(needed)
    return found
