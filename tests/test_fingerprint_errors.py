"""What is not [num_rows, hidden] of plain bytes is refused before anything is read, copied or densified, by name."""

import numpy as np
import pytest
import torch

import gpukey
from gpukey import ops  # noqa: F401  registers the ops


class Wrapper(torch.Tensor):
    """A subclass whose values lie elsewhere."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} was called on a tensor without storage")


class Renamed(torch.Tensor):
    """A subclass that is a view of its storage."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} went through the subclass")


def quantized():
    return torch.quantize_per_tensor(torch.ones(2, 4), 0.1, 0, torch.qint8)


def freed():
    rows = torch.ones(2, 4)
    rows.untyped_storage().resize_(0)
    return rows


def shrunk():
    rows = torch.ones(3, 4)[1:]
    rows.untyped_storage().resize_(40)
    return rows


REFUSED = {
    "shrunk storage": (shrunk, ValueError, "resized"),
    "freed storage": (freed, ValueError, "freed"),
    "sparse COO of 4 TiB": (
        lambda: torch.sparse_coo_tensor([[0], [0]], [1.0], (2**20, 2**20)),
        TypeError,
        "sparse_coo",
    ),
    "sparse CSR": (lambda: torch.ones(2, 4).to_sparse_csr(), TypeError, "sparse_csr"),
    "meta": (lambda: torch.ones(2, 4, device="meta"), TypeError, "meta"),
    "quantized": (quantized, TypeError, "quantized"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2, 4)]), TypeError, "nested|layout"),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.ones(2, 4)], layout=torch.jagged),
        TypeError,
        "NestedTensor",
    ),
    "wrapper subclass": (lambda: Wrapper(torch.ones(2, 4)), TypeError, "Wrapper"),
    "0-D": (lambda: torch.tensor(1.0), ValueError, r"shape \[\]"),
    "1-D": (lambda: torch.ones(4), ValueError, r"shape \[4\]"),
    "3-D": (lambda: torch.ones(1, 2, 4), ValueError, r"shape \[1, 2, 4\]"),
    "hidden 0": (lambda: torch.ones(2, 0), ValueError, "hidden"),
    "no rows and hidden 0": (lambda: torch.ones(0, 0), ValueError, "hidden"),
    "a list": (lambda: [[1.0, 2.0]], TypeError, "list"),
    "None": (lambda: None, TypeError, "NoneType"),
    "bytes": (lambda: b"1234", TypeError, "bytes"),
    "numpy of objects": (lambda: np.array([[None, 1]]), TypeError, "ndarray"),
    "numpy of the other byte order": (lambda: np.ones((2, 4), ">f4"), TypeError, "ndarray"),
    "numpy 1-D": (lambda: np.ones(4), ValueError, r"shape \[4\]"),
    "numpy record": (lambda: np.ones((2, 4), np.dtype([("bfloat16", "u2")])), TypeError, "ndarray"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_refused_rows(secret, name):
    """vllm PR#54632, vllm-omni PR#5195."""
    make, error, words = REFUSED[name]
    rows = make()
    with pytest.raises(error, match=f"rows.*({words})"):
        gpukey.fingerprint_rows(rows, secret=secret)
    with pytest.raises(error, match=f"rows.*({words})"):
        gpukey.fingerprint_spans(rows, torch.tensor([0, 2]), secret=secret)
    with pytest.raises(error, match=f"rows.*({words})"):
        gpukey.fingerprint_rows_async(rows, secret=secret)


def test_a_subclass_over_plain_storage_is_read_as_what_it_is(secret):
    rows = torch.randn(2, 4)
    want = gpukey.fingerprint_rows(rows, secret=secret)
    for view in (rows.as_subclass(Renamed), torch.nn.Parameter(rows), torch.nn.Buffer(rows)):
        assert torch.equal(gpukey.fingerprint_rows(view, secret=secret), want)


def test_other_arguments(secret):
    rows, bounds = torch.randn(4, 8), torch.tensor([0, 4])
    out = torch.empty(4, 16, dtype=torch.uint8)
    for size, error in ((0, ValueError), (8, ValueError), (33, ValueError), ("16", TypeError), (True, TypeError)):
        with pytest.raises(error, match="digest_size"):
            gpukey.fingerprint_rows(rows, secret=secret, digest_size=size)
    with pytest.raises(TypeError, match="secret is a bytes"):
        gpukey.fingerprint_rows(rows, secret=b"a secret for tests, long enough")
    with pytest.raises(ValueError, match="backend is 'fast'"):
        gpukey.fingerprint_rows(rows, secret=secret, backend="fast")
    with pytest.raises((ValueError, RuntimeError), match="'cuda'"):
        gpukey.fingerprint_rows(rows, secret=secret, backend="cuda")
    for bad in (out[:3], out[:, :8], out.to(torch.int8), out.t().contiguous().t(), torch.empty(4, 16)):
        with pytest.raises(ValueError, match="out is"):
            gpukey.fingerprint_rows(rows, secret=secret, out=bad)
        with pytest.raises(ValueError, match="out is"):
            gpukey.fingerprint_spans(rows, torch.tensor([0, 1, 2, 3, 4]), secret=secret, out=bad)
    with pytest.raises(TypeError, match="out is a ndarray"):
        gpukey.fingerprint_rows(rows, secret=secret, out=out.numpy())
    for bad in (bounds.float(), bounds[None], bounds[:0], bounds.to(torch.int16)):
        with pytest.raises(ValueError, match="cu_seqlens is"):
            gpukey.fingerprint_spans(rows, bad, secret=secret)
    with pytest.raises(TypeError, match="cu_seqlens is a list"):
        gpukey.fingerprint_spans(rows, [0, 4], secret=secret)
    with pytest.raises(ValueError, match="after is given and rows is on cpu"):
        gpukey.fingerprint_rows(rows, secret=secret, after=object())


def test_the_ops_check_for_themselves(secret):
    """Whoever registered them: a wrong call through torch.ops is an error, never a read past the end."""
    rows, key, bounds = torch.randn(4, 8), secret.row_key(torch.float32, 8), torch.tensor([0, 4])
    op, fold, stage = (getattr(torch.ops.gpukey, name) for name in ("fingerprint_rows", "fold_spans", "stage_rows"))
    prints = op(rows, key, 16)
    wrong = [
        lambda: op(rows, key, 15),
        lambda: op(rows, key[:31], 16),
        lambda: op(rows, key.to(torch.int8), 16),
        lambda: op(rows, torch.zeros(64, dtype=torch.uint8)[::2], 16),
        lambda: op(rows[0], key, 16),
        lambda: op(rows[:, :0], key, 16),
        lambda: op.out(rows, key, 16, out=prints[:3]),
        lambda: op.out(rows, key, 32, out=prints),
        lambda: fold(prints, bounds, key, 32),
        lambda: fold(rows, bounds, key, 16),
        lambda: fold(prints, bounds.float(), key, 16),
        lambda: fold(prints, bounds + 1, key, 16),
        lambda: stage(rows, torch.empty(4, 9), key, 16),
        lambda: stage(rows, torch.empty(3, 8), key, 16),
        lambda: stage(rows, torch.empty(4, 8, dtype=torch.float64), key, 16),
        lambda: stage(rows, torch.empty(1, 8).expand(4, 8), key, 16),
        lambda: stage(rows, torch.empty(8, 4).t(), key, 16),
    ]
    for number, call in enumerate(wrong):
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            pytest.fail(f"call {number} gave {call()}")


def test_a_secret_never_shows(secret):
    """The bytes of the secret are in no error of a call that has it."""
    with pytest.raises(ValueError) as caught:
        gpukey.fingerprint_rows(torch.ones(4), secret=secret)
    assert secret._master.hex() not in str(caught.value)
    assert "long enough" not in repr(secret)


@pytest.mark.parametrize("backend", [None, "python", "cpu"])
def test_memory_that_is_gone_or_shared(secret, backend):
    """Whatever computes it: no read or write outside of a storage, no digests of digests."""
    rows, bounds = torch.ones(4, 8), torch.tensor([0, 2, 4])
    for size in (0, 40):
        out, ends = torch.zeros(5, 16, dtype=torch.uint8)[1:], torch.tensor([0, 0, 2, 4])[1:]
        few = out[:2]
        out.untyped_storage().resize_(size)
        ends.untyped_storage().resize_(size // 2)
        with pytest.raises(ValueError, match=r"out .*freed or resized"):
            gpukey.fingerprint_rows(rows, secret=secret, out=out, backend=backend)
        with pytest.raises(ValueError, match=r"out .*freed or resized"):
            gpukey.fingerprint_spans(rows, bounds, secret=secret, out=few, backend=backend)
        with pytest.raises(ValueError, match=r"cu_seqlens .*freed or resized"):
            gpukey.fingerprint_spans(rows, ends, secret=secret, backend=backend)
    memory = rows.view(torch.uint8).view(-1)
    with pytest.raises(ValueError, match="out shares memory with rows"):
        gpukey.fingerprint_rows(rows, secret=secret, out=memory[64:].view(4, 16), backend=backend)
    with pytest.raises(ValueError, match="out shares memory with rows"):
        gpukey.fingerprint_spans(rows, bounds, secret=secret, out=memory[:32].view(2, 16), backend=backend)
    wide = torch.ones(4, 16)
    between = wide[:1, 8:12].view(torch.uint8)
    gpukey.fingerprint_rows(wide[:, :8][:1], secret=secret, out=between, backend=backend)
    assert torch.equal(between, gpukey.fingerprint_rows(rows[:1], secret=secret))
