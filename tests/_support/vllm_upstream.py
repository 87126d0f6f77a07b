"""pytest -p vllm_upstream: vLLM's own tests with gpukey's hooks in. Tests that pin what the hooks replace must fail, all others must pass."""

from __future__ import annotations

import pytest

PINNED = {
    "test_generate_block_hash_extra_keys_prompt_embeds": "pins SHA-256 over the slice of a block",
    "test_generate_block_hash_extra_keys_prompt_embeds_cached": "counts vLLM's own reads of the tensor",
    "test_request_block_hasher_with_prompt_embeds": "pins SHA-256 over the slice of a block",
    "test_request_with_prompt_embeds_and_mm_inputs": "pins SHA-256 over the slice of a block",
    "test_generate_block_hash_extra_keys_lora": "pins an adapter's field without a version",
    "test_to_event_extra_keys_keeps_untagged_event_format": "pins an adapter's field without a version",
}


def pytest_configure() -> None:
    from gpukey.integrations import vllm

    vllm.install()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        reason = PINNED.get(item.name.split("[")[0])
        if reason:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
