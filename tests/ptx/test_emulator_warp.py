"""Divergence, barriers and warp-wide instructions of the emulator."""

from __future__ import annotations

import numpy as np
import pytest
from ptx import Memory, Module, PTXError
from ptx.snippet import run, text

LANES = np.arange(64, dtype=np.uint32)


def test_a_loop_with_a_count_of_each_lanes_own():
    body = (
        """L: setp.ge.u32 %p1, %r1, %a; @%p1 bra DONE; add.u32 %r1, %r1, 1; mad.lo.u32 %d, %d, 3, %r1; bra L; DONE: """
    )
    got, _, stats = run("mov.u32 %r1, 0;" + body, LANES)

    def want(n):
        x = 0
        for i in range(1, n + 1):
            x = (x * 3 + i) % 2**32
        return x

    assert got.tolist() == [want(int(n)) for n in LANES]
    # Warp 0 takes 31 turns of 5 and a last test of 2, warp 1 63 turns: lanes wait for each other at each turn.
    _, _, without = run("mov.u32 %r1, 0; setp.ge.u32 %p1, %r1, %a; @%p1 bra DONE; DONE:", LANES)
    assert stats.warp_instructions - without.warp_instructions == 5 * 31 + 5 * 63
    assert stats.issue_slots == 32 * stats.warp_instructions


def test_lanes_meet_after_a_branch():
    """Both sides once for each warp, what follows once."""
    body = """setp.lt.u32 %p1, %a, 16; @%p1 bra LOW; mov.u32 %d, 2; bra JOIN; LOW: mov.u32 %d, 1; JOIN: add.u32 %d, %d, %a;"""
    got, _, stats = run(body, LANES[:32])
    assert got.tolist() == [int(a) + (1 if a < 16 else 2) for a in LANES[:32]]
    _, _, straight = run("setp.lt.u32 %p1, %a, 16; mov.u32 %d, 2; add.u32 %d, %d, %a;", LANES[:32])
    assert stats.warp_instructions == straight.warp_instructions + 3  # two branches, the other mov


def test_lanes_meet_after_continue_and_break():
    """A loop with `continue` (a second jump back) and `break`, its exit block laid out before its body."""
    body = """mov.u32 %r1, 0; bra HEAD;
      OUT: vote.sync.ballot.b32 %e, %p4, -1; bra STORE;
      HEAD: setp.ge.u32 %p1, %r1, 8; @%p1 bra OUT; add.u32 %r1, %r1, 1; and.b32 %r2, %a, 1; setp.ne.u32 %p2, %r2, 0;
      @%p2 bra HEAD; add.u32 %d, %d, 1; setp.eq.u32 %p3, %r1, %b; @%p3 bra OUT; bra HEAD;"""
    limit = np.where(LANES % 4 == 0, 3, 99).astype(np.uint32)
    got, ballot, stats = run("setp.eq.u32 %p4, %a, %a;" + body, LANES[:32], limit[:32])
    assert got.tolist() == [0 if a % 2 else 3 if a % 4 == 0 else 8 for a in LANES[:32]]
    assert set(ballot.tolist()) == {0xFFFFFFFF}
    # One warp: 8 turns; each runs the 6 instructions to the `continue` once, then the 4 of the rest once.
    _, _, empty = run("", LANES[:32])
    assert stats.warp_instructions - empty.warp_instructions == 1 + 2 + 8 * (6 + 4) + 2 + 2


def test_nested_loops():
    body = """mov.u32 %r1, 0; O: setp.ge.u32 %p1, %r1, %a; @%p1 bra END; mov.u32 %r2, 0;
      I: setp.gt.u32 %p2, %r2, %r1; @%p2 bra NEXT; add.u32 %d, %d, %r2; add.u32 %r2, %r2, 1; bra I;
      NEXT: add.u32 %r1, %r1, 1; bra O; END: """
    got = run(body, LANES[:20])[0]
    assert got.tolist() == [sum(sum(range(i + 1)) for i in range(a)) for a in range(20)]


