"""gpukey.secret: where a secret comes from, what it derives, and where it must never show."""

import copy
import pickle
import traceback

import numpy as np
import pytest
import torch

from gpukey import reference as ref
from gpukey import secret as module
from gpukey.secret import Secret, check_digest_size, lp, resolve

VALUE = b"correct horse battery staple, 32"


def environment(**values):
    return dict(values)


def test_derives_what_the_reference_derives():
    secret = Secret(VALUE)
    assert secret.key_id == ref.key_id(VALUE).hex()
    assert secret.derive("block", b"\x10") == ref.derive_key("block", ref.master(VALUE) + b"\x10")
    assert secret.host_key("row", "bfloat16", 896, 16) == ref.row_key(VALUE, "bfloat16", 896)
    assert secret.host_key("span", "torch.float32", 7, 32) == ref.span_key(VALUE, "float32", 7, 32)


def test_row_and_span_keys_are_tensors_of_the_same_bytes():
    import torch

    secret = Secret(VALUE)
    row = secret.row_key(torch.bfloat16, 896)
    assert row.dtype == torch.uint8
    assert row.shape == (32,)
    assert bytes(row.tolist()) == ref.row_key(VALUE, "bfloat16", 896)
    span = secret.span_key("float32", 7, digest_size=32, device="cpu")
    assert bytes(span.tolist()) == ref.span_key(VALUE, "float32", 7, 32)


@pytest.mark.parametrize(
    ("dtype", "hidden", "digest_size"), [("bfloat16", 897, 16), ("float16", 896, 16), ("bfloat16", 896, 32)]
)
def test_every_part_of_the_domain_is_in_the_key(dtype, hidden, digest_size):
    """dynamo PR#8341: geometry and dtype are bound."""
    secret = Secret(VALUE)
    assert secret.host_key("row", dtype, hidden, digest_size) != secret.host_key("row", "bfloat16", 896, 16)
    assert secret.host_key("row", dtype, hidden, digest_size) != secret.host_key("span", dtype, hidden, digest_size)


def test_takes_any_bytes_and_keeps_none_of_them():
    buffer = bytearray(VALUE)
    secret = Secret(buffer)
    buffer[:] = bytes(len(buffer))
    assert secret == Secret(VALUE) == Secret(memoryview(VALUE))
    assert hash(secret) == hash(Secret(VALUE))
    assert secret != Secret(VALUE[::-1])
    assert secret != VALUE


@pytest.mark.parametrize("value", ["a password of 16 characters", 5, None, [1] * 32])
def test_other_types_are_refused(value):
    with pytest.raises(TypeError, match="value is a"):
        Secret(value)


def test_short_secrets_are_refused():
    Secret(bytes(16))
    with pytest.raises(ValueError, match="value has 15 bytes; at least 16"):
        Secret(bytes(15))


# --- from the environment ---------------------------------------------------------------------------------------------


def test_from_a_variable_is_the_utf8_of_its_value():
    text = "größer als sechzehn Bytes"
    assert Secret.from_env(environment(GPUKEY_SECRET=text)) == Secret(text.encode())
    assert Secret.from_env(environment(GPUKEY_SECRET=text + "\n")) == Secret(text.encode() + b"\n")


def test_from_a_variable_that_is_no_text(fresh_python):
    """Nothing is decoded: the bytes that the shell set are the secret."""
    raw = b"\xff\xfe" + VALUE
    code = "from gpukey.secret import Secret; print(Secret.from_env().key_id)"
    assert fresh_python(code, GPUKEY_SECRET=raw.decode("utf-8", "surrogateescape")).strip() == ref.key_id(raw).hex()


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (VALUE, VALUE),
        (VALUE + b"\n", VALUE),
        (VALUE + b"\r\n", VALUE),
        (VALUE + b"\n\n", VALUE + b"\n"),
        (VALUE + b"\r", VALUE + b"\r"),
        (b"\n" + VALUE, b"\n" + VALUE),
        (b"\xff" * 16, b"\xff" * 16),
    ],
)
def test_from_a_file_less_one_newline(tmp_path, content, kept):
    path = tmp_path / "secret"
    path.write_bytes(content)
    assert Secret.from_env(environment(GPUKEY_SECRET_FILE=str(path))) == Secret(kept)


