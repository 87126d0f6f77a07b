"""Planted faults: each is patched into the real code, and a named test of this suite must fail on it."""

import importlib.util
from pathlib import Path

import pytest

from gpukey import cache, keys, overlays, root, secret, spans

SECRET = secret.Secret(b"a secret for planted faults")


def run_test(module, name, *args, **kwargs):
    """A test function of another file, called as it stands."""
    found = importlib.util.spec_from_file_location(f"planted_{module}", Path(__file__).with_name(f"{module}.py"))
    loaded = importlib.util.module_from_spec(found)
    found.loader.exec_module(loaded)
    getattr(loaded, name)(*args, **kwargs)


def rows_are_not_keyed(patch):
    patch.setattr(overlays, "_add_rows", lambda parts, start, count, span, offset: None)


def half_of_each_fingerprint_is_keyed(patch):
    real = overlays._add_rows

    def cut(parts, start, count, span, offset):
        rows = [span.fingerprints[i : i + 8] + bytes(8) for i in range(0, len(span.fingerprints), 16)]
        real(parts, start, count, spans.EmbeddingSpan(span.start, rows), offset)

    patch.setattr(overlays, "_add_rows", cut)


def touching_spans_stay_two_runs(patch):
    def append(parts, start, count, span, offset):
        parts.append((start, 1, count, span.fingerprints[offset * 16 : (offset + count) * 16]))

    patch.setattr(overlays, "_add_rows", append)


def layout_and_attention_are_not_bound(patch):
    patch.setattr(spans.EmbeddingSpan, "is_placed", property(lambda self: False))


def grid_is_not_in_the_item_id(patch):
    patch.setattr(spans, "encode_fields", lambda fields: b"")


def places_of_items_are_dropped(patch):
    def spell(parts):
        return b"".join(sorted(bytes([kind]) + payload for _, kind, _, payload in parts))

    patch.setattr(overlays, "_spell", spell)


def item_without(start, stop):
    """Leaves some bytes of an item's payload out."""

    def plant(patch):
        real = spans.MultimodalItem.tail
        patch.setattr(spans.MultimodalItem, "tail", lambda self: real(self)[:start] + real(self)[stop:])

    return plant


def identifiers_are_cut_to_64_bits(patch):
    real = spans.MultimodalItem.tail

    def tail(self):
        cut = spans.MultimodalItem.__new__(spans.MultimodalItem)
        for name in ("start", "length", "modality", "named", "layout"):
            object.__setattr__(cut, name, getattr(self, name))
        object.__setattr__(cut, "identifier", self.identifier[:8])
        return real(cut)

    patch.setattr(spans.MultimodalItem, "tail", tail)


def names_pass_for_digests(patch):
    patch.setattr(spans.MultimodalItem, "kind", property(lambda self: 2))


def fields_are_bare_values(patch):
    patch.setattr(root, "encode_fields", lambda fields: "|".join(map(str, fields.values())).encode())


def fields_have_no_types(patch):
    def encode(fields):
        return b"".join(secret.lp(n.encode()) + secret.lp(str(v).encode()) for n, v in sorted(fields.items()))

    patch.setattr(root, "encode_fields", encode)


def scale_is_not_keyed(patch):
    real = root.encode_fields
    patch.setattr(root, "encode_fields", lambda f: real({n: v for n, v in f.items() if n != "lora_scale"}))


def block_size_is_not_keyed(patch):
    patch.setattr(
        root.Root, "key", lambda self, used=None, block_size=None: secret.keyed_hash(bytes(32), self._encoded)
    )


def parent_is_a_constant(patch):
    patch.setattr(keys.KeyChain, "_parent", lambda self: bytes(32))
    patch.setattr(
        keys,
        "text_keys",
        lambda ids, parent, key, size: [
            keys.python_text_keys(ids[i : i + size], bytes(32), key, size)[0] for i in range(0, len(ids), size)
        ],
    )


def ids_are_cut_to_32_bits(patch):
    real = keys.encode_token_ids

    def cut(token_ids):
        raw = bytes(real(token_ids))
        return b"".join(raw[i : i + 4] + bytes(4) for i in range(0, len(raw), 8))

    patch.setattr(keys, "encode_token_ids", cut)


def partial_blocks_are_keyed(patch):
    real = keys.KeyChain._extend

    def extend(self):
        real(self)
        if self._ids and len(self._keys) * self.block_size < self.num_tokens:
            self._keys.append(keys.blake3(self._parent() + self._ids, key=self._key).digest())

    patch.setattr(keys.KeyChain, "_extend", extend)


def truncation_keeps_the_rows(patch):
    patch.setattr(overlays.Overlays, "cut", lambda self, stop: self)


def the_secret_is_not_used(patch):
    patch.setattr(
        secret.Secret, "derive", lambda self, label, suffix=b"": secret.blake3(label.encode() + suffix).digest()
    )


def a_recycled_block_keeps_its_key(patch):
    def evict(self):
        block_id = self._idle.popitem(last=False)[0]
        self._blocks[block_id].key = None
        return block_id

    patch.setattr(cache.PrefixCache, "_evict", evict)