def test_lanes_that_leave_early():
    body = "setp.gt.u32 %p1, %a, 40; @%p1 bra STORE; and.b32 %r1, %a, 1; setp.eq.u32 %p2, %r1, 1; mov.u32 %d, 3; @%p2 bra STORE; mov.u32 %d, 4;"
    assert run(body, LANES)[0].tolist() == [0 if a > 40 else 3 if a % 2 else 4 for a in LANES]
    source = text("setp.gt.u32 %p1, %a, 40; @%p1 ret; mov.u32 %d, 1;")
    memory, out = Memory(), np.full(64, 9, np.uint32)
    x = memory.map(LANES)
    d = memory.map(out, access="rw")
    Module(source).launch(
        "snippet", 1, 64, [x, x, x, d, memory.map(np.zeros(64, np.uint32), access="w")], buffers=memory
    )
    assert out.tolist() == [1 if a <= 40 else 9 for a in LANES]


def test_an_indexed_branch():
    body = """TABLE: .branchtargets A, B, C; min.u32 %r1, %a, 2; brx.idx %r1, TABLE;
      A: mov.u32 %d, 10; bra END; B: mov.u32 %d, 20; bra END; C: mov.u32 %d, 30; END: """
    assert run(body, LANES[:5])[0].tolist() == [10, 20, 30, 30, 30]
    with pytest.raises(PTXError, match="beyond its table"):
        run(body.replace("min.u32 %r1, %a, 2", "mov.u32 %r1, %a"), LANES[:5])


def shuffled(mode: str, lane: int, offset: int, clamp: int) -> tuple[int, bool]:
    """Source lane and predicate, from the pseudocode of the PTX manual."""
    bound, segment = clamp & 31, clamp >> 8 & 31
    low = lane & segment
    limit = low | (bound & ~segment & 31)
    offset &= 31
    source = {"up": lane - offset, "down": lane + offset, "bfly": lane ^ offset}.get(mode, low | (offset & ~segment))
    valid = source >= limit if mode == "up" else source <= limit
    return (source if valid else lane), valid


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("segment", [32, 16, 8, 1])
def test_shuffle(mode, segment):
    clamp = (32 - segment) << 8 | (0 if mode == "up" else 31)
    for offset in (0, 1, 5, 16, 31):
        body = f"shfl.sync.{mode}.b32 %d|%p1, %b, {offset}, {clamp}, -1; selp.b32 %e, 1, 0, %p1;"
        values = LANES * 7 + 3
        got, valid, _ = run(body, LANES, values)
        for i in range(64):
            source, ok = shuffled(mode, i % 32, offset, clamp)
            assert got[i] == values[i // 32 * 32 + source], (mode, offset, i)
            assert valid[i] == ok


def test_shuffle_by_a_register_within_part_of_a_warp():
    body = "setp.ge.u32 %p2, %a, 8; @%p2 bra STORE; xor.b32 %r1, %a, 3; shfl.sync.idx.b32 %d, %b, %r1, 31, 255;"
    got = run(body, LANES[:32], LANES[:32] + 100)[0]
    assert got.tolist() == [100 + (i ^ 3) for i in range(8)] + [0] * 24


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("shfl.sync.bfly.b32 %d, %b, 1, 31, 0xFFFF;", "not in its own membermask.*thread .16, 0, 0"),
        ("setp.ge.u32 %p2, %a, 8; @%p2 bra STORE; shfl.sync.bfly.b32 %d, %b, 1, 31, -1;", "0xffffff00 of the membermask"),
        ("setp.ge.u32 %p2, %a, 8; @%p2 bra STORE; shfl.sync.down.b32 %d, %b, 4, 31, 255;", "source lane is not here"),
        ("setp.lt.u32 %p2, %a, 8; @%p2 shfl.sync.down.b32 %d, %b, 4, 31, -1;", "of the membermask are not here"),
        ("mov.u32 %r1, -1; setp.lt.u32 %p2, %a, 8; selp.b32 %r2, -1, 0xFFFFFFF0, %p2; or.b32 %r2, %r2, 255; setp.eq.u32 %p3, %a, 0;"
         "selp.b32 %r2, 0x7FFFFFFF, %r2, %p3; shfl.sync.idx.b32 %d, %b, 0, 31, %r2;", "passes another mask"),
        ("setp.lt.u32 %p2, %a, 8; vote.sync.any.pred %p3, %p2, 0xFFFE;", "not in its own membermask"),
        ("setp.ge.u32 %p2, %a, 8; @%p2 bra STORE; bar.warp.sync -1;", "of the membermask are not here"),
        ("setp.ge.u32 %p2, %a, 8; @%p2 bra STORE; bar.sync 0;", "part of a warp is at a barrier"),
    ],
)  # fmt: skip
def test_wrong_masks_and_torn_warps(body, message):
    with pytest.raises(PTXError, match=message):
        run(body, LANES[:32], LANES[:32])


