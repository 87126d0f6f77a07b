"""Instructions that name other lanes, barriers and control flow that only ends a basic block."""

from .emit import Emitter, instruction
from .memory_ops import shared_address


@instruction(r"shfl\.sync\.(?P<mode>up|down|bfly|idx)\.b32")
def shuffle(e: Emitter, mode: str) -> None:
    d, a, b, clamp, mask = e.args(5)
    first, *second = d.split("|")
    operands = ", ".join(e.value(v, "b32") for v in (a, b, clamp, mask))
    pair = e.temporary(f"t.shuffle({e.current.index}, {mode!r}, {operands}, {e.guard})")
    e.assign(first, f"{pair}[0]")
    for register in second:
        e.assign(register, f"{pair}[1]")


@instruction(r"vote\.sync\.(?P<mode>all|any|uni)\.pred|vote\.sync\.(?P<ballot>ballot)\.b32")
def vote(e: Emitter, mode: str | None, ballot: str | None) -> None:
    d, p, mask = e.args(3)
    e.assign(d, f"t.vote({e.current.index}, {mode or ballot!r}, {e.predicate(p)}, {e.value(mask, 'b32')}, {e.guard})")


@instruction(r"redux\.sync\.(?:(?P<op>add|min|max)\.(?P<type>[us]32)|(?P<bitwise>and|or|xor)\.b32)")
def reduce(e: Emitter, op: str | None, type: str | None, bitwise: str | None) -> None:
    d, a, mask = e.args(3)
    value = e.number(a, type or "b32")
    reduced = f"t.reduce({e.current.index}, {op or bitwise!r}, {value}, {e.value(mask, 'b32')}, {e.guard})"
    e.result(d, reduced, type or "b32")


@instruction(r"ldmatrix\.sync\.aligned\.m8n8\.x(?P<count>[124])\.shared\.b16")
def load_matrix(e: Emitter, count: str) -> None:
    d, address = e.args(2)
    rows = e.temporary(f"t.matrix_rows({e.current.index}, {shared_address(e, address)}, {count}, {e.guard})")
    for i, register in enumerate(e.vector(d)):
        e.assign(register, f"t.load({e.current.index}, 'shared', {rows}[{i}], 4, 1, None)[0]")


@instruction(r"stmatrix\.sync\.aligned\.m8n8\.x(?P<count>[124])\.shared\.b16")
def store_matrix(e: Emitter, count: str) -> None:
    address, source = e.args(2)
    rows = e.temporary(f"t.matrix_rows({e.current.index}, {shared_address(e, address)}, {count}, {e.guard})")
    for i, register in enumerate(e.vector(source)):
        e.line(f"t.store({e.current.index}, 'shared', {rows}[{i}], ({e.value(register, 'b32')},), None)")


@instruction(r"activemask\.b32")
def active_mask(e: Emitter) -> None:
    e.assign(e.args(1)[0], f"t.active_mask({e.guard})")


@instruction(r"bar\.warp\.sync")
def warp_barrier(e: Emitter) -> None:
    e.line(f"t.check_members({e.current.index}, {e.value(e.args(1)[0], 'b32')}, {e.guard})")


@instruction(r"(?:membar\.(?:cta|gl|sys)|fence(?:\.(?:sc|acq_rel))?\.(?:cta|gpu|sys))")
def fence(e: Emitter) -> None:
    """Lanes run in lockstep here: order is what the race checker of tests/simt tests."""
    e.args(0)


@instruction(r"(?:bar|barrier(?:\.cta)?)\.sync(?:\.aligned)?")
def block_barrier(e: Emitter) -> None:
    if e.guard is not None or e.literal(e.args(1)[0]) != 0:
        raise e.error("only barrier 0 of the whole block, without a predicate")


@instruction(r"bra(?:\.uni)?")
def branch(e: Emitter) -> None:
    e.args(1)


@instruction(r"brx\.idx(?:\.uni)?")
def branch_table(e: Emitter) -> None:
    if e.guard is not None:
        raise e.error("a predicate on an indexed branch is not supported")
    e.args(2)


@instruction(r"ret(?:\.uni)?|exit")
def leave(e: Emitter) -> None:
    e.args(0)


@instruction(r"trap")
def trap(e: Emitter) -> None:
    e.line(f"t.trap({e.current.index}, {e.guard})")
