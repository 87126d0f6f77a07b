"""vllm#44701 on the installed vLLM: does adapter "X" without a salt have the keys of salt "X" without an adapter?"""

from __future__ import annotations

import inspect
from typing import Any

NAME = "X"
BLOCK_SIZE, NUM_TOKENS = 16, 64


def shared_blocks() -> tuple[str, int]:
    """(vLLM's version, number of equal block keys of the two requests); 0 is right, vLLM before 0.31 gives 1.

    vLLM's own Request and block hasher, without a model. RuntimeError where they are not as in 0.27 to 0.33.
    """
    import vllm
    from vllm.lora.request import LoRARequest

    adapted = _block_keys(lora_request=LoRARequest(lora_name=NAME, lora_int_id=1, lora_path="/adapters/" + NAME))
    salted = _block_keys(cache_salt=NAME)
    if len(adapted) != len(salted) or len(adapted) != NUM_TOKENS // BLOCK_SIZE:
        raise RuntimeError(
            f"vLLM {vllm.__version__} gave {len(adapted)} and {len(salted)} block keys for {NUM_TOKENS} tokens"
        )
    return vllm.__version__, sum(one == two for one, two in zip(adapted, salted, strict=True))


def _block_keys(**fields: Any) -> list[Any]:
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.request import Request

    kv_cache_utils.init_none_hash(sha256)
    request = Request(
        request_id="audit",
        prompt_token_ids=list(range(NUM_TOKENS)),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        block_hasher=kv_cache_utils.get_request_block_hasher(BLOCK_SIZE, sha256),
        **({"eos_token_id": None} if "eos_token_id" in inspect.signature(Request).parameters else {}),
        **fields,
    )
    return list(request.block_hashes)
