"""What Triton makes of the kernels for NVIDIA and AMD GPUs, compiled without a driver: no spills, 16-byte loads and stores."""

from __future__ import annotations

import re

import pytest
import triton_aot

KERNELS = {
    "rows": ("hash_tiles", {"ALIGNED": True, "OUT_WORDS": 4, "STAGE": False}),
    "rows, any address": ("hash_tiles", {"ALIGNED": False, "OUT_WORDS": 4, "STAGE": False}),
    "staged rows": ("hash_tiles", {"ALIGNED": True, "OUT_WORDS": 4, "STAGE": True}),
    "a row in each lane": ("hash_lanes", {"LEVELS": 4, "OUT_WORDS": 4, "STAGE": False}),
    "longest, staged": ("hash_lanes", {"LEVELS": 5, "OUT_WORDS": 8, "STAGE": True}),
    "tiles": ("merge_tiles", {"OUT_WORDS": 4}),
    "spans": ("fold_spans", {"OUT_WORDS": 4}),
}
POINTERS = {
    "hash_tiles": ("rows", "staged", "key", "out"),
    "hash_lanes": ("rows", "staged", "key", "out"),
    "merge_tiles": ("nodes", "key", "out"),
    "fold_spans": ("rows", "bounds", "key", "out"),
}


def compiled(what: str, target: str):
    name, constants = KERNELS[what]
    amd = target.startswith("gfx")
    constants = {"LANES": 64 if amd else 32, **constants, **({"one": None} if amd else {})}
    pointers = tuple((p, "*i64" if p == "bounds" else "*u8", p != "bounds") for p in POINTERS[name])
    return triton_aot.compiled(name, target, pointers, tuple(constants.items()))


NVIDIA = (
    *(("sm_90", what) for what in KERNELS),
    *(("sm_80", what) for what in ("rows", "spans")),
    *(("sm_100", what) for what in ("rows", "rows, any address", "a row in each lane", "spans")),
)


@pytest.mark.parametrize(("target", "what"), NVIDIA)
def test_nvidia(target, what, tmp_path, capsys):
    from sass import disassemble, mix

    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(compiled(what, target).asm["cubin"])
    (kernel,) = disassemble(cubin).values()
    with capsys.disabled():
        print(f"\n{target} {what}: {kernel.registers} registers; {mix(kernel.instructions)}")
    assert kernel.count("LDL", "STL") == 0, "a spill"
    loads, stores = ([i.name for i in kernel.instructions if i.opcode == opcode] for opcode in ("LDG", "STG"))
    wide = [name for name in loads if "128" in name]
    if what == "rows, any address":
        assert len(wide) >= 5, "the pieces around a block"
    elif what == "tiles":
        assert len(wide) == 2
    else:
        # Two blocks of four pieces, of which each is there whole, or cut short at the end.
        assert len(wide) >= 8
        assert len(loads) - len(wide) <= 10, "8 words of the key and 2 bounds"
    assert all("128" in name for name in stores), "digests and staged rows"


@pytest.mark.parametrize("what", ["rows", "staged rows", "a row in each lane"])
def test_instructions_of_a_compression(what, tmp_path, capsys):
    """A turn of the loop over a chunk's blocks on sm_90; the limits are those of the CUDA kernels (tests/sass)."""
    from sass import disassemble, mix, shared_pipe

    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(compiled(what, "sm_90").asm["cubin"])
    (kernel,) = disassemble(cubin).values()
    turn = kernel.loop_path("LDG.E.128", 700)
    with capsys.disabled():
        print(f"\nsm_90 {what}: {len(turn)} instructions a block, {shared_pipe(turn)} on the shared pipe; {mix(turn)}")
    assert shared_pipe(turn) <= 480
    assert len(turn) <= 900


@pytest.mark.parametrize("what", KERNELS)
def test_amd(what, capsys):
    assembly = compiled(what, "gfx942").asm["amdgcn"]
    numbers = {name: int(n) for name, n in re.findall(r"\.(\w+):\s+(\d+)\s*$", assembly, re.M)}
    with capsys.disabled():
        print(f"\ngfx942 {what}: {numbers['vgpr_count']} vector and {numbers['sgpr_count']} scalar registers")
    for name in ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size"):
        assert numbers[name] == 0, name
    assert "scratch_" not in assembly
    if what != "tiles":
        assert assembly.count("global_load_dwordx4") >= 5
