"""Basic blocks, the order in which diverged lanes take them, and which registers live across them.

Lanes that stand at the earliest place run first. Places are laid out in a weak topological order (Bourdoncle, "Efficient
chaotic iteration strategies with widenings", 1993): a loop is contiguous, what follows it comes after it, and every jump
back goes through a latch behind the loop's last block. So lanes meet again where branches join, at each turn of a loop
and behind it, as on hardware.
"""

import itertools
from dataclasses import dataclass, field

from .errors import PTXError
from .parse import Instruction, Kernel

_ENDS = ("bra", "brx", "ret", "exit", "bar", "barrier")


@dataclass
class Block:
    """Straight-line instructions; only the last one may be control flow."""

    index: int
    instructions: list[Instruction]
    successors: list[int] = field(default_factory=list)  # branch: targets, then the fall-through where there is one
    end: str = "fall"  # fall, jump, branch, switch, leave, barrier

    @property
    def last(self) -> Instruction:
        return self.instructions[-1]


def _ends_block(instruction: Instruction) -> bool:
    return instruction.stem in _ENDS and not instruction.mnemonic.startswith("bar.warp")


def split(kernel: Kernel) -> list[Block]:
    """The blocks in file order. Lanes that fall off the last one have left."""
    code = kernel.instructions
    starts = {0, *kernel.labels.values()}
    starts |= {i.index + 1 for i in code if _ends_block(i)}
    bounds = [*sorted(s for s in starts if s < len(code)), len(code)]
    blocks = [Block(n, code[a:b]) for n, (a, b) in enumerate(itertools.pairwise(bounds))]
    block_at = {a: n for n, a in enumerate(bounds[:-1])} | {len(code): len(blocks)}
    blocks.append(Block(len(blocks), [], [], "leave"))

    def target(label: str) -> int:
        if label not in kernel.labels:
            raise PTXError(f"{kernel.name}: no label {label}")
        return block_at[kernel.labels[label]]

    for block in blocks[:-1]:
        last, after = block.last, block.index + 1
        if not _ends_block(last):
            block.successors = [after]
        elif last.stem == "bra":
            block.end = "branch" if last.guard else "jump"
            block.successors = [target(last.operands[0]), after] if last.guard else [target(last.operands[0])]
        elif last.stem == "brx":
            block.end = "switch"
            block.successors = [target(label) for label in kernel.tables[last.operands[1]]]
        elif last.stem in ("ret", "exit"):
            block.end = "leave"
            block.successors = [after] if last.guard else []
        else:
            block.end, block.successors = "barrier", [after]
    return blocks


@dataclass
class Layout:
    """Places in running order: `block[place]` is a block, or None for the latch that leads to `header[place]`."""

    block: list[int | None] = field(default_factory=list)
    header: list[int] = field(default_factory=list)
    place_of: dict[int, int] = field(default_factory=dict)
    latch_of: dict[int, int] = field(default_factory=dict)

    def after(self, source: int, target: int) -> int:
        """The place to which a jump between two blocks leads: the latch if it goes back to a loop's header."""
        if self.place_of[target] > self.place_of[source]:
            return self.place_of[target]
        return self.latch_of[target]


def lay_out(blocks: list[Block]) -> Layout:
    layout = Layout()

    def place(block: int | None, header: int) -> int:
        layout.block.append(block)
        layout.header.append(header)
        return len(layout.block) - 1

    def visit(nodes: set[int], entry: int, cut: frozenset[int]) -> None:
        for component in _components(blocks, nodes, entry, cut):
            header = component[0]
            loops = len(component) > 1 or header in blocks[header].successors
            if loops and header not in cut:
                visit(set(component), header, cut | {header})
                layout.latch_of[header] = place(None, header)
            else:
                layout.place_of[header] = place(header, header)

    visit({b.index for b in blocks}, 0, frozenset())
    return layout


def _components(blocks: list[Block], nodes: set[int], entry: int, cut: frozenset[int]) -> list[list[int]]:
    """Strongly connected components reachable from `entry`, in topological order, each with its entry first; edges
    into `cut` do not count (Kosaraju)."""
    following = {n: [s for s in blocks[n].successors if s in nodes and s not in cut] for n in nodes}
    finished: list[int] = []
    seen, stack = {entry}, [(entry, iter(following[entry]))]
    while stack:
        node, rest = stack[-1]
        for successor in rest:
            if successor not in seen:
                seen.add(successor)
                stack.append((successor, iter(following[successor])))
                break
        else:
            finished.append(node)
            stack.pop()
    preceding: dict[int, list[int]] = {n: [] for n in nodes}
    for node in seen:
        for successor in following[node]:
            preceding[successor].append(node)
    components, taken = [], set()
    for root in reversed(finished):
        if root in taken:
            continue
        component, queue = [], [root]
        taken.add(root)
        while queue:
            node = queue.pop()
            component.append(node)
            for previous in preceding[node]:
                if previous in seen and previous not in taken:
                    taken.add(previous)
                    queue.append(previous)
        components.append(component)
    return components


def live_out(blocks: list[Block], reads: list[set[str]], writes: list[set[str]]) -> list[set[str]]:
    """Registers whose value at the end of each block someone may read. `reads`: read before any write in the block."""
    live_in = [set(r) for r in reads]
    out: list[set[str]] = [set() for _ in blocks]
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            n = block.index
            after = set().union(*(live_in[s] for s in block.successors))
            before = reads[n] | (after - writes[n])
            if after != out[n] or before != live_in[n]:
                out[n], live_in[n], changed = after, before, True
    return out
