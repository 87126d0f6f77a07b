"""Fingerprints that come with a request: only an authentic envelope for just these rows counts."""

from __future__ import annotations

import json

import pytest
import torch

from gpukey import pack
from gpukey.secret import Secret

pytestmark = pytest.mark.engine

OTHER = Secret(b"another secret of sixteen bytes")


@pytest.fixture
def embeds():
    return torch.randn(32, 24, generator=torch.Generator().manual_seed(6)).bfloat16()


def test_an_envelope_stands_for_the_tensor(admit, hooks, embeds, monkeypatch):
    plain, sealed = admit(None, embeds), hooks.envelope(embeds)
    assert list(map(type, sealed.values())) == [bytes]

    def forbidden(*_, **__):
        raise AssertionError("the tensor was hashed again")

    monkeypatch.setattr(hooks.prompt_embeds, "fingerprint_rows", forbidden)
    assert admit(None, embeds, extra=sealed).block_hashes == plain.block_hashes


def _cut(embeds, secret):
    return pack(_rows(embeds[:31], secret), dtype="bfloat16", hidden=24, secret=secret)


def _wide(embeds, secret):
    return pack(_rows(embeds, secret, 32), dtype="bfloat16", hidden=24, secret=secret)


def _rows(embeds, secret, digest_size=16):
    from gpukey.fingerprint import fingerprint_rows

    return fingerprint_rows(embeds, secret=secret, digest_size=digest_size)


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (lambda e, s: b"", "blob has 0 bytes"),
        (lambda e, s: b"x" * 600, "does not begin as a gpukey envelope"),
        (lambda e, s: pack(_rows(e, OTHER), dtype="bfloat16", hidden=24, secret=OTHER), "key id"),
        (lambda e, s: pack(_rows(e, s), dtype="bfloat16", hidden=24, secret=s)[:-1] + b"\0", "MAC"),
        (lambda e, s: pack(_rows(e, s), dtype="float16", hidden=24, secret=s), "float16"),
        (lambda e, s: pack(_rows(e, s), dtype="bfloat16", hidden=25, secret=s), "25"),
        (_cut, "31 fingerprints of 16 bytes; 32 of 16 are needed"),
        (_wide, "32 fingerprints of 32 bytes; 32 of 16 are needed"),
    ],
)
def test_any_other_envelope_ends_the_request(admit, hooks, embeds, secret, forge, message):
    with pytest.raises(ValueError, match=message):
        admit(None, embeds, extra={"gpukey": forge(embeds, secret)})


def test_what_json_can_carry_is_not_read(admit, hooks, embeds):
    """An HTTP client sets extra_args through vllm_xargs, here from its JSON by vLLM's own protocol classes."""
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    plain, sealed = admit(None, embeds), hooks.envelope(-embeds)["gpukey"]
    for value in (sealed.hex(), sealed.decode("latin-1"), list(sealed), 7, 0.5):
        body = {"model": "m", "prompt": [1], "max_tokens": 4, "vllm_xargs": {"gpukey": value}}
        params = CompletionRequest.model_validate_json(json.dumps(body)).to_sampling_params(4, {})
        assert params.extra_args["gpukey"] == value
        assert admit(None, embeds, params=params).block_hashes == plain.block_hashes


def test_a_random_secret_seals_nothing(hooks, embeds, monkeypatch):
    monkeypatch.setattr("gpukey.secret._default", Secret.random())
    with pytest.raises(ValueError, match="GPUKEY_SECRET"):
        hooks.envelope(embeds)
