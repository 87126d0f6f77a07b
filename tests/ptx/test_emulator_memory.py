"""Loads and stores of the emulator: widths, vectors, extension, and every fault that it must name."""

from __future__ import annotations

import numpy as np
import pytest
from ptx import Memory, Module, PTXError

HEAD = ".version 8.8\n.target sm_90\n.address_size 64\n"


def module(body: str, params: str = ".param .u64 src, .param .u64 dst, .param .u32 n", variables: str = "") -> Module:
    registers = ".reg .pred %p<4>; .reg .b16 %h<8>; .reg .b32 %r<16>; .reg .b64 %l<16>;"
    return Module(f"{HEAD}{variables}\n.visible .entry k({params})\n{{ {registers}\n{body}\nret;\n}}")


COPY = """
  mov.u32 %r1, %tid.x;
  ld.param.u32 %r2, [n];
  mul.lo.u32 %r3, %r1, %r2;
  cvt.u64.u32 %l1, %r3;
  ld.param.u64 %l2, [src];
  ld.param.u64 %l3, [dst];
  add.s64 %l4, %l2, %l1;
  add.s64 %l5, %l3, %l1;
"""
DATA = np.random.default_rng(1).integers(0, 256, 1024, np.uint8)


def copy(body: str, step: int, threads: int = 8, source: np.ndarray = DATA, size: int = 512, **where) -> np.ndarray:
    out = np.full(size, 0xEE, np.uint8)
    memory = Memory()
    addresses = [memory.map(source, **where), memory.map(out, access="rw")]
    module(COPY + body).launch("k", 1, threads, [*addresses, step], buffers=memory)
    return out


@pytest.mark.parametrize(
    ("type", "register", "size"), [("u8", "h", 1), ("u16", "h", 2), ("b32", "r", 4), ("b64", "l", 8)]
)
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("qualifiers", ["", ".nc", ".L1::no_allocate", ".volatile"])
def test_widths_and_vectors(type, register, size, count, qualifiers):
    names = ", ".join(f"%{register}{i + 8 if register != 'h' else i}" for i in range(count))
    names, vector = (f"{{{names}}}", f".v{count}") if count > 1 else (names, "")
    load = (
        f"ld.volatile.global{vector}.{type}" if qualifiers == ".volatile" else f"ld.global{qualifiers}{vector}.{type}"
    )
    step = size * count
    out = copy(f"{load} {names}, [%l4+{step}]; st.global{vector}.{type} [%l5], {names};", step)
    assert (out[: 8 * step] == DATA[step : 9 * step]).all()
    assert (out[8 * step :] == 0xEE).all()


def test_extension_and_narrow_stores():
    body = "ld.global.s8 %r4, [%l4]; st.global.u32 [%l5], %r4;"
    assert (copy(body, 4)[:32].view(np.int32) == DATA[:32:4].view(np.int8)).all()
    body = "ld.global.u16 %r4, [%l4]; st.global.u32 [%l5], %r4;"
    assert (copy(body, 4)[:32].view(np.uint32) == DATA[:32].view(np.uint16)[::2]).all()
    body = "ld.global.u32 %r4, [%l4]; st.global.u8 [%l5], %r4;"
    assert (copy(body, 4)[:32:4] == DATA[:32:4]).all()


def test_a_predicate_keeps_lanes_from_memory():
    body = "setp.lt.u32 %p1, %r1, 3; mov.u32 %r4, 7; @%p1 ld.global.u32 %r4, [%l4]; st.global.u32 [%l5], %r4;"
    out = copy(body, 4, source=DATA[:12].copy())[:32].view(np.uint32)
    assert out.tolist() == [*DATA[:12].view(np.uint32).tolist(), 7, 7, 7, 7, 7]
    body = "setp.lt.u32 %p1, %r1, 3; mov.u32 %r4, 7; @!%p1 st.global.u32 [%l5], %r4;"
    assert copy(body, 4)[:32].view(np.uint32).tolist() == [0xEEEEEEEE] * 3 + [7] * 5


