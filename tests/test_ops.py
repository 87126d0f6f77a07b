"""The torch ops: opcheck, the `.out` overloads, staging, and compiled code with a number of rows that changes."""

import pytest
import torch

import gpukey
from gpukey import backends, ops

OPS = torch.ops.gpukey
rows_of = {
    "contiguous": lambda: torch.randn(5, 24),
    "bfloat16 of odd width, strided": lambda: torch.randn(5, 40).bfloat16()[:, 3:16],
    "columns": lambda: torch.randn(24, 5).t(),
    "no rows": lambda: torch.randn(0, 24),
    "needs a gradient": lambda: torch.randn(5, 24, requires_grad=True),
}


def key_for(secret, rows, label="row"):
    return getattr(secret, f"{label}_key")(rows.dtype, rows.shape[1])


def empty_like(rows):
    return torch.empty(rows.shape, dtype=rows.dtype)


@pytest.mark.parametrize("name", rows_of)
def test_opcheck(secret, name):
    rows = rows_of[name]()
    n, key, out = len(rows), key_for(secret, rows), torch.empty(len(rows), 16, dtype=torch.uint8)
    prints, bounds = OPS.fingerprint_rows(rows, key, 16), torch.tensor([0, n // 2, n])
    torch.library.opcheck(OPS.fingerprint_rows.default, (rows, key, 16))
    torch.library.opcheck(OPS.fingerprint_rows.out, (rows, key, 16), {"out": out})
    torch.library.opcheck(OPS.fold_spans.default, (prints, bounds, key, 16))
    torch.library.opcheck(
        OPS.fold_spans.out, (prints, bounds, key, 16), {"out": out[:2] if n else out.new_empty(2, 16)}
    )
    torch.library.opcheck(OPS.stage_rows.default, (rows, empty_like(rows), key, 16))
    torch.library.opcheck(OPS.stage_rows.out, (rows, empty_like(rows), key, 16), {"digests": out})


@pytest.mark.parametrize("name", rows_of)
@pytest.mark.parametrize("digest_size", [16, 32])
def test_staging_copies_and_fingerprints_what_it_wrote(secret, name, digest_size):
    rows = rows_of[name]().detach()
    key, staged = secret.row_key(rows.dtype, rows.shape[1], digest_size=digest_size), empty_like(rows)
    want = gpukey.fingerprint_rows(rows, secret=secret, digest_size=digest_size)
    assert torch.equal(OPS.stage_rows(rows, staged, key, digest_size), want)
    assert torch.equal(staged.view(torch.uint8), rows.contiguous().view(torch.uint8))
    digests = torch.empty(len(rows), digest_size, dtype=torch.uint8)
    OPS.stage_rows.out(rows, empty_like(rows), key, digest_size, digests=digests)
    assert torch.equal(digests, want)


def test_staging_into_a_wider_buffer_leaves_the_rest(secret):
    rows, buffer = torch.randn(4, 8), torch.full((6, 12), 7.0)
    digests = OPS.stage_rows(rows, buffer[1:5, 2:10], key_for(secret, rows), 16)
    assert torch.equal(digests, gpukey.fingerprint_rows(rows, secret=secret))
    assert torch.equal(buffer[1:5, 2:10], rows)
    buffer[1:5, 2:10] = 7.0
    assert (buffer == 7.0).all()


@pytest.mark.parametrize("backend", [name for name in ("python", "cpu") if backends.missing(name) is None])
def test_staging_keeps_bits_that_are_no_value(secret, backend):
    """A bool of 2, a NaN with a payload: the copy is of bytes."""
    raw = torch.tensor([[0, 1, 2, 255]], dtype=torch.uint8)
    module, staged = backends.load(backend), torch.zeros(1, 4, dtype=torch.bool)
    module.stage_rows(raw.view(torch.bool), staged, key_for(secret, staged), 16)
    assert torch.equal(staged.view(torch.uint8), raw)


def test_inference_mode_and_default_devices_leave_nothing_behind():
    secret, rows = gpukey.Secret.random(), torch.randn(3, 8)
    with torch.inference_mode(), torch.device("meta"):
        inside = gpukey.fingerprint_rows(rows, secret=secret)
    assert not secret.row_key(torch.float32, 8).is_inference()
    assert torch.equal(inside, gpukey.fingerprint_rows(rows, secret=secret))


def test_fake_tensors_get_shapes_and_leave_nothing_behind():
    """pytorch PR#122514."""
    from torch._subclasses import FakeTensorMode

    secret = gpukey.Secret.random()
    with FakeTensorMode():
        fake = gpukey.fingerprint_rows(torch.randn(3, 8), secret=secret, digest_size=32)
        assert fake.shape == (3, 32)
        with pytest.raises(ValueError, match="shape"):
            gpukey.fingerprint_rows(torch.randn(3), secret=secret)
    assert type(secret.row_key(torch.float32, 8, digest_size=32)) is torch.Tensor


def test_the_registered_backend_is_the_one_that_is_named(secret, fresh_python):
    """One implementation a device; GPUKEY_BACKEND forces it, and one that cannot serve is an error."""
    code = """
import torch, gpukey
from gpukey import backends, ops
try:
    digests = gpukey.fingerprint_rows(torch.ones(1, 4), secret=gpukey.Secret(b"a secret for tests, long enough"))
    print(digests.numpy().tobytes().hex())
except RuntimeError as error:
    print(error)
"""
    want = gpukey.fingerprint_rows(torch.ones(1, 4), secret=secret).numpy().tobytes().hex()
    assert fresh_python(code, GPUKEY_BACKEND="python").strip() == want
    refusal = fresh_python(code, GPUKEY_BACKEND="cuda")
    assert refusal.startswith("GPUKEY_BACKEND=cuda: backend 'cuda'")


@pytest.mark.parametrize("name", ops._OPS)
def test_one_implementation_a_device(name):
    dump = torch._C._dispatch_dump(f"gpukey::{name}").splitlines()
    for device in ("CPU", "CUDA"):
        assert len([line for line in dump if line.startswith(f"{device}:")]) == 1


def test_an_unknown_forced_backend(monkeypatch):
    monkeypatch.setenv("GPUKEY_BACKEND", "fastest")
    with pytest.raises(ValueError, match="GPUKEY_BACKEND is 'fastest'; one of python, cpu"):
        backends.choose("cpu")


def test_a_device_without_a_backend():
    with pytest.raises(RuntimeError, match="rows is on xpu; gpukey has backends for cpu and cuda"):
        backends.choose("xpu")


def test_every_reason_is_in_the_error(monkeypatch):
    monkeypatch.delenv("GPUKEY_BACKEND", raising=False)
    monkeypatch.setattr(backends, "missing", lambda name: f"no {name} today")
    with pytest.raises(RuntimeError, match="cuda: no cuda today; nvrtc: no nvrtc today; triton: no triton today"):
        backends.choose("cuda")


def test_status_names_every_backend():
    status = backends.status()
    assert set(status) == set(backends.NAMES)
    assert status["python"] is None
    assert all(reason is None or "\n" not in reason for reason in status.values())


def test_the_library_is_kept():
    assert isinstance(ops.LIBRARY, torch.library.Library)


COMPILED = """
import torch, gpukey
from gpukey import ops
torch._dynamo.config.error_on_recompile = False
secret, other = gpukey.Secret(b"a secret for tests, long enough"), gpukey.Secret(b"another secret, long enough")
op = torch.ops.gpukey.fingerprint_rows
keys = {h: secret.row_key(torch.float32, h) for h in (16, 24)}

def same(compiled, eager, *cases):
    for case in cases:
        got, want = compiled(*case), eager(*case)
        assert all(torch.equal(a, b) for a, b in zip(got, want)), (compiled, case)

def with_key(x, key):
    return (op(x * 2, key, 16),)

def with_secret(x, key):
    y = x * 2
    bounds = torch.arange(2, device=x.device) * x.shape[0]
    return gpukey.fingerprint_rows(y, secret=secret), gpukey.fingerprint_spans(y, bounds, secret=secret), y

def by_argument(x, key, secret):
    return gpukey.fingerprint_rows(x + 1, secret=secret, digest_size=32), gpukey.fingerprint_rows(x.t(), secret=secret)

def by_default(x, key):
    return (gpukey.fingerprint_rows(x),)

def lazy(z, key):
    return gpukey.fingerprint_rows(z.conj().imag, secret=secret), gpukey.fingerprint_rows(z.conj(), secret=secret)

def into(x, out):
    return (gpukey.fingerprint_rows(x * 2, secret=secret, out=out) ^ 1,)

cases = [(torch.randn(n, h), keys[h]) for h in (16, 24) for n in (2, 5, 9)]
for function in (with_key, with_secret, by_default):
    same(torch.compile(function, fullgraph=True), function, *cases)
counted = []
def count(graph, inputs):
    counted.append(graph)
    return graph
same(torch.compile(with_secret, fullgraph=True, dynamic=None, backend=count), with_secret, *[(torch.randn(n, 16), keys[16]) for n in (2, 5, 9, 11)])
assert len(counted) <= 2, f"{len(counted)} graphs for four numbers of rows; one static and one dynamic are due"
same(torch.compile(by_argument, fullgraph=True, backend="aot_eager"), by_argument, *[(x, k, s) for x, k in cases[:3] for s in (secret, other)])
same(torch.compile(lazy, fullgraph=True, backend="aot_eager"), lazy, (torch.randn(3, 4, dtype=torch.complex64), None))
same(torch.compile(into, fullgraph=True), into, *[(torch.randn(n, 16), torch.zeros(n, 16, dtype=torch.uint8)) for n in (2, 5)])

class Module(torch.nn.Module):
    def forward(self, x):
        return x + 1, gpukey.fingerprint_rows(x, secret=secret)
exported = torch.export.export(Module(), (torch.randn(4, 16),), dynamic_shapes=({0: torch.export.Dim("rows")},))
x = torch.randn(9, 16)
assert torch.equal(exported.module()(x)[1], gpukey.fingerprint_rows(x, secret=secret))
print("compiled")
"""


def test_compiled_whole_with_dynamic_row_counts(fresh_python):
    """pytorch#78549: the op with a key and the public calls with a Secret, fullgraph, in a process that ran nothing before."""
    assert fresh_python(COMPILED).strip() == "compiled"
