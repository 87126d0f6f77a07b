"""Graph capture and replay with new content, and compiled models on a GPU."""

import pytest
import torch
from gpu_cases import DEVICE, SECRET, assert_same, expected, make_rows

import gpukey

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("into", ["allocated", "out"])
def test_replays_see_new_content(into):
    """pytorch#78549."""
    static, cu_seqlens = make_rows("bfloat16", 64, 896), torch.tensor([0, 10, 64], device="cuda")
    out = torch.zeros(64, 16, dtype=torch.uint8, device="cuda") if into == "out" else None
    gpukey.fingerprint_rows(static, secret=SECRET)
    gpukey.fingerprint_spans(static, cu_seqlens, secret=SECRET)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows = gpukey.fingerprint_rows(static, secret=SECRET, out=out)
        spans = gpukey.fingerprint_spans(static, cu_seqlens, secret=SECRET)
    for seed in (1, 2, 3):
        content = make_rows("bfloat16", 64, 896, seed=seed)
        static.copy_(content)
        graph.replay()
        torch.cuda.synchronize()
        assert_same(rows, expected(content))
        assert_same(spans, gpukey.fingerprint_spans(content.cpu(), cu_seqlens.cpu(), secret=SECRET))


def test_what_a_capture_refuses():
    rows, other = make_rows("float32", 4, 16), gpukey.Secret.random()
    before = gpukey.fingerprint_rows_async(rows, secret=SECRET)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        digests = gpukey.fingerprint_rows(rows, secret=SECRET)
        with pytest.raises(RuntimeError, match="capture"):
            before.result()
        with pytest.raises(RuntimeError, match="capture"):
            before.ready()
        with pytest.raises(RuntimeError, match="capture"):
            gpukey.fingerprint_rows_async(rows, secret=SECRET)
        with pytest.raises(RuntimeError, match="capture"):
            gpukey.fingerprint_rows(rows, secret=other)
    graph.replay()
    torch.cuda.synchronize()
    assert_same(digests, expected(rows))
    assert_same(torch.from_numpy(before.result()), expected(rows))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_model(mode):
    linear = torch.nn.Linear(64, 64, device=DEVICE)

    def step(x):
        y = linear(x)
        bounds = torch.arange(2, device=x.device) * x.shape[0]
        return y, gpukey.fingerprint_rows(y, secret=SECRET), gpukey.fingerprint_spans(y, bounds, secret=SECRET)

    compiled = torch.compile(step, fullgraph=True, mode=mode)
    with torch.no_grad():
        for num_rows in (3, 5, 9, 5, 5, 5):
            y, rows, spans = compiled(torch.randn(num_rows, 64, device=DEVICE))
            assert_same(rows, expected(y))
            bounds = torch.tensor([0, num_rows])
            assert_same(spans, gpukey.fingerprint_spans(y.cpu(), bounds, secret=SECRET))


def test_opcheck():
    ops, rows = torch.ops.gpukey, make_rows("bfloat16", 9, 33, gap=3)
    rows = rows.nan_to_num()
    key, out = SECRET.row_key(torch.bfloat16, 33, device=DEVICE), torch.empty(9, 16, dtype=torch.uint8, device=DEVICE)
    bounds = torch.tensor([0, 4, 9], device=DEVICE)
    prints = ops.fingerprint_rows(rows, key, 16)
    torch.library.opcheck(ops.fingerprint_rows.default, (rows, key, 16))
    torch.library.opcheck(ops.fingerprint_rows.out, (rows, key, 16), {"out": out})
    torch.library.opcheck(ops.fold_spans.default, (prints, bounds, key, 16))
    torch.library.opcheck(ops.fold_spans.out, (prints, bounds, key, 16), {"out": out[:2]})
    torch.library.opcheck(ops.stage_rows.default, (rows, torch.empty_like(rows), key, 16))
    torch.library.opcheck(ops.stage_rows.out, (rows, torch.empty_like(rows), key, 16), {"digests": out})
