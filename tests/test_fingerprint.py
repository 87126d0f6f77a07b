"""fingerprint_rows and fingerprint_spans on a CPU: every dtype, width, alignment and stride gives the reference's
bytes."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gpukey
from gpukey import backends, reference
from gpukey.intake import take_rows

BACKENDS = [name for name in ("python", "cpu") if backends.missing(name) is None]
DTYPES = sorted(
    {str(d).removeprefix("torch.") for d in vars(torch).values() if isinstance(d, torch.dtype)}
    - {"qint8", "qint32", "quint8", "quint4x2", "quint2x4"}
)


def noise(num_bytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, num_bytes, dtype=np.uint8)


def make_rows(dtype, num_rows, hidden, *, offset=0, gap=0, seed=0):
    """[num_rows, hidden] of random bits that begins `offset` elements into its storage and leaves `gap` between
    rows."""
    dtype, stride = getattr(torch, dtype), hidden + gap
    raw = torch.from_numpy(noise((1 + offset + num_rows * stride) * dtype.itemsize, seed))
    return raw.view(dtype).as_strided((num_rows, hidden), (stride, 1), offset)


def row_bytes(rows):
    rows = rows.resolve_conj().resolve_neg()
    copy = torch.empty(rows.shape, dtype=rows.dtype)
    size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}[rows.element_size()]
    copy.view(size).copy_(rows.view(size))
    return [row.view(torch.uint8).numpy().tobytes() for row in copy]


def expected(secret_bytes, rows, digest_size=16):
    dtype, hidden = str(rows.dtype).removeprefix("torch."), rows.shape[1]
    return [reference.row_fingerprint(secret_bytes, row, dtype, hidden, digest_size) for row in row_bytes(rows)]


def as_bytes(digests):
    return [bytes(row) for row in digests.numpy()]


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(secret, secret_bytes, dtype, backend):
    """vllm#15209: every strided dtype, the ones without copy kernels too."""
    rows = make_rows(dtype, 5, 37, offset=3, gap=2)
    digests = gpukey.fingerprint_rows(rows, secret=secret, backend=backend)
    assert as_bytes(digests) == expected(secret_bytes, rows)
    columns = make_rows(dtype, 7, 4).t()
    assert as_bytes(gpukey.fingerprint_rows(columns, secret=secret, backend=backend)) == expected(secret_bytes, columns)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("digest_size", [16, 32])
@pytest.mark.parametrize("hidden", [1, 2, 31, 32, 33, 63, 64, 65, 511, 512, 513, 1023, 1024, 1025, 1537, 4096])
def test_widths_around_every_boundary(secret, secret_bytes, hidden, digest_size, backend):
    rows = make_rows("bfloat16", 3, hidden, offset=1, gap=1)
    digests = gpukey.fingerprint_rows(rows, secret=secret, digest_size=digest_size, backend=backend)
    assert digests.shape == (3, digest_size)
    assert as_bytes(digests) == expected(secret_bytes, rows, digest_size)


