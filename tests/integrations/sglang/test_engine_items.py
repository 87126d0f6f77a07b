"""SGLang's own MultimodalDataItem, RadixCache and Req, from its wheel on a CPU: what aliases without the hooks, and no longer with them."""

from __future__ import annotations

import itertools
import os
import pathlib
import subprocess
import sys
from array import array

import numpy as np
import pytest
import torch
from sglang_collision import collide

pytestmark = pytest.mark.engine

ROWS = 16


@pytest.fixture
def item(sglang_types):
    """item(feature, **parameters) -> a MultimodalDataItem with its identity set by whatever is installed."""

    def make(feature=None, *, modality="IMAGE", precomputed=None, hash=None, **parameters):
        made = sglang_types.MultimodalDataItem(
            modality=sglang_types.Modality[modality],
            feature=feature,
            precomputed_embeddings=precomputed,
            hash=hash,
            model_specific_data=parameters,
        )
        made.set_pad_value()
        return made

    return make


@pytest.fixture
def radix(sglang_types):
    """radix(prompts) -> tokens that the last prompt finds in a RadixCache which holds the others."""
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

    def match(*prompts):
        cache = RadixCache.create_simulated()
        keys = [RadixKey(token_ids=array("q", prompt)) for prompt in prompts]
        for key in keys[:-1]:
            cache.insert(InsertParams(key=key))
        return cache.match_prefix(MatchPrefixParams(key=keys[-1])).device_prefix_len

    return match


def _prompt(made):
    return [1, 2, 3, *made.padding_sequence(ROWS), 4, 5]


def _features():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(ROWS, 64, generator=generator).bfloat16()


def test_grid_aliases_without_the_hooks_and_not_with_them(item, radix, request):
    """sglang `set_pad_value`: equal rows as a 2x8 and a 4x4 grid."""
    rows = _features()
    grids = [torch.tensor([[1, 2, 8]]), torch.tensor([[1, 4, 4]])]
    blind = [item(rows, image_grid_thw=grid) for grid in grids]
    assert blind[0].pad_values == blind[1].pad_values
    assert radix(*map(_prompt, blind)) == ROWS + 5

    request.getfixturevalue("installed")
    bound = [item(rows, image_grid_thw=grid) for grid in grids]
    assert bound[0].identity != bound[1].identity
    assert radix(*map(_prompt, bound)) == 3


def test_equal_content_hits_whole(installed, item, radix):
    rows = _features()
    a, b = (
        item(rows, image_grid_thw=torch.tensor([[1, 4, 4]])),
        item(rows.clone(), image_grid_thw=torch.tensor([[1, 4, 4]])),
    )
    assert a.identity == b.identity
    assert len(a.identity) == 32
    assert a.hash == int.from_bytes(a.identity[:8], "big")
    assert radix(_prompt(a), _prompt(b)) == ROWS + 5


def test_every_pair_of_the_seeds_cases_differs(installed, item, radix):
    """Content, one bit, sign, dtype with equal bits, order, shape, modality, features against embeddings, parameters, deepstack features."""
    rows = _features()
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


def test_a_hash_that_a_request_brings_is_no_fingerprint(installed, item):
    """vllm#55547: `mm_hashes` of a request names what has no content here, and never stands for content."""
    rows = _features()
    honest = item(rows)
    assert item(-rows, hash=honest.hash).identity != honest.identity
    assert item(rows, hash=1).identity == honest.identity
    assert item(None, hash=honest.hash).identity not in (honest.identity, item(None, hash=1).identity)
    with pytest.raises(ValueError, match="nothing tells it from another one"):
        item(None)


def test_numpy_features_are_keyed_like_tensors(installed, item):
    rows = _features().float()
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


def _namespace(types_, extra_key, lora_id):
    from sglang.srt.sampling.sampling_params import SamplingParams

    request = types_.Req("r", None, array("q", [1, 2]), SamplingParams(), extra_key=extra_key, lora_id=lora_id)
    return request.extra_key


def test_adapter_ids_alias_extra_keys_without_the_hooks_and_not_with_them(sglang_types, request):
    """vllm#44701's kind of fault in SGLang: (extra_key or "") + lora_id."""
    adapter = "0123456789abcdef" * 2
    pairs = [
        (None, None),
        ("", None),
        ("a", None),
        (adapter, None),
        (None, adapter),
        ("a", adapter),
        ("a" + adapter, None),
        ("lora 1:a" + adapter, None),
    ]
    blind = [_namespace(sglang_types, *pair) for pair in pairs]
    assert blind[3] == blind[4]
    assert blind[5] == blind[6]

    request.getfixturevalue("installed")
    typed = [_namespace(sglang_types, *pair) for pair in pairs]
    # No extra_key, an empty one and none beside an adapter: only (None, None) stays None, the engine's own default namespace.
    assert typed[0] is None
    assert len(set(typed)) == len(pairs)
    # The engine's KV events look for the adapter's id in the last 32 characters.
    assert all(key.endswith(adapter) for key, (_, lora) in zip(typed, pairs, strict=True) if lora)


def test_wide_ids_make_input_embeds_reusable_up_to_the_first_differing_row(sglang_types, radix, secret):
    from gpukey.fingerprint import fingerprint_rows
    from gpukey.integrations.sglang import wide_ids
    from gpukey.spans import EmbeddingSpan

    def ids(rows):
        return wide_ids([1] * (ROWS + 5), [EmbeddingSpan(3, fingerprint_rows(rows, secret=secret))], secret=secret)

    rows = _features()
    changed = rows.clone()
    changed[9] = -changed[9]
    assert radix(ids(rows), ids(rows.clone())) == ROWS + 5
    assert radix(ids(rows), ids(changed)) == 3 + 9
    assert radix(ids(rows), ids(-rows)) == 3


def test_install_is_idempotent_and_undone(sglang_types, monkeypatch, secret_bytes):
    from gpukey.integrations import sglang as integration

    monkeypatch.delenv("GPUKEY_SECRET", raising=False)
    monkeypatch.delenv("GPUKEY_SECRET_FILE", raising=False)
    with pytest.raises(ValueError, match="neither GPUKEY_SECRET nor GPUKEY_SECRET_FILE is set"):
        integration.install()
    before = sglang_types.MultimodalDataItem.set_pad_value, sglang_types.Req.__init__
    monkeypatch.setenv("GPUKEY_SECRET", secret_bytes.decode())
    assert integration.install() is True
    assert integration.install() is False
    assert integration.uninstall() is True
    assert integration.uninstall() is False
    assert (sglang_types.MultimodalDataItem.set_pad_value, sglang_types.Req.__init__) == before


def test_plugin_that_cannot_install_stops_the_server(sglang_types, monkeypatch):
    """SGLang logs the exception of a plugin and serves on; a server that asked for these keys must not."""
    from gpukey.integrations import sglang as integration

    monkeypatch.delenv("GPUKEY_SECRET", raising=False)
    monkeypatch.delenv("GPUKEY_SECRET_FILE", raising=False)
    monkeypatch.delenv("GPUKEY_SGLANG", raising=False)
    assert integration.plugin() is None
    assert not integration._patches.installed
    monkeypatch.setenv("GPUKEY_SGLANG", "1")
    with pytest.raises(SystemExit, match="gpukey could not install"):
        integration.plugin()


def test_unchecked_versions_are_refused(sglang_types, monkeypatch):
    import sglang

    from gpukey.integrations import sglang as integration

    monkeypatch.setattr(sglang, "__version__", "0.6.0")
    with pytest.raises(RuntimeError, match=r"checked with 0\.5\.23; 0\.6\.0 is installed"):
        integration.install()
