"""Ranks that hash on their own must hold one secret: compared at start by key id, never by the secret itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpukey.secret import Secret, resolve


def require_same_secret(key_ids: Sequence[str], *, secret: Secret | None = None) -> None:
    """ValueError unless every key id (16 hex digits each, one a peer) is ours, and ours was configured rather than drawn by this process."""
    mine = resolve(secret)
    if mine.is_random:
        raise ValueError(
            "secret is a random one of this process, which no peer can have; set GPUKEY_SECRET_FILE on every rank"
        )
    for peer, key_id in enumerate(key_ids):
        if key_id != mine.key_id:
            raise ValueError(f"key_ids[{peer}] is {key_id!r}; {mine.key_id!r} is needed: that peer has another secret")


def require_same_secret_on_all_ranks(*, secret: Secret | None = None, group: Any = None) -> None:
    """The same over `torch.distributed`, on every rank at once. Every rank raises when one differs, so that none serves on alone."""
    import torch.distributed as dist

    mine = resolve(secret)
    # A random secret is announced as such: its own rank would raise alone otherwise, and the others would hang in their next collective.
    announced: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(announced, None if mine.is_random else mine.key_id, group=group)
    for rank, key_id in enumerate(announced):
        if key_id is None:
            raise ValueError(f"rank {rank} drew a random secret; set GPUKEY_SECRET_FILE on every rank")
    require_same_secret(announced, secret=mine)
