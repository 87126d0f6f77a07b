"""gpukey.root and gpukey.fields: typed fields, what is required, and what is refused."""

import copy
import itertools
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukey import reference as ref
from gpukey.fields import encode_fields, plain
from gpukey.keys import Root, block_keys
from gpukey.secret import Secret

BASE = {"model": "m", "dtype": "bfloat16"}
TEXT_FIELDS = ["model", "dtype", "revision", "weights_version", "kv_layout", "lora_name", "lora_version", "cache_salt"]


def root(**fields):
    return Root(**{**BASE, **fields})


def test_key_is_the_reference_s(secret, secret_bytes):
    made = root(cache_salt="tenant-7", config=b"\0", **{"x-a.b_c-9": 5})
    assert made.key(secret) == ref.root_key(secret_bytes, made.fields)
    assert made.key(secret, block_size=16) == ref.root_key(secret_bytes, {**made.fields, "block_size": 16})
    assert made.key(secret, block_size=np.int32(16)) == made.key(secret, block_size=16)


values = st.one_of(
    st.binary(max_size=20),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
)


names = st.text("abz09_.-", min_size=1, max_size=5).map("x-".__add__)


@settings(max_examples=60)
@given(st.dictionaries(names, values, max_size=5))
def test_any_fields_in_any_order_equal_the_reference(fields):
    made = {name: plain(name, value) for name, value in fields.items()}
    assert encode_fields(made) == ref.encode_fields(fields)
    backwards = dict(reversed(made.items()))
    assert Root(**BASE, **made) == Root(**backwards, **BASE)


def test_types_are_in_the_key(secret):
    """TRT-LLM PR#14800: True, 1, 1.0, "1" and b"1" are five values; the order of fields in the call does not matter."""
    keys = {root(**{"x-a": value}).key(secret) for value in (True, 1, 1.0, "1", b"1", False, 0, "", b"")}
    assert len(keys) == 9
    assert Root(model="m", dtype="d", cache_salt="s") == Root(cache_salt="s", dtype="d", model="m")


def test_a_name_is_not_a_salt(secret):
    """vllm#44701: the same string in every pair of root fields gives distinct root keys, and distinct later blocks."""
    made = {name: {name: "X"} for name in [*TEXT_FIELDS, "x-a"]}
    made["lora_name"]["lora_version"] = ""
    made["lora_version"]["lora_name"] = ""
    made["cache_salt bytes"] = {"cache_salt": b"X"}
    made["config"] = {"config": b"X"}
    made["nothing"] = {}
    keys = {
        name: block_keys(range(48), block_size=16, root=root(**fields), secret=secret) for name, fields in made.items()
    }
    for one, other in itertools.combinations(keys, 2):
        for block in range(3):
            assert keys[one][block] != keys[other][block], (one, other, block)


@pytest.mark.parametrize("name", TEXT_FIELDS)
def test_absent_is_not_empty(secret, name):
    if name in BASE:
        with pytest.raises(TypeError, match=f"{name} is None"):
            root(**{name: None})
    elif name not in ("lora_name", "lora_version"):
        assert root(**{name: None}) == root()
        assert root(**{name: ""}) != root()


def test_moved_border_between_name_and_value(secret):
    assert root(**{"x-ab": "c"}).key(secret) != root(**{"x-a": "bc"}).key(secret)


def test_an_adapter_s_name_needs_its_version(secret):
    """vllm#42125, vllm#30931: an adapter reloaded under its old name has another version, and other keys."""
    with pytest.raises(ValueError, match="lora_name is 'sql' without lora_version"):
        root(lora_name="sql")
    with pytest.raises(ValueError, match="lora_version came without lora_name"):
        root(lora_version="1")
    one, two = (root(lora_name="sql", lora_version=version).key(secret) for version in "12")
    assert one != two


def test_an_adapter_s_scale_is_keyed(secret):
    """llama.cpp#26207."""
    adapter = {"lora_name": "sql", "lora_version": "1"}
    keys = {root(**adapter, lora_scale=scale).key(secret) for scale in (None, 0.0, 0.5, 1.0)}
    assert len(keys) == 4
    assert root(**adapter, lora_scale=1) == root(**adapter, lora_scale=1.0)
    assert root(**adapter, lora_scale=-0.0) == root(**adapter, lora_scale=0.0)
    with pytest.raises(ValueError, match="lora_scale came without lora_name"):
        root(lora_scale=1.0)


@pytest.mark.parametrize("name", ["model", "dtype", "revision", "weights_version", "kv_layout"])
def test_everything_that_fixes_the_cache_is_a_field(secret, name):
    """vllm PR#45767, lmdeploy#4930, lmdeploy#4917: model, KV dtype, block size, layout and weights change the key."""
    assert root(**{name: "other"}).key(secret) != root(**{name: "one"}).key(secret)
    assert root(config=b"other").key(secret) != root(config=b"one").key(secret)
    assert root().key(secret, block_size=16) != root().key(secret, block_size=32) != root().key(secret)


