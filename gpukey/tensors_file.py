"""`gpukey fingerprint`: the tensors of a safetensors file, read one at a time."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from gpukey.secret import Secret


def print_fingerprints(path: str, name: str | None, digest_size: int) -> None:
    """With `name` one fingerprint a row of that tensor, else one span fingerprint for each tensor [num_rows,
    hidden]."""
    secret = Secret.from_env()
    import torch

    from gpukey.fingerprint import fingerprint_rows, fingerprint_spans

    try:
        from safetensors import safe_open
    except ImportError as error:
        raise RuntimeError("reading the file needs the safetensors package (pip install 'gpukey[engine]')") from error
    if os.path.isdir(path):
        raise ValueError(f"{path} is a directory; a safetensors file is needed")
    with _reading(path):
        opened = safe_open(path, framework="pt")
    with opened as file:
        names = sorted(file.keys())
        if name is not None:
            if name not in names:
                raise ValueError(
                    f"{path} has no tensor {name!r}; it has {', '.join(names[:8])}{', ...' if names[8:] else ''}"
                )
            with _reading(path):
                rows = file.get_tensor(name)
            for row in fingerprint_rows(rows, secret=secret, digest_size=digest_size).numpy():
                print(row.tobytes().hex())
            return
        for number, each in enumerate(names, 1):
            _progress(number, len(names))
            with _reading(path):
                rows = file.get_tensor(each)
            kind = f"{str(rows.dtype).removeprefix('torch.')} {list(rows.shape)}"
            if rows.dim() != 2 or 0 in rows.shape[1:]:
                print(f"{'-':{2 * digest_size}}  {each}  {kind}, not [num_rows, hidden]")
                continue
            bounds = torch.tensor([0, len(rows)])
            span = fingerprint_spans(rows, bounds, secret=secret, digest_size=digest_size)
            print(f"{span.numpy().tobytes().hex()}  {each}  {kind}")


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """ValueError with the path where it cannot be read. Printing stays outside: a pipe that its reader left is no fault
    of the file."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read as a safetensors file ({error})") from error


def _progress(number: int, total: int) -> None:
    if sys.stderr.isatty() and not sys.stdout.isatty():
        sys.stderr.write(f"\r{number}/{total}" + ("\n" if number == total else ""))
        sys.stderr.flush()