def test_both_or_neither_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="both set"):
        Secret.from_env(environment(GPUKEY_SECRET="x" * 16, GPUKEY_SECRET_FILE="y"))
    for empty in (environment(), environment(GPUKEY_SECRET_FILE="")):
        with pytest.raises(ValueError, match="neither GPUKEY_SECRET nor GPUKEY_SECRET_FILE"):
            Secret.from_env(empty)
    with pytest.raises(ValueError, match="GPUKEY_SECRET_FILE is empty"):
        Secret.from_env(environment(GPUKEY_SECRET_FILE=""))
    with pytest.raises(ValueError, match="GPUKEY_SECRET has 0 bytes"):
        Secret.from_env(environment(GPUKEY_SECRET=""))


def test_an_error_says_where_the_secret_came_from(tmp_path):
    (tmp_path / "short").write_bytes(b"hush\n")
    for source in ({"GPUKEY_SECRET": "hush"}, {"GPUKEY_SECRET_FILE": str(tmp_path / "short")}):
        with pytest.raises(ValueError, match=f"{next(iter(source))}.* has 4 bytes; at least 16") as caught:
            Secret.from_env(source)
        assert "hush" not in str(caught.value)
    for name, error in (("none", FileNotFoundError), (".", IsADirectoryError)):
        with pytest.raises(error, match="GPUKEY_SECRET_FILE cannot be read") as unread:
            Secret.from_env(environment(GPUKEY_SECRET_FILE=str(tmp_path / name)))
        assert unread.value.filename == str(tmp_path / name)


@pytest.mark.parametrize("kind", ["row_key", "span_key"])
def test_a_key_is_of_a_dtype_that_torch_has(kind):
    """An unknown name would be the key of another domain: no error, and fingerprints that match nobody's."""
    make = getattr(Secret(VALUE), kind)
    for same in ("bfloat16", "torch.bfloat16"):
        assert torch.equal(make(same, 8), make(torch.bfloat16, 8))
    assert torch.equal(make("half", 8), make("float16", 8))
    for wrong in ("bf16", "", "Tensor", None, 16, np.float32, torch.zeros(2, 8)):
        with pytest.raises(TypeError, match=r"dtype is .*; a torch\.dtype or its name"):
            make(wrong, 8)