def test_numpy_scalars_count_as_their_python_value():
    """vllm PR#12621."""
    assert root(**{"x-a": np.int64(3)}) == root(**{"x-a": 3})
    assert root(**{"x-a": np.uint8(3)}) == root(**{"x-a": 3})
    assert root(**{"x-a": np.bool_(True)}) == root(**{"x-a": True}) != root(**{"x-a": 1})
    assert root(**{"x-a": np.float64(0.1)}) == root(**{"x-a": 0.1})
    assert root(**{"x-a": np.float32(0.1)}) == root(**{"x-a": float(np.float32(0.1))})
    assert root(**{"x-a": np.str_("é")}) == root(**{"x-a": "é"})
    assert root(**{"x-a": np.bytes_(b"a")}) == root(**{"x-a": b"a"})
    assert type(root(model=np.str_("m")).fields["model"]) is str


def test_text_is_not_normalised(secret):
    assert root(model="é").key(secret) != root(model="e\u0301").key(secret)


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"model": 3}, TypeError, "model is a int; str is needed"),
        ({"model": b"m"}, TypeError, "model is a bytes; str is needed"),
        ({"model": Path("m")}, TypeError, "Path; str is needed"),
        ({"dtype": torch.bfloat16}, TypeError, "dtype is a dtype; str is needed"),
        ({"weights_version": 3}, TypeError, "weights_version is a int; str is needed"),
        ({"config": "00ff"}, TypeError, "config is a str; bytes is needed"),
        ({"cache_salt": 7}, TypeError, "cache_salt is a int; str or bytes is needed"),
        ({"lora_name": "a", "lora_version": "1", "lora_scale": True}, TypeError, "lora_scale is a bool; float"),
        ({"lora_name": "a", "lora_version": "1", "lora_scale": "1"}, TypeError, "lora_scale is a str; float"),
        ({"lora_name": "a", "lora_version": "1", "lora_scale": float("nan")}, ValueError, "lora_scale is nan"),
        ({"x-a": float("inf")}, ValueError, "x-a is inf; a finite number"),
        ({"x-a": np.float32("nan")}, ValueError, "x-a is nan"),
        ({"x-a": 2**63}, ValueError, "x-a is 9223372036854775808; an integer of 64 bits"),
        ({"x-a": -(2**63) - 1}, ValueError, "an integer of 64 bits"),
        ({"x-a": "\ud800"}, ValueError, "x-a has a lone surrogate at character 0"),
        ({"x-a": np.array(3)}, TypeError, "x-a is a ndarray"),
        ({"x-a": [1]}, TypeError, "x-a is a list"),
        ({"x-a": 1j}, TypeError, "x-a is a complex"),
        ({"x-a": np.datetime64("2026-01-01")}, TypeError, "x-a is a date"),
        ({"block_size": 16}, ValueError, "block_size is reserved"),
        ({"adapter": "a"}, ValueError, "'adapter' is not a root field; model, dtype"),
        ({"x-": "a"}, ValueError, "'x-' is not a root field"),
        ({"x-A": "a"}, ValueError, "'x-A' is not a root field"),
        ({"x-a\n": "a"}, ValueError, "is not a root field"),
        ({"x-é": "a"}, ValueError, "is not a root field"),
        ({"X-a": None}, ValueError, "'X-a' is not a root field"),
    ],
)
def test_malformed_fields_are_clear_errors(fields, error, says):
    with pytest.raises(error, match=says):
        root(**fields)


def test_model_and_dtype_are_required():
    with pytest.raises(TypeError, match="dtype"):
        Root(model="m")
    with pytest.raises(TypeError, match="model"):
        Root(dtype="d")


@pytest.mark.parametrize(
    ("size", "error"), [(0, ValueError), (-1, ValueError), (1 << 32, ValueError), (True, TypeError)]
)
def test_block_size_is_checked(secret, size, error):
    with pytest.raises(error, match="block_size is"):
        root().key(secret, block_size=size)


def test_a_shared_store_demands_more(secret):
    """vllm PR#51875: nothing is shared silently."""
    full = {"weights_version": "1", "config": b"\0", "kv_layout": "e"}
    made = root(**full)
    assert made.require_shared(secret) is made
    assert root(revision="main", config=b"\0", kv_layout="e").require_shared(secret)
    for name, words in (
        ("weights_version", "weights_version or revision"),
        ("config", "config"),
        ("kv_layout", "kv_layout"),
    ):
        with pytest.raises(ValueError, match=f"root has no {words}"):
            made.replace(**{name: None}).require_shared(secret)
    with pytest.raises(ValueError, match="random one of this process"):
        made.require_shared(Secret.random())


def test_immutable_hashable_and_picklable():
    made = root(cache_salt="hush")
    for change in (
        lambda: setattr(made, "fields", {}),
        lambda: delattr(made, "fields"),
        lambda: setattr(made, "model", "x"),
    ):
        with pytest.raises(AttributeError, match="immutable"):
            change()
    with pytest.raises(TypeError):
        made.fields["model"] = "x"
    assert {made: 1}[root(cache_salt="hush")] == 1
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == copy.copy(made) == made
    assert made.replace(cache_salt=None) == root()
    assert made != "m"
    assert hash(made) != hash(root())


def test_the_salt_is_not_shown():
    made = root(cache_salt="hush")
    assert "hush" not in repr(made)
    assert repr(made) == "Root(model='m', dtype='bfloat16', cache_salt=…)"
    with pytest.raises(ValueError, match="lone surrogate") as caught:
        root(cache_salt="hu" + "sh " * 3 + "\udc00")
    assert caught.value.__context__ is None
