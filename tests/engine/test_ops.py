"""The engine's torch ops: schemas and fakes, paged attention against plain SDPA, and a compiled forward."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from gpukey.engine import attention, ops  # noqa: F401

HEADS, KV_HEADS, DIM, BLOCK = 4, 2, 8, 4


def batch(queries, contexts, seed=0):
    """Random query, key, value, pools and index tensors for sequences of these new and total lengths."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    total, needed = sum(queries), [-(-context // BLOCK) for context in contexts]
    blocks = torch.randperm(sum(needed) + 3, generator=generator)
    tables = torch.zeros(len(queries), max(needed), dtype=torch.int64)
    slots, used = [], 0
    for i, (count, context) in enumerate(zip(queries, contexts, strict=True)):
        tables[i, : needed[i]] = blocks[used : used + needed[i]]
        used += needed[i]
        positions = torch.arange(context - count, context)
        slots.append(tables[i, positions // BLOCK] * BLOCK + positions % BLOCK)
    start = torch.tensor([0, *queries]).cumsum(0)
    pools = [normal(len(blocks), BLOCK, KV_HEADS, DIM) for _ in range(2)]
    return [
        normal(total, HEADS, DIM), normal(total, KV_HEADS, DIM), normal(total, KV_HEADS, DIM), *pools,
        torch.cat(slots), tables, start, torch.tensor(contexts), sum(q == 1 for q in queries), max(queries), max(contexts), 0.3,
    ]  # fmt: skip


def plain(args):
    """Each sequence by itself: gather, mask, SDPA."""
    query, key, value, key_pool, value_pool, slots, tables, start, contexts, *_, scale = args
    pools = [key_pool.clone().flatten(0, 1), value_pool.clone().flatten(0, 1)]
    pools[0][slots], pools[1][slots] = key, value
    out = []
    for i, context in enumerate(contexts.tolist()):
        q = query[start[i] : start[i + 1]].transpose(0, 1)
        where = torch.arange(context)
        where = tables[i, where // BLOCK] * BLOCK + where % BLOCK
        k, v = (pool[where].transpose(0, 1).repeat_interleave(HEADS // KV_HEADS, 0) for pool in pools)
        mask = torch.ones(q.shape[1], context).tril(context - q.shape[1]).bool()
        out.append(scaled_dot_product_attention(q, k, v, mask, scale=scale).transpose(0, 1))
    return torch.cat(out)


CASES = {
    "one decode": ([1], [1]),
    "decodes": ([1, 1, 1], [9, 1, 4]),
    "one prefill": ([7], [7]),
    "chunks": ([3, 2], [8, 5]),
    "mixed": ([1, 1, 5, 2, 4], [3, 16, 5, 7, 12]),
}


@pytest.mark.parametrize("name", CASES)
def test_paged_attention_is_attention(name):
    args = batch(*CASES[name])
    want = plain(args)
    torch.testing.assert_close(torch.ops.gpukey.paged_attention(*args), want)


@pytest.mark.parametrize("name", CASES)
def test_padded_attention_of_gpus_is_the_same(name):
    args = batch(*CASES[name])
    want = plain(args)
    attention.write_pools(args[1], args[2], *args[3:6])
    query, pools, rest = args[0], args[3:5], args[6:]
    torch.testing.assert_close(attention.padded_attention(query, *pools, *rest), want)


def varlen(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale, window_size, enable_gqa, seqused_k, block_table,
           num_splits):  # fmt: skip
    """torch.nn.attention.varlen.varlen_attn as its documentation has it, for a device that is not here."""
    assert cu_seq_k is None
    assert window_size == (-1, 0)
    assert enable_gqa
    assert {t.dtype for t in (cu_seq_q, seqused_k, block_table)} == {torch.int32}
    counts = cu_seq_q.diff()
    assert (int(counts.max()), int(seqused_k.max())) == (max_q, max_k)
    out = []
    for i, used in enumerate(seqused_k.tolist()):
        q = query[cu_seq_q[i] : cu_seq_q[i + 1]].transpose(0, 1)
        k, v = (pool[block_table[i].long()].flatten(0, 1)[:used].transpose(0, 1) for pool in (key, value))
        k, v = (x.repeat_interleave(q.shape[0] // k.shape[0], 0) for x in (k, v))
        mask = torch.ones(q.shape[1], used).tril(used - q.shape[1]).bool()
        out.append(scaled_dot_product_attention(q, k, v, mask, scale=scale).transpose(0, 1))
    return torch.cat(out)


@pytest.mark.parametrize("name", CASES)
def test_the_varlen_kernel_is_asked_for_the_same(name, monkeypatch):
    args = batch(*CASES[name])
    args[:5] = [tensor.bfloat16() for tensor in args[:5]]
    want = plain(args)
    monkeypatch.setattr(attention, "varlen_attn", lambda: varlen)
    monkeypatch.setattr(attention, "VARLEN_PAGE", BLOCK)
    torch.testing.assert_close(attention.paged_attention_cuda(*args), want)


def test_this_torch_has_block_tables():
    assert attention.varlen_attn() is not None


@pytest.mark.parametrize("name", CASES)
def test_it_reads_nothing_else(name):
    """NaN in every slot that no sequence owns changes nothing."""
    args = batch(*CASES[name])
    want = plain(args)
    owned = torch.zeros(args[3].shape[0] * BLOCK, dtype=torch.bool)
    for table, context in zip(args[6], args[8].tolist(), strict=True):
        where = torch.arange(context)
        owned[table[where // BLOCK] * BLOCK + where % BLOCK] = True
    for pool in args[3:5]:
        pool.flatten(0, 1)[~owned] = torch.nan
    torch.testing.assert_close(torch.ops.gpukey.paged_attention(*args), want)


def test_opcheck():
    for case in CASES.values():
        torch.library.opcheck(torch.ops.gpukey.paged_attention.default, tuple(batch(*case)))
    embeds, rows = torch.zeros(6, 3), torch.ones(2, 3)
    torch.library.opcheck(torch.ops.gpukey.replace_rows.default, (embeds, rows, torch.tensor([4, 1])))


COMPILED = """
import torch
from gpukey.engine.batch import build_batch
from gpukey.engine.model import TransformersRunner
from gpukey.engine.request import Request, StagedSpan
from gpukey.engine.sampling_params import SamplingParams
from gpukey.engine.tiny import tiny_model

runner = TransformersRunner(tiny_model(dtype=torch.float64))
runner.allocate(16, 4)
forward = torch.compile(runner.compute, fullgraph=True, dynamic=True, backend="{backend}")
torch.manual_seed(0)
for length in (9, 13):
    request = Request("r", 0, list(range(length)), [StagedSpan(2, torch.randn(3, 64, dtype=torch.float64), b"")], SamplingParams(), 0)
    request.block_ids = [3, 1, 7, 2]
    batch = build_batch([(request, length)], 4, torch.device("cpu"))
    pools = runner.pool.keys[1], runner.pool.values[1]
    with torch.inference_mode():
        want, written = runner.compute(batch), [pool.clone() for pool in pools]
        for pool in pools:
            pool[request.block_ids] = 0
        got = forward(batch)
    torch.testing.assert_close(got, want)
    for pool, before in zip(pools, written, strict=True):
        torch.testing.assert_close(pool.flatten(0, 1)[batch.slots], before.flatten(0, 1)[batch.slots])
from torch._dynamo.utils import counters
print(dict(counters["graph_break"]), counters["stats"]["unique_graphs"])
"""


def test_the_forward_compiles_in_one_graph(fresh_python):
    """Embeddings, replaced rows, the Qwen2 forward over mutated pools: fullgraph, lengths dynamic."""
    breaks, graphs = fresh_python(COMPILED.format(backend="aot_eager")).strip().rsplit(" ", 1)
    assert breaks == "{}"
    assert int(graphs) <= 2
