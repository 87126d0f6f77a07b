"""The chosen-target collision of the engine's 64-bit tensor hash is none under ours."""

from __future__ import annotations

import numpy as np
import torch
from sglang_collision import collide, contributions

from gpukey.fingerprint import fingerprint_rows
from gpukey.integrations.content import content_id


def _sums(words):
    total = np.zeros(2, np.uint32)
    for position, word in enumerate(words):
        part = int(contributions(np.array([word], np.uint32), position)[0])
        total += np.array([part & 0xFFFFFFFF, part >> 32], np.uint32)
    return total.tolist()


def test_collision_of_the_additive_hash_is_none_of_ours(secret):
    """sglang#8342 and peers.md: 4,096 bfloat16 values, 8 of them chosen, all finite, the same 64-bit sum."""
    generator = np.random.default_rng(1)
    target = torch.randn(4, 1024, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(7))
    words = target.view(torch.int16).numpy().view(np.uint32).reshape(-1)
    other = collide(words, (3, 500, 1100, 2040), generator)
    forged = torch.from_numpy(other.view(np.int16).reshape(4, 1024).copy()).view(torch.bfloat16)

    assert _sums(words) == _sums(other)
    assert torch.isfinite(forged.float()).all()
    assert not torch.equal(target, forged)
    ours, theirs = (fingerprint_rows(rows, secret=secret) for rows in (target, forged))
    # Words 3, 500, 1100 and 2040 lie in rows 0, 0, 2 and 3 of 512 words each; row 1 is untouched.
    assert (ours != theirs).any(1).tolist() == [True, False, True, True]
    assert content_id(target, "IMAGE", secret=secret) != content_id(forged, "IMAGE", secret=secret)