def test_votes():
    body = """setp.lt.u32 %p1, %a, %b; vote.sync.ballot.b32 %d, %p1, -1; vote.sync.all.pred %p2, %p1, -1;
      vote.sync.any.pred %p3, !%p1, -1; vote.sync.uni.pred %p4, %p1, -1; selp.b32 %r1, 1, 0, %p2; selp.b32 %r2, 2, 0, %p3;
      selp.b32 %r3, 4, 0, %p4; or.b32 %e, %r1, %r2; or.b32 %e, %e, %r3;"""
    for bound, ballot, rest in ((40, [0xFFFFFFFF, 0xFF], [5, 2]), (0, [0, 0], [6, 6]), (99, [0xFFFFFFFF] * 2, [5, 5])):
        got, other, _ = run(body, LANES, np.full(64, bound, np.uint32))
        assert got[[0, 63]].tolist() == ballot
        assert other[[0, 63]].tolist() == rest


@pytest.mark.parametrize("op", ["add.u32", "min.u32", "max.u32", "min.s32", "max.s32", "and.b32", "or.b32", "xor.b32"])
def test_redux(op):
    values = np.random.default_rng(4).integers(0, 2**32, 64, np.uint32)
    body = f"setp.lt.u32 %p1, %a, 40; @!%p1 bra STORE; setp.lt.u32 %p2, %a, 32; selp.b32 %r1, -1, 255, %p2; redux.sync.{op} %d, %b, %r1;"
    got = run(body, LANES, values)[0]
    name, kind = op.split(".")
    for a, b in ((0, 32), (32, 40)):
        part = values[a:b].view(np.int32 if kind == "s32" else np.uint32)
        functions = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or}
        want = functions.get(name, np.bitwise_xor).reduce(part, dtype=part.dtype)
        assert got[a:b].tolist() == [int(want) % 2**32] * (b - a)
    with pytest.raises(PTXError, match="of the membermask are not here"):
        run(body.replace("255", "511"), LANES, values)


def test_matrices_move_as_the_manual_draws_them():
    """stmatrix spreads a lane's word to row lane / 4, column lane % 4; ldmatrix reads it back."""
    module = ".shared .align 16 .b8 matrix[1024];"
    rows = "mov.u32 %r1, matrix; and.b32 %r2, %a, 31; mad.lo.u32 %r3, %r2, 16, %r1; mad.lo.u32 %r4, %r2, 4, %r1;"
    store = rows + "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r3], {%a, %b}; bar.sync 0;"
    first, second, _ = run(
        store + "ld.shared.u32 %d, [%r4]; ld.shared.u32 %e, [%r4+128];", LANES[:32], LANES[:32] + 50, module=module
    )
    assert first.tolist() == list(range(32))
    assert second.tolist() == list(range(50, 82))
    load = "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%d, %e}, [%r3];"
    first, second, _ = run(store + load, LANES[:32], LANES[:32] + 50, module=module)
    assert first.tolist() == list(range(32))
    assert second.tolist() == list(range(50, 82))
    with pytest.raises(PTXError, match="no multiple of 16"):
        run(store + load.replace("[%r3]", "[%r3+4]"), LANES[:32], LANES[:32], module=module)
    with pytest.raises(PTXError, match="outside the 1024 bytes"):
        run(store + load.replace("[%r3]", "[%r3+784]"), LANES[:32], LANES[:32], module=module)