def duplicates_take_over(patch):
    def insert(self, key, block_id, parent):
        self._by_key[key] = block_id
        self._blocks[block_id].key = key
        return block_id

    patch.setattr(cache.PrefixCache, "insert", insert)


def a_hit_may_be_the_whole_prompt(patch):
    real = cache.PrefixCache.match
    patch.setattr(cache.PrefixCache, "match", lambda self, keys, num_tokens: real(self, keys, num_tokens + 1))


def reset_keeps_the_keys(patch):
    patch.setattr(cache.PrefixCache, "reset", lambda self: None)


def reset_does_not_age_blocks(patch):
    real = cache.PrefixCache.reset

    def reset(self):
        real(self)
        self._generation -= 1

    patch.setattr(cache.PrefixCache, "reset", reset)


def roots_go_before_leaves(patch):
    patch.setattr(cache, "reversed", lambda blocks: blocks, raising=False)
    patch.setattr(cache.PrefixCache, "_parent_of", lambda self, block: None)


def references_are_not_counted(patch):
    real = cache.PrefixCache._acquire

    def acquire(self, block_id):
        if self._blocks[block_id].refs == 0:
            real(self, block_id)

    patch.setattr(cache.PrefixCache, "_acquire", acquire)


CASES = [
    (rows_are_not_keyed, "test_keys", "test_content_of_rows_is_keyed_from_the_first_block_that_they_touch", 16),
    (half_of_each_fingerprint_is_keyed, "test_keys", "test_one_row_in_the_middle_of_a_long_span"),
    (touching_spans_stay_two_runs, "test_keys", "test_how_the_caller_cut_the_rows_does_not_count"),
    (layout_and_attention_are_not_bound, "test_keys", "test_where_the_model_is_told_that_rows_stand_is_keyed"),
    (layout_and_attention_are_not_bound, "test_keys", "test_a_bidirectional_span_is_keyed_whole_from_its_first_block"),
    (grid_is_not_in_the_item_id, "test_keys", "test_equal_rows_under_two_grids_are_two_items"),
    (places_of_items_are_dropped, "test_keys", "test_order_of_items"),
    (item_without(0, 4), "test_keys", "test_length_of_an_item_is_keyed_in_its_first_block"),
    (item_without(4, 13), "test_keys", "test_every_part_of_an_item_is_keyed"),
    (identifiers_are_cut_to_64_bits, "test_keys", "test_the_whole_identifier_counts", slice(0, 8)),
    (names_pass_for_digests, "test_keys", "test_names_and_digests_are_two_namespaces"),
    (fields_are_bare_values, "test_root", "test_a_name_is_not_a_salt", SECRET),
    (fields_have_no_types, "test_root", "test_types_are_in_the_key", SECRET),
    (scale_is_not_keyed, "test_root", "test_an_adapter_s_scale_is_keyed", SECRET),
    (block_size_is_not_keyed, "test_root", "test_everything_that_fixes_the_cache_is_a_field", SECRET, "model"),
    (parent_is_a_constant, "test_keys", "test_every_bit_of_every_id_counts", 1, 0),
    (parent_is_a_constant, "test_keys", "test_keys_are_32_bytes_and_unlike_each_other"),
    (ids_are_cut_to_32_bits, "test_keys", "test_every_bit_of_every_id_counts", 1 << 32, 7),
    (partial_blocks_are_keyed, "test_keys", "test_full_blocks_only"),
    (truncation_keeps_the_rows, "test_keys_chain", "test_truncation_forgets"),
    (the_secret_is_not_used, "test_keys", "test_everything_in_the_call_is_in_the_key"),
    (a_recycled_block_keeps_its_key, "test_cache", "test_a_recycled_block_is_unreachable_under_its_old_key"),
    (duplicates_take_over, "test_cache", "test_equal_prompts_in_one_step_keep_one_block", "cache"),
    (a_hit_may_be_the_whole_prompt, "test_cache", "test_one_token_is_always_left_to_run", "cache", 12, 8),
    (reset_keeps_the_keys, "test_cache", "test_reset_forgets_every_key", "cache"),
    (reset_does_not_age_blocks, "test_cache", "test_what_was_computed_before_a_reset_is_never_published", "cache"),
    (roots_go_before_leaves, "test_cache", "test_leaves_go_first", "in order"),
    (references_are_not_counted, "test_cache", "test_equal_prompts_in_one_step_keep_one_block", "cache"),
]


def arguments(given):
    return [cache.PrefixCache(8, 4) if argument == "cache" else argument for argument in given]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{getattr(case[0], '__name__', 'fault')}-{case[2]}")
def test_a_planted_fault_is_caught(case, monkeypatch):
    plant, module, name, *given = case
    run_test(module, name, *arguments(given))  # the test passes on the code as it is
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises(AssertionError):
            run_test(module, name, *arguments(given))
    run_test(module, name, *arguments(given))
