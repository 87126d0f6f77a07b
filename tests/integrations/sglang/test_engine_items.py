"""SGLang's own MultimodalDataItem, RadixCache and Req, from its wheel on a CPU: what aliases without the hooks, and no longer with them."""

from __future__ import annotations

import itertools
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch
from sglang_collision import collide

pytestmark = pytest.mark.engine

ROWS = 16


def _prompt(made):
    return [1, 2, 3, *made.padding_sequence(ROWS), 4, 5]


def test_grid_aliases_without_the_hooks_and_not_with_them(features, item, radix, request):
    """sglang `set_pad_value`: equal rows as a 2x8 and a 4x4 grid."""
    rows = features()
    grids = [torch.tensor([[1, 2, 8]]), torch.tensor([[1, 4, 4]])]
    blind = [item(rows, image_grid_thw=grid) for grid in grids]
    assert blind[0].pad_values == blind[1].pad_values
    assert radix(*map(_prompt, blind)) == ROWS + 5

    request.getfixturevalue("installed")
    bound = [item(rows, image_grid_thw=grid) for grid in grids]
    assert bound[0].identity != bound[1].identity
    assert radix(*map(_prompt, bound)) == 3


def test_equal_content_hits_whole(features, installed, item, radix):
    rows = features()
    a, b = (
        item(rows, image_grid_thw=torch.tensor([[1, 4, 4]])),
        item(rows.clone(), image_grid_thw=torch.tensor([[1, 4, 4]])),
    )
    assert a.identity == b.identity
    assert len(a.identity) == 32
    assert a.hash == int.from_bytes(a.identity[:8], "big")
    assert radix(_prompt(a), _prompt(b)) == ROWS + 5


def test_every_pair_of_the_seeds_cases_differs(features, installed, item, radix):
    """Content, one bit, sign, dtype with equal bits, order, shape, modality, features against embeddings, parameters, deepstack features."""
    rows = features()
    flipped = rows.clone()
    flipped.view(torch.int16)[-1, -1] ^= 1
    items = [
        item(rows),
        item(-rows),
        item(flipped),
        item(rows.view(torch.float16)),
        item(rows.float()),
        item(rows.flip(0)),
        item(rows.view(ROWS * 2, 32)),
        item([rows[:8], rows[8:]]),
        item([rows[8:], rows[:8]]),
        item(rows, modality="AUDIO"),
        item(None, precomputed=rows),
        item(rows, second_per_grid_ts=1.0),
        item(rows, second_per_grid_ts=2.0),
        item(rows, deepstack=torch.zeros(ROWS, 64)),
        item(rows, deepstack=torch.ones(ROWS, 64)),
    ]
    for (i, a), (j, b) in itertools.combinations(enumerate(items), 2):
        assert a.identity != b.identity, (i, j)
        assert radix(_prompt(a), _prompt(b)) == 3, (i, j)


def test_numpy_features_are_keyed_like_tensors(features, installed, item):
    rows = features().float()
    assert item(rows.numpy()).identity == item(rows).identity


def test_chosen_target_collision_of_the_gpu_hash(installed, item, sglang_types):
    """The engine's own kernel, in Triton's interpreter, gives both tensors one hash; ours tells them apart."""
    words = np.random.default_rng(1).integers(0, 1 << 32, 2048, dtype=np.uint32) & np.uint32(0xBFFFBFFF)
    other = collide(words, (0, 7, 1024, 2047), np.random.default_rng(2))
    kernel = pathlib.Path(sglang_types.__file__).parents[2] / "kernels/ops/memory/gpu_tensor_hash.py"
    script = pathlib.Path(__file__).parents[2] / "_support/sglang_hash.py"

    def theirs(data):
        done = subprocess.run(
            [sys.executable, str(script), str(kernel)],
            input=data.tobytes(),
            capture_output=True,
            check=True,
            env={**os.environ, "TRITON_INTERPRET": "1"},
        )
        return int(done.stdout)

    def ours(data):
        return item(torch.from_numpy(data.view(np.int16).reshape(4, 1024).copy()).view(torch.bfloat16)).identity

    assert not np.array_equal(words, other)
    assert theirs(words) == theirs(other)
    assert ours(words) != ours(other)


def test_wide_ids_make_input_embeds_reusable_up_to_the_first_differing_row(features, sglang_types, radix, secret):
    from gpukey.fingerprint import fingerprint_rows
    from gpukey.integrations.sglang import wide_ids
    from gpukey.spans import EmbeddingSpan

    def ids(rows):
        return wide_ids([1] * (ROWS + 5), [EmbeddingSpan(3, fingerprint_rows(rows, secret=secret))], secret=secret)

    rows = features()
    changed = rows.clone()
    changed[9] = -changed[9]
    assert radix(ids(rows), ids(rows.clone())) == ROWS + 5
    assert radix(ids(rows), ids(changed)) == 3 + 9
    assert radix(ids(rows), ids(-rows)) == 3
