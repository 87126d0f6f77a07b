"""Planted faults: each is patched into the real code, and a named test of this suite must fail on it."""

import importlib.util
import inspect
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from blake3 import blake3

from gpukey import device_keys, envelope, fingerprint, handle, streams
from gpukey.backends import python as python_backend
from gpukey.secret import Secret

SECRET_BYTES = b"a secret for tests, long enough"
real_rows, real_fold = fingerprint._fingerprint_rows, fingerprint._fold_spans
real_readable, real_key, real_backend = fingerprint.readable, device_keys.device_key, python_backend.fingerprint_rows


def run_test(module, name, **arguments):
    """A test function of another file, called as it stands; fixtures of its own file are made, tmp ones are not
    needed."""
    found = importlib.util.spec_from_file_location(f"planted_{module}", Path(__file__).with_name(f"{module}.py"))
    loaded = importlib.util.module_from_spec(found)
    found.loader.exec_module(loaded)
    test = getattr(loaded, name)
    given = {"secret": Secret(SECRET_BYTES), "secret_bytes": SECRET_BYTES, "backend": None, **arguments}
    if hasattr(loaded, "FakeDevice"):
        given["device"] = loaded.FakeDevice()
        given["pool"] = handle.PinnedPool(given["device"])
    test(**{parameter: given[parameter] for parameter in inspect.signature(test).parameters})


def hashes(patch, function):
    patch.setattr(fingerprint, "_fingerprint_rows", function)


def digests_of(messages, digest_size):
    raw = b"".join(blake3(message).digest(digest_size) for message in messages)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, digest_size)


def row_hash_is_the_address(patch):
    hashes(patch, lambda rows, key, size: digests_of([str(row.data_ptr()).encode() for row in rows], size))


def memo_by_address(patch):
    memo = {}
    hashes(patch, lambda rows, key, size: memo.setdefault((rows.data_ptr(), rows.shape), real_rows(rows, key, size)))


def only_the_first_bytes_of_a_row(patch):
    hashes(patch, lambda rows, key, size: real_rows(rows[:, :128], key, size))


def every_fourth_element(patch):
    hashes(patch, lambda rows, key, size: real_rows(rows[:, ::4].contiguous(), key, size))


def values_instead_of_bits(patch):
    hashes(patch, lambda rows, key, size: real_rows(torch.nan_to_num(rows + 0.0, nan=1e30), key, size))


def bytes_are_summed(patch):
    def added(rows, key, size):
        total = rows.contiguous().view(torch.uint8).long().sum(1, keepdim=True)
        return real_rows(total, key, size)

    hashes(patch, added)


def no_key(patch):
    hashes(patch, lambda rows, key, size: real_rows(rows, torch.zeros_like(key), size))


def long_digests_are_padded(patch):
    def padded(rows, key, size):
        return torch.nn.functional.pad(real_rows(rows, key, 16), (0, size - 16))

    hashes(patch, padded)


def strides_are_ignored(patch):
    def packed(rows):
        rows = real_readable(rows)
        enough = rows.untyped_storage().nbytes() // rows.element_size() - rows.storage_offset() >= rows.numel()
        return rows.as_strided(rows.shape, (rows.shape[1], 1)) if enough else rows

    patch.setattr(fingerprint, "readable", packed)


def storage_offset_is_ignored(patch):
    def shifted(rows):
        rows = real_readable(rows)
        return rows.as_strided(rows.shape, rows.stride(), 0)

    patch.setattr(fingerprint, "readable", shifted)


def neg_bit_is_ignored(patch):
    def unresolved(rows):
        return real_readable(torch._neg_view(rows) if rows.is_neg() else rows)

    patch.setattr(fingerprint, "readable", unresolved)


def conj_bit_is_ignored(patch):
    patch.setattr(fingerprint, "readable", lambda rows: real_readable(torch._conj(rows) if rows.is_conj() else rows))


def domain_without(position, constant):
    def plant(patch):
        def unbound(secret, *domain):
            changed = list(domain)
            changed[position] = constant
            return real_key(secret, *changed)

        patch.setattr(fingerprint, "device_key", unbound)

    return plant


