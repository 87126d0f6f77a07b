"""Small hand-written kernels: one lane an element, inputs in %a %b %c, results out of %d (and %e)."""

import numpy as np

from .memory import Array, Memory
from .module import Module
from .stats import Stats

_KERNEL = """
.version 8.8
.target sm_90
.address_size 64
{module}
.visible .entry snippet(.param .u64 in_a, .param .u64 in_b, .param .u64 in_c, .param .u64 out_d, .param .u64 out_e)
{{
  .reg .pred %p<8>;  .reg .b16 %h<8>;  .reg .b32 %r<16>;  .reg .b64 %l<16>;  .reg .b64 %address, %offset<4>;
  .reg .b32 %tid;
  .reg .b{a} %a;  .reg .b{b} %b;  .reg .b{c} %c;  .reg .b{d} %d, %e;
  mov.u32 %tid, %tid.x;
  mul.wide.u32 %offset0, %tid, {a8};
  ld.param.u64 %address, [in_a];
  add.s64 %address, %address, %offset0;
  ld.global.b{a} %a, [%address];
  mul.wide.u32 %offset1, %tid, {b8};
  ld.param.u64 %address, [in_b];
  add.s64 %address, %address, %offset1;
  ld.global.b{b} %b, [%address];
  mul.wide.u32 %offset2, %tid, {c8};
  ld.param.u64 %address, [in_c];
  add.s64 %address, %address, %offset2;
  ld.global.b{c} %c, [%address];
  mov.b{d} %d, 0;
  mov.b{d} %e, 0;
{body}
STORE:
  mul.wide.u32 %offset3, %tid, {d8};
  ld.param.u64 %address, [out_d];
  add.s64 %address, %address, %offset3;
  st.global.b{d} [%address], %d;
  ld.param.u64 %address, [out_e];
  add.s64 %address, %address, %offset3;
  st.global.b{d} [%address], %e;
  ret;
}}
"""


def width(array: Array) -> int:
    return array.dtype.itemsize * 8


def text(body: str, a: int = 32, b: int = 32, c: int = 32, d: int = 32, module: str = "") -> str:
    """PTX around `body`, with registers of these widths."""
    sizes = {"a": a, "b": b, "c": c, "d": d}
    return _KERNEL.format(body=body, module=module, **sizes, **{f"{k}8": v // 8 for k, v in sizes.items()})


def run(
    body: str, a: Array, b: Array | None = None, c: Array | None = None, *, out: int = 32, module: str = "",
    shared_bytes: int = 0,
) -> tuple[Array, Array, Stats]:  # fmt: skip
    """(%d, %e, counts) of one block with a lane an element; inputs left out are zeros."""
    zeros = np.zeros(len(a), np.uint32)
    inputs = [a, zeros if b is None else b, zeros if c is None else c]
    results = [np.zeros(len(a), f"u{out // 8}") for _ in range(2)]
    memory = Memory()
    addresses = [memory.map(x) for x in inputs] + [memory.map(x, access="w") for x in results]
    source = text(body, *(width(x) for x in inputs), out, module)
    stats = Module(source).launch("snippet", 1, len(a), addresses, shared_bytes, memory)
    return results[0], results[1], stats
