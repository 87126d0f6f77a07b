"""content_id: one identity for what a processor made, whatever its container; nothing that changes the forward is left out."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math

import numpy as np
import pytest
import torch

from gpukey.integrations.content import content_id


class Grid(enum.Enum):
    HIGH = 1
    WIDE = 2


class Other(enum.Enum):
    HIGH = 1


@dataclasses.dataclass
class Patch:
    rows: int
    columns: int


@dataclasses.dataclass
class Crop(Patch):
    pass


@pytest.fixture
def identify(secret):
    return lambda value, modality="IMAGE": content_id(value, modality, secret=secret)


def test_equal_content_is_equal_wherever_it_lies(identify):
    """sglang PR#5083: fp(x) == fp(x.clone()); numpy and torch name the same bytes."""
    rows = torch.randn(7, 33)
    strided = torch.randn(33, 7).t()
    assert identify(rows) == identify(rows.clone()) == identify(rows.numpy())
    assert identify(strided) == identify(strided.contiguous())
    assert len(identify(rows)) == 32


def test_every_pair_of_different_contents_is_distinct(identify):
    """dynamo PR#8341 (30×150 against 150×30), dtype, order, doubled parts, types of scalars, None, empty containers."""
    bits = torch.arange(4500, dtype=torch.int16)
    row = torch.arange(6, dtype=torch.float32)
    contents = [
        bits.view(30, 150),
        bits.view(150, 30),
        bits.view(torch.float16).view(30, 150),
        bits.view(torch.bfloat16).view(30, 150),
        bits.view(1, 30, 150),
        row,
        row.view(2, 3),
        row.view(3, 2),
        [row, row],
        [row],
        [[row]],
        [row, -row],
        [-row, row],
        {"feature": row},
        {"embeddings": row},
        {"feature": row, "grid": [2, 8]},
        {"feature": row, "grid": [4, 4]},
        {"feature": row, "grid": torch.tensor([4, 4])},
        {"feature": row, "grid": None},
        torch.empty(0, 4),
        torch.empty(4, 0),
        torch.empty(0, 4, dtype=torch.int64),
        torch.tensor(1.0),
        1.0,
        1,
        True,
        "1",
        b"1",
        None,
        [],
        {},
        [None],
        "",
        b"",
        torch.empty(0),
        np.array(1.0),
        np.array([1.0]),
        [1.0],
        [[1.0]],
        [1, 1],
        [11],
        ["", "", ""],
        ["a", "b"],
        ["asb"],
        {"a": "x", "b": "y"},
        {"as\1\0\0\0xb": "y"},
        0.0,
        -0.0,
        math.nan,
        math.inf,
        1 << 70,
        -(1 << 70),
        255,
        -1,
        1j,
        complex(0.0, -0.0),
        "\ud800",
        "\ud800".encode("utf-8", "surrogatepass"),
        torch.float32,
        "torch.float32",
        Grid.HIGH,
        Grid.WIDE,
        Other.HIGH,
        Patch(1, 2),
        Patch(2, 1),
        Crop(1, 2),
        {"rows": 1, "columns": 2},
        {"part x": 1},
        {"x": 1},
        {"": {"x": 1}},
        {"x": {"": 1}},
        {"a": 1, "b": 2},
        {"a": 2, "b": 1},
        {"ab": 1, "": 2},
        [("a", 1), ("b", 2)],
        {"kind": "tensor", "shape": b"", "dtype": "float32"},
    ]
    for (i, a), (j, b) in itertools.combinations(enumerate(contents), 2):
        assert identify(a) != identify(b), (i, j)
    assert identify(row, "IMAGE") != identify(row, "VIDEO")


def test_what_counts_as_the_same(identify):
    """Containers, numpy scalars and strides are spellings; the processor that changes them makes the same forward."""
    rows = torch.randn(3, 5)
    same = [
        ([1, rows], (1, rows)),
        ({"a": 1, "b": rows}, {"b": rows, "a": 1}),
        (b"x", bytearray(b"x")),
        (2, np.int64(2)),
        (True, np.bool_(True)),
        (0.5, np.float16(0.5)),
        ([1, 2], torch.Size([1, 2])),
        (rows, torch.nn.Parameter(rows)),
        (rows, rows.numpy()[::-1][::-1]),
        (rows[:, ::2], rows[:, ::2].contiguous()),
        (rows.expand(2, 3, 5), rows.repeat(2, 1, 1)),
    ]
    for a, b in same:
        assert identify(a) == identify(b), (a, b)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float4_e2m1fn_x2, torch.bool, torch.complex128])