@pytest.mark.parametrize(
    ("body", "step", "where", "message"),
    [
        ("ld.global.u32 %r4, [%l4+996];", 4, {}, r"load of 4 bytes: outside every buffer, .* thread \(7, 0, 0\)"),
        ("ld.global.u8 %h1, [%l4+-1];", 1, {}, r"outside every buffer.* thread \(0, 0, 0\)"),
        ("ld.global.v4.u32 {%r4,%r5,%r6,%r7}, [%l4];", 16, {"offset": 8}, "no multiple of 16"),
        ("ld.global.u32 %r4, [%l4];", 2, {}, r"no multiple of 4, .* thread \(1, 0, 0\)"),
        ("ld.global.u16 %h1, [%l4+1];", 2, {}, "no multiple of 2"),
        ("st.global.u32 [%l4], %r1;", 4, {}, "store of 4 bytes: a store to a read-only buffer"),
        ("st.global.u32 [%l5+508], %r1;", 4, {}, "store of 4 bytes: outside every buffer"),
        ("st.global.u32 [%l3], %r1;", 4, {}, "lanes store different values to one address"),
        ("ld.global.u32 %r4, [%l4];", 4, {"access": "w"}, "a load of bytes that nothing has written"),
        ("cvt.u32.u64 %r5, %l4; cvt.u64.u32 %l6, %r5; ld.global.u32 %r4, [%l6];", 4, {}, "outside every buffer"),
        ("ld.u32 %r4, [%l4+1024];", 4, {}, "outside every buffer"),
        ("trap;", 4, {}, "trap"),
    ],
)  # fmt: skip
def test_faults(body, step, where, message):
    with pytest.raises(PTXError, match=message):
        copy(body, step, **where)


def test_an_access_across_two_buffers_is_a_fault():
    memory, body = Memory(), COPY + "ld.global.u32 %r4, [%l4];"
    first = memory.map(np.zeros(6, np.uint8), at=0x10_0000_0000)
    memory.map(np.zeros(6, np.uint8), at=0x10_0000_0006)
    with pytest.raises(PTXError, match="outside every buffer"):
        module(body).launch("k", 1, 2, [first, 0, 4], buffers=memory)


def test_far_buffers_are_told_apart():
    memory, out = Memory(), np.zeros(4, np.uint32)
    rows = [np.full(4, i, np.uint8) for i in range(4)]
    for i, row in enumerate(rows):
        memory.map(row, at=0x20_0000_0000 + i * 2**33)
    body = """mov.u32 %r1, %tid.x; mul.wide.u32 %l1, %r1, 4; ld.param.u64 %l2, [src]; ld.param.u64 %l3, [dst]; cvt.u64.u32 %l4, %r1;
              shl.b64 %l4, %l4, 33; add.s64 %l4, %l2, %l4; ld.global.u32 %r2, [%l4]; add.s64 %l5, %l3, %l1; st.global.u32 [%l5], %r2;"""
    module(body).launch("k", 1, 4, [0x20_0000_0000, memory.map(out, access="w"), 0], buffers=memory)
    assert out.tolist() == [i * 0x01010101 for i in range(4)]


def test_what_was_written_is_tracked():
    memory, out = Memory(), np.zeros(16, np.uint8)
    address = memory.map(out, access="w")
    assert memory.undefined(address) == 16
    body = COPY + "mov.u32 %r4, 5; st.global.u8 [%l5], %r4;"
    module(body).launch("k", 1, 3, [0, address, 4], buffers=memory)
    assert memory.undefined(address) == 13


SHARED = """
  .shared .align 16 .b8 buffer[128];
  mov.u32 %r1, %tid.x;  mov.u32 %r2, buffer;  shl.b32 %r3, %r1, 2;  add.u32 %r4, %r2, %r3;
  st.shared.u32 [%r4], %r1;
  bar.sync 0;
  xor.b32 %r5, %r3, 124;  add.u32 %r6, %r2, %r5;  ld.shared.u32 %r7, [%r6];
  ld.param.u64 %l3, [dst];  mov.u32 %r8, %ctaid.x; mad.lo.u32 %r8, %r8, 32, %r1; mul.wide.u32 %l1, %r8, 4;
  add.s64 %l5, %l3, %l1;  st.global.u32 [%l5], %r7;
"""


def run_shared(body: str, blocks: int = 3, shared_bytes: int = 0, variables: str = "") -> np.ndarray:
    memory, out = Memory(), np.zeros(32 * blocks, np.uint32)
    args = [0, memory.map(out, access="w"), 0]
    module(body, variables=variables).launch("k", blocks, 32, args, shared_bytes, memory)
    return out


def test_shared_memory_is_each_blocks_own():
    assert run_shared(SHARED).tolist() == [31 - i for i in range(32)] * 3