def spans_are_xored(patch):
    def mixed(rows, bounds, key, size):
        spans = [rows[a:b] for a, b in pairwise(bounds)]
        return torch.stack([_xor(span, size) for span in spans])

    patch.setattr(fingerprint, "_fold_spans", mixed)


def _xor(span, size):
    total = torch.zeros(size, dtype=torch.uint8)
    for row in span:
        total ^= row
    return total


def a_span_is_its_first_rows(patch):
    def cut(rows, bounds, key, size):
        return real_fold(rows[:3], bounds.clamp(max=3), key, size)

    patch.setattr(fingerprint, "_fold_spans", cut)


def buffers_return_at_once(patch):
    def impatient(queue):
        things = [thing for thing, _ in queue._arriving]
        queue._arriving.clear()
        return things

    patch.setattr(streams.Retirement, "done", impatient)


def dropped_handles_keep_their_buffers(patch):
    patch.setattr(handle.PinnedPool, "release", lambda pool, buffer, event: None)


def results_share_the_pinned_buffer(patch):
    def view(pending):
        count, width = pending.shape
        return pending.buffer[: count * width].numpy().reshape(count, width)

    patch.setattr(handle._Pending, "read", view)


def the_mac_is_not_checked(patch):
    patch.setattr(envelope.hmac, "compare_digest", lambda one, other: True)


def the_mac_covers_the_fingerprints_only(patch):
    real = envelope._mac
    patch.setattr(envelope, "_mac", lambda secret, body: real(secret, body[45:]))


ROWS, HANDLE, ENVELOPE = "test_fingerprint", "test_handle", "test_envelope"
FAULTS = [
    (row_hash_is_the_address, ROWS, "test_equal_content_equal_fingerprint", {}),
    (memo_by_address, ROWS, "test_equal_content_equal_fingerprint", {}),
    (only_the_first_bytes_of_a_row, ROWS, "test_every_single_bit_counts", {}),
    (every_fourth_element, ROWS, "test_every_single_bit_counts", {}),
    (bytes_are_summed, ROWS, "test_every_single_bit_counts", {}),
    (values_instead_of_bits, ROWS, "test_values_that_compare_equal_are_not_the_same_bits", {}),
    (no_key, ROWS, "test_domains_are_apart", {}),
    (domain_without(1, torch.uint8), ROWS, "test_domains_are_apart", {}),
    (domain_without(2, 1), ROWS, "test_widths_around_every_boundary", {"hidden": 2, "digest_size": 16}),
    (domain_without(3, 16), ROWS, "test_domains_are_apart", {}),
    (long_digests_are_padded, ROWS, "test_widths_around_every_boundary", {"hidden": 31, "digest_size": 32}),
    (strides_are_ignored, ROWS, "test_strides_of_views", {}),
    (storage_offset_is_ignored, ROWS, "test_strides_of_views", {}),
    (neg_bit_is_ignored, ROWS, "test_lazy_conj_and_neg", {}),
    (conj_bit_is_ignored, ROWS, "test_lazy_conj_and_neg", {}),
    (spans_are_xored, ROWS, "test_order_and_number_of_rows_count", {}),
    (a_span_is_its_first_rows, ROWS, "test_order_and_number_of_rows_count", {}),
    (buffers_return_at_once, HANDLE, "test_a_dropped_handle_returns_its_buffer_after_the_event_only", {}),
    (dropped_handles_keep_their_buffers, HANDLE, "test_many_steps_allocate_no_more_than_were_in_flight", {}),
    (results_share_the_pinned_buffer, HANDLE, "test_a_result_does_not_change_when_its_buffer_is_reused", {}),
    (the_mac_is_not_checked, ENVELOPE, "test_every_changed_bit_is_found", {}),
    (the_mac_covers_the_fingerprints_only, ENVELOPE, "test_every_changed_bit_is_found", {}),
]


def name_of(value):
    return value.__name__ if callable(value) else None


@pytest.mark.parametrize(("fault", "module", "test", "arguments"), FAULTS, ids=name_of)
def test_the_fault_is_found(fault, module, test, arguments, monkeypatch):
    run_test(module, test, **arguments)
    fault(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run_test(module, test, **arguments)
