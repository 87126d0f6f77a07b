"""Names that requests and caches bring in place of an identity never stand for content; what travels is keyed once, where it can be read."""

from __future__ import annotations

import concurrent.futures
import copy
import pickle

import pytest
import torch

pytestmark = pytest.mark.engine


def test_mm_hashes_of_a_request_name_content_without_the_hooks_only(item, features, request):
    """vllm#55547: a client's 64 bits are the whole key. The tokenizer manager calls set_hash with them, before or after the item has its identity."""
    a, b = item(features()), item(-features())
    a.set_hash(7)
    b.set_hash(7)
    assert a.pad_values == b.pad_values

    request.getfixturevalue("installed")
    honest = item(features())
    for forged in (item(-features()), item(-features(), hash=honest.hash), item(-features(), hash=7)):
        mine = forged.identity
        assert mine != honest.identity
        forged.set_hash(honest.hash)
        forged.set_pad_value()
        assert (forged.identity, forged.hash) == (mine, int.from_bytes(mine[:8], "big"))
        assert not set(forged.pad_values) & set(honest.pad_values)


def test_a_hash_is_a_name_where_there_is_no_content(installed, item, features):
    named = item(None, hash=3)
    assert named.identity not in (item(features()).identity, item(None, hash=4).identity)
    assert named.identity == item(None, hash=3).identity
    with pytest.raises(ValueError, match="nothing tells it from another one"):
        item(None)


def test_digests_of_the_engines_media_cache_are_no_identity(installed, sglang_types, features):
    """qwen_vl and muse items: made with a feature, then set_hash(64 bits of SHA-256); the padded prompt is built at once."""
    made = []
    for rows in (features(), features(), -features()):
        one = sglang_types.MultimodalDataItem(modality=sglang_types.Modality.IMAGE, feature=rows, offsets=[(1, 4)])
        one.set_hash(99)
        made.append(sglang_types.MultimodalProcessorOutput.build_padded_input_ids([5] * 6, [one]))
    assert made[0] == made[1]
    assert not set(made[0][1:5]) & set(made[2][1:5])


def test_an_identity_in_a_requests_dict_is_dropped(installed, sglang_types, item, features):
    """`collect_mm_items_from_processor_output` sets what a dict holds by name, and assigns its hash and pad_value."""
    honest = item(features())
    forged = sglang_types.MultimodalDataItem(modality=sglang_types.Modality.IMAGE)
    for name, value in {"feature": -features(), "identity": honest.identity, "pad_values": honest.pad_values}.items():
        forged.set(name, value)
    forged.hash, forged.pad_value = honest.hash, honest.pad_value
    forged.set_pad_value()
    assert forged.identity == item(-features()).identity


def test_padded_ids_of_a_request_are_built_again(installed, sglang_types, item, features):
    honest, other = item(features()), item(-features())
    honest.offsets = other.offsets = [(1, 3)]
    padded = sglang_types.MultimodalProcessorOutput.build_padded_input_ids([5] * 5, [honest])
    output = sglang_types.MultimodalProcessorOutput(mm_items=[other], input_ids=[5] * 5, padded_input_ids=padded)
    inputs = sglang_types.MultimodalInputs.from_processor_output(output)
    assert inputs.padded_input_ids == [5, *other.padding_sequence(3), 5]
    assert inputs.padded_input_ids != padded
    output.padded_input_ids = None
    assert sglang_types.MultimodalInputs.from_processor_output(output).padded_input_ids is None


def test_images_split_off_a_bundle_get_their_own(installed, item, features):
    from sglang.srt.managers.mm_utils import get_new_expanded_mm_items

    bundle = item(features(), image_grid_thw=torch.tensor([[1, 2, 4], [1, 2, 4]]))
    bundle.offsets = [(0, 1), (2, 3)]
    parts = get_new_expanded_mm_items([bundle])
    for part in parts:
        part.set_pad_value()
    identities = {part.identity for part in (bundle, *parts)}
    assert len(identities) == 3
    assert parts[0].identity == item(features()[:8], image_grid_thw=torch.tensor([[1, 2, 4]])).identity


def test_skipped_hashes_are_never_shared(installed, item, features, monkeypatch):
    """SGLANG_MM_SKIP_COMPUTE_HASH: no bytes are read, and no two items are one."""
    monkeypatch.setenv("SGLANG_MM_SKIP_COMPUTE_HASH", "1")
    assert item(features()).identity != item(features()).identity


@pytest.mark.parametrize("travel", ["pickle", "msgspec", "copy"])
def test_an_identity_survives_its_way_and_the_loss_of_its_feature(installed, sglang_types, item, features, travel):
    """Tokenizer to scheduler to retraction: set once, never computed again."""
    import msgspec

    made = item(features(), second_per_grid_ts=1.0)
    if travel == "msgspec":
        made.feature, made.model_specific_data = None, {}
        blob = msgspec.msgpack.encode(made, enc_hook=str)
        sent = msgspec.msgpack.decode(blob, type=sglang_types.MultimodalDataItem)
    else:
        sent = pickle.loads(pickle.dumps(made)) if travel == "pickle" else copy.copy(made)
    sent.feature = None
    sent.set_pad_value()
    assert (sent.identity, tuple(sent.pad_values), sent.pad_value) == (made.identity, made.pad_values, made.pad_value)


class Proxy:
    """What a CUDA IPC proxy offers: one lease, used up by the first read."""

    def __init__(self, rows):
        self.rows, self.reads = rows, 0

    def reconstruct_on_target_device(self, device):
        self.reads += 1
        return self.rows


def test_a_feature_that_travels_is_read_by_the_scheduler_alone(installed, sglang_types, item, features, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    proxy = Proxy(features())
    sent = sglang_types.MultimodalDataItem(modality=sglang_types.Modality.IMAGE, feature=proxy)
    sent.model_specific_data["_sglang_defer_cuda_ipc_feature_reconstruction"] = True
    sent.set_hash(7)
    assert (proxy.reads, sent.pad_value) == (0, None)
    sent.set_pad_value()
    assert (proxy.reads, sent.identity) == (1, item(features()).identity)
    nested = item(features(), deepstack={"layers": [Proxy(features())]})
    assert nested.identity == item(features(), deepstack={"layers": [features()]}).identity


def test_shared_memory_is_keyed_where_it_is_mapped(installed, item, features):
    from sglang.srt.managers.mm_utils import ShmPointerMMData

    pointer = ShmPointerMMData(features())
    with pytest.raises(ValueError, match="is not mapped in this process"):
        item([pointer, pointer])
    arrived = pickle.loads(pickle.dumps(pointer))
    try:
        assert item(arrived).identity == item(features()).identity
        assert item([arrived]).identity == item([features()]).identity
    finally:
        arrived.materialize()


def test_threads_of_the_tokenizer_agree(installed, item, features):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        identities = list(pool.map(lambda _: item(features()).identity, range(32)))
    assert len(set(identities)) == 1


def test_the_secret_is_in_no_item(installed, item, features, secret_bytes):
    assert secret_bytes not in pickle.dumps(item(features()))
    with pytest.raises(TypeError, match=r"item\['parameters'\]\['x'\] is a object") as caught:
        item(features(), x=object())
    assert secret_bytes.decode() not in str(caught.value)