def test_every_dtype_is_keyed_also_where_it_cannot_be_copied(identify, dtype):
    raw = torch.arange(96, dtype=torch.uint8).view(6, 16)
    rows = (raw % 2 if dtype is torch.bool else raw).view(dtype)
    turned = rows.t() if rows.ndim == 2 else rows
    assert identify(rows) == identify(rows.clone() if dtype is not torch.float4_e2m1fn_x2 else rows.view(dtype))
    assert identify(turned) not in (identify(rows), identify(turned.t()))


@pytest.mark.parametrize("lazy", [lambda z: z.conj(), lambda z: z.conj().imag])
def test_lazy_conj_and_neg_bits_are_seen(identify, lazy):
    """torch lazy bits: a lazy view has the bytes of what it shows."""
    value = lazy(torch.complex(torch.randn(3, 5), torch.randn(3, 5)))
    assert value.is_neg() or value.is_conj()
    assert identify(value) == identify(value.resolve_conj().resolve_neg().clone())
    assert identify(value) != identify(-value)


def test_every_single_bit_counts(identify):
    feature = torch.zeros(3, 40, dtype=torch.uint8)
    seen = {identify(feature)}
    for position in (0, 39, 40, 79, 119):
        for bit in range(8):
            flipped = feature.clone()
            flipped.view(-1)[position] ^= 1 << bit
            seen.add(identify(flipped))
    assert len(seen) == 1 + 5 * 8


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: object(), "is a object; a tensor"),
        (lambda: {1, 2}, "is a set; a tensor"),
        (lambda: memoryview(b"x"), "is a memoryview"),
        (lambda: Grid, "is a EnumType|is a EnumMeta"),
        (lambda: Patch, "is a type"),
        (lambda: torch.device("cpu"), "is a device"),
        (lambda: np.datetime64(1, "ns"), "is a datetime64"),
        (lambda: np.timedelta64(1, "ns"), "is a timedelta64"),
        (lambda: np.longdouble(1), "is a longdouble|is a float128"),
        (lambda: np.array([object()]), "is an array of dtype object"),
        (lambda: np.array(["text"]), "is an array of dtype <U4"),
        (lambda: np.zeros(2, dtype=[("a", "i4"), ("b", "f4")]), "is an array of dtype"),
        (lambda: np.zeros(2, dtype=">i4"), "is an array of dtype >i4"),
        (lambda: np.ma.masked_array([1, 2], [True, False]), "is a MaskedArray"),
        (
            lambda: torch.sparse_coo_tensor(torch.zeros(2, 1, dtype=torch.long), torch.ones(1), (1 << 40, 4)),
            "sparse_coo",
        ),
        (lambda: torch.sparse_coo_tensor(size=(0, 4)), "sparse_coo"),
        (lambda: torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.qint8), "is a quantized tensor"),
        (lambda: torch.empty(2, 2, device="meta"), "is a meta tensor"),
        (lambda: torch.empty(0, device="meta"), "is a meta tensor"),
        (lambda: torch.nested.nested_tensor([torch.ones(2)]), "is a nested tensor"),
        (lambda: torch.nn.Linear(2, 2), "is a Linear"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_has_no_canonical_bytes_is_refused_by_name(secret, make, message):
    """vllm PR#54632 and vllm-omni PR#5195: nothing is densified, and the place is named."""
    with pytest.raises(TypeError, match=message) as caught:
        content_id({"grid": [1, make()]}, "IMAGE", secret=secret, name="item")
    assert str(caught.value).startswith("item['grid'][1] ")


def test_keys_other_than_text_and_freed_storage_are_refused(secret):
    with pytest.raises(TypeError, match="has the key 3; text is needed"):
        content_id({3: 1}, "IMAGE", secret=secret)
    freed = torch.ones(2, 2)
    freed.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"value has no bytes to key: .*it was freed"):
        content_id(freed, "IMAGE", secret=secret)


def test_depth_is_bounded(secret):
    """A client's JSON nests as deep as it likes; a list may hold itself."""
    loop: list[object] = []
    loop.append(loop)
    for value in (loop, {"a": loop}):
        with pytest.raises(ValueError, match="lies 64 levels deep"):
            content_id(value, "IMAGE", secret=secret)


def test_a_million_numbers_are_no_attack(secret):
    """A client's JSON may bring rows as lists: linear, and about a microsecond a number."""
    assert content_id([[0.5] * 1000] * 100, "IMAGE", secret=secret) != content_id(
        [[0.5] * 1000] * 99, "IMAGE", secret=secret
    )