def test_a_key_is_on_a_device_that_torch_has(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for wrong, error in (("warp", ValueError), ("cuda", RuntimeError), ("cuda:3", RuntimeError), (1.5, TypeError)):
        with pytest.raises(error, match="device is"):
            Secret(VALUE).row_key("float32", 8, device=wrong)


# --- the default ------------------------------------------------------------------------------------------------------

SHOW_KEYS = """
from gpukey.keys import Root, block_keys
from gpukey.secret import default_secret
print(block_keys(range(32), block_size=16, root=Root(model="m", dtype="d"))[1].hex(), default_secret().is_random)
"""


def test_a_configured_secret_gives_the_same_keys_in_every_process(fresh_python):
    """vllm PR#51875: PYTHONHASHSEED differs, the keys do not."""
    outputs = {fresh_python(SHOW_KEYS, GPUKEY_SECRET="x" * 16, PYTHONHASHSEED=seed) for seed in ("1", "2")}
    assert len(outputs) == 1
    assert "False" in outputs.pop()


def test_a_random_secret_is_never_shared(fresh_python):
    """vllm PR#51875: without a configured secret two processes have nothing in common, and sharing is refused."""
    unset = "import os\nfor n in ('GPUKEY_SECRET', 'GPUKEY_SECRET_FILE'): os.environ.pop(n, None)\n"
    outputs = [fresh_python(unset + SHOW_KEYS).split() for _ in range(2)]
    assert outputs[0][0] != outputs[1][0]
    assert [random for _, random in outputs] == ["True", "True"]
    with pytest.raises(ValueError, match="random one of this process"):
        Secret.random().require_configured()
    assert Secret(VALUE).require_configured() == Secret(VALUE)


def test_the_default_is_made_once(monkeypatch):
    monkeypatch.setattr(module, "_default", None)
    monkeypatch.delenv("GPUKEY_SECRET", raising=False)
    monkeypatch.delenv("GPUKEY_SECRET_FILE", raising=False)
    assert resolve(None) is resolve(None)
    assert resolve(None).is_random
    with pytest.raises(TypeError, match="secret is a bytes"):
        resolve(VALUE)


# --- hygiene ----------------------------------------------------------------------------------------------------------


def test_never_in_a_repr_or_a_pickle():
    secret = Secret(VALUE)
    secret.row_key("bfloat16", 896)
    for shown in (repr(secret), str(secret), f"{secret}", f"{secret!r:>80}"):
        assert secret.key_id in shown
        assert secret._master.hex() not in shown
        assert repr(secret._master) not in shown
    for copier in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled or copied"):
            copier(secret)
    assert not hasattr(secret, "__dict__")


def test_never_in_an_exception():
    """The traceback of a bad variable, chained exceptions included, has no part of its value."""
    bad = "hu" + "sh " * 9 + "\ud800"
    with pytest.raises(ValueError, match="UTF-8 cannot encode") as caught:
        Secret.from_env(environment(GPUKEY_SECRET=bad))
    assert "sh sh" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


# --- small parts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [True, 16.0, "16", None])
def test_digest_size_is_an_integer(value):
    with pytest.raises(TypeError, match="digest_size is a"):
        check_digest_size(value)


@pytest.mark.parametrize("value", [0, 8, 15, 17, 31, 33, 64, -16])
def test_digest_size_is_16_or_32(value):
    with pytest.raises(ValueError, match=f"digest_size is {value}; 16 or 32"):
        check_digest_size(value)


@pytest.mark.parametrize(("hidden", "error"), [(0, ValueError), (-1, ValueError), (True, TypeError), (1.0, TypeError)])
def test_hidden_is_a_positive_integer(hidden, error):
    with pytest.raises(error, match="hidden is"):
        Secret(VALUE).host_key("row", "bfloat16", hidden, 16)


def test_a_length_that_32_bits_cannot_hold_is_an_error():
    class Huge(bytes):
        def __len__(self):
            return 1 << 32

    with pytest.raises(ValueError, match="4294967296 bytes are too long"):
        lp(Huge())


def test_a_big_endian_host_is_refused(fresh_python):
    code = "import sys; sys.byteorder = 'big'\ntry: import gpukey.secret\nexcept ImportError as e: print(e)"
    assert "big-endian" in fresh_python(code)


NO_TORCH = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Absent())
import gpukey
secret = gpukey.Secret(bytes(16))
root = gpukey.Root(model="m", dtype="d")
span = gpukey.EmbeddingSpan(3, [bytes(16)] * 4)
item = gpukey.MultimodalItem(0, 2, "image", gpukey.item_id(bytes(16), "image", secret=secret))
keys = gpukey.block_keys(range(10), block_size=4, root=root, secret=secret, embeds=[span], items=[item])
cache = gpukey.PrefixCache(4, 4)
assert cache.match(keys, 10).num_cached_tokens == 0
from gpukey import reference
print(len(keys), "torch" in sys.modules)
"""


def test_routers_need_no_torch(fresh_python):
    """gpukey.secret, keys, cache and reference work with torch absent."""
    assert fresh_python(NO_TORCH).split() == ["2", "False"]


@pytest.mark.parametrize(
    "environ",
    [
        {"GPUKEY_SECRET": "tell-nobody"},
        {"GPUKEY_SECRET": "tell-nobody, of all people\ud800"},
        {"GPUKEY_SECRET": "tell-nobody, of all people", "GPUKEY_SECRET_FILE": "/x"},
    ],
)
def test_no_local_variable_of_a_traceback_holds_a_secret(environ):
    """As rich, pytest -l and crash reporters show them."""

    calls = [lambda: Secret.from_env(environ), lambda: Secret(b"tell-nobody"), lambda: Secret("tell-nobody")]
    for call in calls:
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        frames = traceback.TracebackException.from_exception(caught.value, capture_locals=True).stack
        inner = [frame for frame in frames if frame.filename.endswith("secret.py") and "tests" not in frame.filename]
        assert inner
        assert "nobody" not in str([frame.locals for frame in inner])


def test_no_state_of_a_secret_is_handed_out():
    with pytest.raises(TypeError, match="not pickled"):
        Secret.random().__getstate__()
    assert repr(Secret.__new__(Secret)) == "Secret(key_id='')"