def test_dynamic_shared_memory():
    body = SHARED.replace(".shared .align 16 .b8 buffer[128];", "")
    dynamic = ".extern .shared .align 16 .b8 buffer[];"
    assert run_shared(body, 2, 128, dynamic).tolist() == [31 - i for i in range(32)] * 2
    with pytest.raises(PTXError, match="outside the 64 bytes of shared memory"):
        run_shared(body, 2, 64, dynamic)


def test_shared_memory_through_generic_addresses():
    body = SHARED.replace(
        "ld.shared.u32 %r7, [%r6];", "cvt.u64.u32 %l8, %r6; cvta.shared.u64 %l9, %l8; ld.u32 %r7, [%l9];"
    )
    assert run_shared(body).tolist() == [31 - i for i in range(32)] * 3


def test_faults_in_shared_memory():
    for fault, message in (
        (
            SHARED.replace("[%r6]", "[%r6+4]"),
            r"load of 4 bytes: outside the 128 bytes of shared memory.*block \(0, 0, 0\)",
        ),
        (SHARED.replace("[%r4]", "[%r4+2]"), "no multiple of 4"),
        (SHARED.replace("st.shared.u32 [%r4]", "st.shared.u32 [%r2]"), "lanes store different values"),
        (SHARED.replace("[%r6]", "[%r6+-256]"), "outside the 128 bytes of shared memory"),
    ):
        with pytest.raises(PTXError, match=message):
            run_shared(fault)


def test_local_memory_is_each_lanes_own():
    body = """.local .align 8 .b8 __local_depot0[16]; .reg .b64 %SP, %SPL;
      mov.u64 %SPL, __local_depot0; cvta.local.u64 %SP, %SPL; mov.u32 %r1, %tid.x; st.local.u32 [%SPL+8], %r1;
      ld.u32 %r2, [%SP+8]; ld.param.u64 %l3, [dst]; mul.wide.u32 %l1, %r1, 4; add.s64 %l5, %l3, %l1; st.global.u32 [%l5], %r2;"""
    assert run_shared(body, 1).tolist() == list(range(32))
    with pytest.raises(PTXError, match="outside the 16 bytes of local memory"):
        run_shared(body.replace("[%SPL+8]", "[%SPL+16]"), 1)


def test_constants_and_struct_parameters():
    variables = ".const .align 4 .b8 table[8] = {1, 2, 3, 4, 255, 0, 0, 128};\n.global .align 4 .u32 word = 77;"
    body = """ld.param.u32 %r1, [s+4]; ld.param.u64 %l3, [s+8]; ld.const.u32 %r2, [table+4]; mov.u64 %l6, word; ld.global.u32 %r4, [%l6];
      add.u32 %r2, %r2, %r1; add.u32 %r2, %r2, %r4; mov.u32 %r3, %tid.x; mul.wide.u32 %l1, %r3, 4; add.s64 %l5, %l3, %l1;
      st.global.u32 [%l5], %r2;"""
    memory, out = Memory(), np.zeros(2, np.uint32)
    address = memory.map(out, access="w")
    struct = (0).to_bytes(4, "little") + (5).to_bytes(4, "little") + address.to_bytes(8, "little")
    module(body, ".param .align 8 .b8 s[16]", variables).launch("k", 1, 2, [struct], buffers=memory)
    assert out.tolist() == [0x800000FF + 5 + 77] * 2


def test_inline_assembly_has_its_own_names():
    body = (
        COPY
        + """mov.u32 %r4, 1; { .reg .b32 t; .reg .pred %p1; mov.u32 t, 5; add.u32 %r4, %r4, t; }
      { .reg .b32 t; mov.u32 t, 6; add.u32 %r4, %r4, t; } st.global.u32 [%l5], %r4;"""
    )
    assert copy(body, 4, 1)[:4].view(np.uint32)[0] == 12


def test_wrong_launches_are_refused():
    k = module(COPY)
    for grid, block, args, message in (
        (1, 1, [1, 2], "parameters"),
        (1, 2048, [1, 2, 3], "launch dimension"),
        (0, 1, [1, 2, 3], "launch dimension"),
        (1, 1, [b"1234", 2, 3], "4 bytes"),
    ):
        with pytest.raises(PTXError, match=message):
            k.launch("k", grid, block, args)
    with pytest.raises(PTXError, match="fits 0 of the kernels"):
        k.launch("other", 1, 1, [1, 2, 3])
    small = Module(HEAD + ".entry s() .maxntid 64, 1, 1 { ret; }")
    with pytest.raises(PTXError, match="65 threads"):
        small.launch("s", 1, 65, [])