def test_active_mask():
    body = "activemask.b32 %d; setp.lt.u32 %p1, %a, 5; @%p1 bra STORE; activemask.b32 %d;"
    assert run(body, LANES[:32])[0].tolist() == [0xFFFFFFFF] * 5 + [0xFFFFFFE0] * 27
    assert run("activemask.b32 %d;", LANES[:3])[0].tolist() == [7] * 3


def test_special_registers():
    body = """mov.u32 %r1, %laneid; mov.u32 %r2, %lanemask_lt; mov.u32 %r3, %lanemask_ge; xor.b32 %d, %r2, %r3; mov.u32 %r4, %ntid.x;
      mad.lo.u32 %e, %r4, 100, %r1; mov.u32 %r5, %lanemask_eq; mov.u32 %r6, %lanemask_gt; mov.u32 %r7, %lanemask_le; and.b32 %r8, %r6, %r7;
      add.u32 %d, %d, %r8;"""
    got, other, _ = run(body, LANES)
    assert set(got.tolist()) == {0xFFFFFFFF}
    assert other.tolist() == [6400 + i % 32 for i in range(64)]


def test_a_barrier_between_warps():
    """Warp 1 is ahead of warp 0; the sum is right only if the barrier holds it."""
    module = ".shared .align 4 .b8 words[256];"
    body = """mov.u32 %r1, words; shl.b32 %r2, %tid, 2; add.u32 %r3, %r1, %r2; setp.ge.u32 %p1, %a, 32; @%p1 bra GO; mov.u32 %r4, 0;
      L: add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 50; @%p2 bra L; GO: st.shared.u32 [%r3], %a; bar.sync 0;
      xor.b32 %r5, %r2, 252; add.u32 %r6, %r1, %r5; ld.shared.u32 %d, [%r6];"""
    assert run(body, LANES, module=module)[0].tolist() == list(range(63, -1, -1))


def test_barriers_at_two_places_are_a_fault():
    body = "setp.ge.u32 %p1, %a, 32; @%p1 bra B; bar.sync 0; bra STORE; B: bar.sync 0;"
    with pytest.raises(PTXError, match="wait at different barriers"):
        run(body, LANES)


def test_blocks_with_part_of_a_warp_and_three_dimensions():
    source = """.version 8.8
.target sm_80
.address_size 64
.entry k(.param .u64 out) { .reg .b32 %r<20>; .reg .b64 %l<4>;
 mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; mov.u32 %r4, %ctaid.x; mov.u32 %r5, %ctaid.y; mov.u32 %r6, %ntid.x;
 mov.u32 %r7, %ntid.y; mov.u32 %r8, %ntid.z; mov.u32 %r9, %nctaid.x; mad.lo.u32 %r10, %r5, %r9, %r4; mad.lo.u32 %r11, %r10, %r8, %r3;
 mad.lo.u32 %r11, %r11, %r7, %r2; mad.lo.u32 %r11, %r11, %r6, %r1; ld.param.u64 %l1, [out]; mul.wide.u32 %l2, %r11, 4; add.s64 %l1, %l1, %l2;
 st.global.u32 [%l1], %r11; ret; }"""
    memory, out = Memory(), np.zeros(2 * 3 * 5 * 3 * 2, np.uint32)
    stats = Module(source).launch("k", (2, 3), (5, 3, 2), [memory.map(out, access="w")], buffers=memory, lanes=64)
    assert out.tolist() == list(range(180))
    assert stats.warps == 6


def test_counts_by_class():
    _, _, stats = run("", LANES[:32])
    assert stats.warps == 1
    assert stats.by_class == {"move": 3, "mul": 4, "ld.param": 5, "add": 5, "ld.global": 3, "st.global": 2, "branch": 1}
    assert stats.warp_instructions == stats.instructions_per_warp == sum(stats.by_class.values())
    assert stats.thread_instructions == stats.issue_slots == 32 * stats.warp_instructions
