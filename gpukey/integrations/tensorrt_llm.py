"""TensorRT-LLM: embeddings that the caller attaches get the 32-byte identities that its block reuse asks for; what has none is never reused.

    gpukey.integrations.tensorrt_llm.install()      before LLM(...), in the process of the input processor and in that of the executor

Read in source, never run against the engine: its wheel needs a GPU. The tests use objects of the same shape. Instead of a version, `install` checks
that the functions it wraps take the parameters that were read. Covered: Qwen-VL processors; KVCacheManagerV2. With another processor a request's
blocks are private to it. The older, native KVCacheManager builds its keys in C++, out of reach: turn block reuse off there.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import secrets
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpukey.integrations.content import content_id
from gpukey.integrations.patches import Hook, Patches
from gpukey.secret import Secret

PROCESSORS = (
    ("tensorrt_llm._torch.models.modeling_qwen2vl", "Qwen2VLInputProcessorBase"),
    ("tensorrt_llm._torch.models.modeling_qwen3vl", "Qwen3VLInputProcessorBase"),
)
MANAGERS = (
    ("tensorrt_llm._torch.pyexecutor.kv_cache_manager_v2", "KVCacheManagerV2"),
    ("tensorrt_llm._torch.pyexecutor.resource_manager", "KVCacheManagerV2"),
)
ATTACH, ATTACH_TAKES = (
    "_attach_multimodal_embeddings_impl",
    ["self", "inputs", "multimodal_embedding", "sampling_params"],
)
BUILD_LAYOUT = "build_disagg_prefill_multimodal_inputs"
AUGMENT, AUGMENT_TAKES = "_augment_tokens_for_block_reuse", ["self", "tokens", "req", "start", "end"]
POSITIONS_ONLY = {"mrope_config"}
"""All that a text prompt of a Qwen-VL model carries as multimodal data."""
_patches = Patches("TensorRT-LLM")


def install() -> bool:
    """Hooks in. False when already in. ValueError without a configured secret: each rank keys blocks, and all must agree.

    The ranks share no channel that this module knows: compare `Secret.from_env().key_id` over yours with `agreement.require_same_secret`.
    """
    secret = Secret.from_env()
    return _patches.install(
        lambda: _hooks(secret),
        "attached embeddings are known by content; multimodal requests without an identity are not reused",
    )


def uninstall() -> bool:
    """Everything as before `install()`, in this process. False when nothing was in."""
    return _patches.uninstall()


def multimodal_hash(embedding: Any, *, secret: Secret) -> list[int]:
    """The identity of one attached embedding [num_rows, hidden] as the engine takes it: 8 signed big-endian int32.

    Bound: dtype, shape, every byte. The grid follows from the number of rows (the processor infers it), so the shape binds it.
    """
    return list(struct.unpack(">8i", content_id(embedding, "image", secret=secret, name="multi_modal_embeddings")))


def _attach(found: Callable[..., Any], secret: Secret) -> Callable[..., Any]:
    @functools.wraps(found)
    def attach(self: Any, inputs: Any, multimodal_embedding: Any, sampling_params: Any) -> Any:
        # The engine reads this copy, and so does the digest: what the caller writes into its own tensors later changes neither.
        if isinstance(multimodal_embedding, Mapping):
            multimodal_embedding = {name: _snapshot(tensors) for name, tensors in multimodal_embedding.items()}
        token_ids, extra = found(self, inputs, multimodal_embedding, sampling_params)
        images = _images(self, multimodal_embedding, extra)
        if images:
            layout = self.build_disagg_prefill_multimodal_inputs(
                inputs, [{"tensor_size": tuple(image.shape)} for image in images]
            )
            if list(layout.prompt_token_ids) != list(token_ids):
                raise RuntimeError(
                    "the layout builder and the attach path expand the prompt differently; its blocks cannot be keyed"
                )
            extra["multimodal_input"] = layout.to_multimodal_input(
                [multimodal_hash(image, secret=secret) for image in images]
            )
        return token_ids, extra

    return attach


def _images(processor: Any, given: Any, extra: Any) -> list[Any]:
    """The embeddings to identify; none where the engine has identities already, or where the layout of what was given is not known here.

    Such a request reaches the executor without identities, and its blocks stay its own.
    """
    if not extra or "multimodal_input" in extra or not hasattr(processor, BUILD_LAYOUT) or list(given) != ["image"]:
        return []
    images = extra.get("multimodal_data", {}).get("multimodal_embedding")
    return list(images) if isinstance(images, (list, tuple)) else []


def _snapshot(tensors: Any) -> Any:
    """One tensor or a list of them; what is neither goes to the engine's own checks as it is."""
    if isinstance(tensors, (list, tuple)):
        return [_snapshot(tensor) for tensor in tensors]
    return tensors.detach().clone() if hasattr(tensors, "detach") else tensors


def _augment(found: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(found)
    def augment(self: Any, tokens: Any, req: Any, start: int = 0, end: int | None = None) -> Any:
        augmented = found(self, tokens, req, start, end)
        salt = _salt(req)
        if salt is None or start != 0 or len(augmented) == 0:
            return augmented
        # Keys chain through their parent: a first token of its own keeps every block of the request private.
        return [salt, *list(augmented)[1:]]

    return augment


def _salt(req: Any) -> bytes | None:
    """32 random bytes of this request if it carries content without an identity; kept on it, since the engine drops the content after prefill."""
    salt: bytes | None = getattr(req, "_gpukey_salt", None)
    if salt is None and _has_unkeyed_content(req):
        salt = req._gpukey_salt = secrets.token_bytes(32)
    return salt


def _has_unkeyed_content(req: Any) -> bool:
    data = getattr(req, "py_multimodal_data", None)
    if not data or POSITIONS_ONLY.issuperset(data):
        return False
    hashes = getattr(req, "multimodal_hashes", None) or []
    embeddings = data.get("multimodal_embedding")
    # One hash for two embeddings leaves one of them unknown.
    return not hashes or (isinstance(embeddings, (list, tuple)) and len(embeddings) > len(hashes))


def _hooks(secret: Secret) -> Iterator[Hook]:
    yield from _present(PROCESSORS, ATTACH, ATTACH_TAKES, lambda found: _attach(found, secret))
    yield from _present(MANAGERS, AUGMENT, AUGMENT_TAKES, _augment)


def _present(
    places: tuple[tuple[str, str], ...], name: str, takes: list[str], make: Callable[[Any], Any]
) -> list[Hook]:
    """A hook for each class that defines `name` itself; RuntimeError when none does, or one takes other parameters."""
    hooks: dict[Any, Hook] = {}
    for module_name, class_name in places:
        try:
            owner = getattr(importlib.import_module(module_name), class_name, None)
        except ModuleNotFoundError as error:
            if error.name != module_name:
                raise
            continue
        if owner is None or name not in vars(owner):
            continue
        found = list(inspect.signature(vars(owner)[name]).parameters)
        if found != takes:
            raise RuntimeError(f"{class_name}.{name} takes {found}; gpukey's hook was written for {takes}")
        hooks[owner] = (owner, name, make)
    if not hooks:
        raise RuntimeError(f"{places[0][1]}.{name} is not in this TensorRT-LLM; gpukey's hook does not fit it")
    return list(hooks.values())