@settings(max_examples=40)
@given(st.data())
def test_any_layout(data):
    secret_bytes = b"a secret for tests, long enough"
    dtype = data.draw(st.sampled_from(["uint8", "float16", "float32", "complex128", "bool", "float8_e5m2"]))
    rows = make_rows(
        dtype,
        data.draw(st.integers(0, 20)),
        data.draw(st.integers(1, 200)),
        offset=data.draw(st.integers(0, 9)),
        gap=data.draw(st.integers(0, 9)),
        seed=data.draw(st.integers(0, 99)),
    )
    backend = data.draw(st.sampled_from(BACKENDS))
    digests = gpukey.fingerprint_rows(rows, secret=gpukey.Secret(secret_bytes), backend=backend)
    assert as_bytes(digests) == expected(secret_bytes, rows)


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_of_views(secret, secret_bytes, backend):
    base = make_rows("float32", 12, 10)
    one = base[:1]
    views = {
        "every second row": base[::2],
        "columns cut": base[:, 2:7],
        "one row repeated, stride 0": one.expand(5, 10),
        "windows that overlap": base.flatten().unfold(0, 10, 3),
        "a single column": base[:, 3:4],
        "an element repeated along the row": base[:, :1].expand(12, 6),
        "columns as rows": base.t(),
        "no rows": base[:0],
    }
    for name, rows in views.items():
        digests = gpukey.fingerprint_rows(rows, secret=secret, backend=backend)
        assert as_bytes(digests) == expected(secret_bytes, rows), name


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_surrounds_the_rows_does_not_matter(secret, backend):
    memory = torch.from_numpy(noise(4096))
    rows = memory[1 : 1 + 20 * 100].view(20, 100)[3:17, 5:83]
    before = gpukey.fingerprint_rows(rows, secret=secret, backend=backend)
    kept = rows.clone()
    memory.bitwise_not_()
    rows.copy_(kept)
    assert torch.equal(gpukey.fingerprint_rows(rows, secret=secret, backend=backend), before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_lazy_conj_and_neg(secret, secret_bytes, backend):
    """torch lazy bits: what the model would read is hashed, not what lies in memory."""
    z = torch.randn(4, 6, dtype=torch.complex64)
    for lazy in (z.conj(), z.conj().imag, z.conj().t(), z.conj().imag.t(), z.conj().imag[:, ::2]):
        assert lazy.is_conj() or lazy.is_neg()
        solid = lazy.resolve_conj().resolve_neg().contiguous()
        digests = gpukey.fingerprint_rows(lazy, secret=secret, backend=backend)
        assert as_bytes(digests) == expected(secret_bytes, solid)
        key = secret.row_key(lazy.dtype, lazy.shape[1])
        assert torch.equal(torch.ops.gpukey.fingerprint_rows(lazy, key, 16), digests)
    assert not torch.equal(
        gpukey.fingerprint_rows(z.imag, secret=secret), gpukey.fingerprint_rows(z.conj().imag, secret=secret)
    )


def test_equal_content_equal_fingerprint(secret):
    """sglang PR#5083: no address, no device, no gradient in it."""
    x = torch.randn(4, 64)
    assert torch.equal(gpukey.fingerprint_rows(x, secret=secret), gpukey.fingerprint_rows(x.clone(), secret=secret))
    trained = torch.nn.Parameter(x)
    assert torch.equal(gpukey.fingerprint_rows(x, secret=secret), gpukey.fingerprint_rows(trained, secret=secret))
    before = gpukey.fingerprint_rows(x, secret=secret)
    x += 1
    assert not (gpukey.fingerprint_rows(x, secret=secret) == before).all(1).any(), "a memo by object or address"


def test_every_single_bit_counts(secret):
    """sglang#8342: every flip of a row of 200 bytes gives another fingerprint."""
    row = torch.from_numpy(noise(200))
    flipped = row.repeat(1601, 1)
    for bit in range(1600):
        flipped[bit, bit // 8] ^= 1 << bit % 8
    assert len(set(as_bytes(gpukey.fingerprint_rows(flipped, secret=secret)))) == 1601


def test_values_that_compare_equal_are_not_the_same_bits(secret):
    quiet, payload = 0x7FC00000, 0x7FC00001
    bits = torch.tensor([[0], [-(2**31)], [quiet], [payload]], dtype=torch.int32)
    assert len(set(as_bytes(gpukey.fingerprint_rows(bits.view(torch.float32), secret=secret)))) == 4


def test_domains_are_apart(secret):
    """dynamo PR#8341 and the domain D: the same bytes under another dtype, width, digest size or secret."""
    raw = torch.from_numpy(noise(4500))
    seen = {}
    for dtype in ("uint8", "int8", "bool", "float8_e4m3fn", "float16", "bfloat16", "int16", "float32", "int32"):
        rows = raw.view(getattr(torch, dtype)).view(1, -1)
        for size in (16, 32):
            seen[dtype, size] = as_bytes(gpukey.fingerprint_rows(rows, secret=secret, digest_size=size))[0][:16]
    assert len(set(seen.values())) == len(seen)
    shapes = ((30, 150), (150, 30))
    spans = [gpukey.fingerprint_spans(raw.view(*s), torch.tensor([0, s[0]]), secret=secret) for s in shapes]
    assert not torch.equal(*spans)
    rows, other = raw.view(30, 150), gpukey.Secret(b"another secret, long enough")
    same = gpukey.fingerprint_rows(rows, secret=secret) == gpukey.fingerprint_rows(rows, secret=other)
    assert not same.all(1).any()


def test_features_beside_the_row_count(secret):
    """A DeepStack model: equal rows with other per-layer features, concatenated, are other rows."""
    row, features = torch.randn(4, 16), torch.randn(4, 48)
    a = gpukey.fingerprint_rows(torch.cat([row, features], 1), secret=secret)
    b = gpukey.fingerprint_rows(torch.cat([row, -features], 1), secret=secret)
    assert not (a == b).all(1).any()


def test_without_a_secret_the_process_has_its_own(secret, fresh_python):
    """vllm PR#51875: a random secret is never the same in two processes, a configured one always is."""
    code = "import gpukey, torch; print(gpukey.fingerprint_rows(torch.ones(1, 4)).numpy().tobytes().hex())"
    unset = "import os; [os.environ.pop(name, None) for name in ('GPUKEY_SECRET', 'GPUKEY_SECRET_FILE')]; "
    here = gpukey.fingerprint_rows(torch.ones(1, 4), secret=gpukey.Secret.random()).numpy().tobytes().hex()
    assert fresh_python(unset + code).strip() != here
    want = gpukey.fingerprint_rows(torch.ones(1, 4), secret=secret).numpy().tobytes().hex()
    assert fresh_python(code, GPUKEY_SECRET="a secret for tests, long enough").strip() == want


# --- spans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("digest_size", [16, 32])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_spans(secret, secret_bytes, index, digest_size, backend):
    rows = make_rows("bfloat16", 200, 24)
    bounds = [0, 0, 1, 5, 5, 68, 132, 197, 200, 200]
    digests = gpukey.fingerprint_spans(
        rows, torch.tensor(bounds, dtype=index), secret=secret, digest_size=digest_size, backend=backend
    )
    fingerprints = expected(secret_bytes, rows, digest_size)
    assert as_bytes(digests) == [
        reference.span_fingerprint(secret_bytes, fingerprints[a:b], "bfloat16", 24, digest_size)
        for a, b in pairwise(bounds)
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_spans_and_no_rows(secret, secret_bytes, backend):
    rows = make_rows("float32", 0, 8)
    spans = gpukey.fingerprint_spans(rows, torch.tensor([0]), secret=secret, backend=backend)
    assert spans.shape == (0, 16)
    spans = gpukey.fingerprint_spans(rows, torch.tensor([0, 0, 0]), secret=secret, backend=backend)
    assert as_bytes(spans) == [reference.span_fingerprint(secret_bytes, [], "float32", 8)] * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bounds", [[1, 4], [0, 3], [0, 5], [0, 3, 2, 4], [0, -1, 4], [-1, 4], [0, 2**62, 4]])
def test_wrong_bounds_are_errors_on_a_cpu(secret, bounds, backend):
    with pytest.raises(ValueError, match="cu_seqlens"):
        gpukey.fingerprint_spans(torch.ones(4, 8), torch.tensor(bounds), secret=secret, backend=backend)


def test_order_and_number_of_rows_count(secret):
    """sglang#8342: swapped, doubled, dropped rows."""
    rows = torch.randn(4, 32)
    orders = [[0, 1, 2, 3], [1, 0, 2, 3], [0, 0, 1, 2, 3], [0, 1, 2], [0, 1, 2, 3, 3], [3, 2, 1, 0], [0, 1, 1, 3]]
    variants = [rows[order] for order in orders]
    spans = [as_bytes(gpukey.fingerprint_spans(v, torch.tensor([0, len(v)]), secret=secret))[0] for v in variants]
    assert len(set(spans)) == len(variants)


# --- out= and arrays of others ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [None, *BACKENDS])
def test_out_is_filled_and_returned(secret, backend):
    rows, bounds = torch.randn(6, 33), torch.tensor([0, 2, 6])
    out = torch.full((6, 16), 0xEE, dtype=torch.uint8)
    assert gpukey.fingerprint_rows(rows, secret=secret, out=out, backend=backend) is out
    assert torch.equal(out, gpukey.fingerprint_rows(rows, secret=secret))
    spans = torch.full((2, 16), 0xEE, dtype=torch.uint8)
    assert gpukey.fingerprint_spans(rows, bounds, secret=secret, out=spans, backend=backend) is spans
    assert torch.equal(spans, gpukey.fingerprint_spans(rows, bounds, secret=secret))


class OnlyDlpack:
    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **keywords):
        return self._array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_arrays_are_read_in_place(secret):
    array = np.random.default_rng(0).standard_normal((4, 8), dtype=np.float32)
    want = gpukey.fingerprint_rows(torch.from_numpy(array.copy()), secret=secret)
    read = array.copy()
    read.flags.writeable = False
    for rows in (array, read, OnlyDlpack(array), OnlyDlpack(torch.from_numpy(array))):
        assert torch.equal(gpukey.fingerprint_rows(rows, secret=secret), want)
        assert take_rows(rows).data_ptr() in (array.ctypes.data, read.ctypes.data)
    assert torch.equal(gpukey.fingerprint_rows(array[::-1], secret=secret), want.flip(0))
    assert torch.equal(
        gpukey.fingerprint_rows(array[:, ::-1], secret=secret),
        gpukey.fingerprint_rows(array[:, ::-1].copy(), secret=secret),
    )
