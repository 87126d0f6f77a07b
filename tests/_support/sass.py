"""Machine code of a cubin as instructions, and the path that a loop takes through it."""

from __future__ import annotations

import dataclasses
import heapq
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

CSRC = Path(__file__).resolve().parents[2] / "csrc"
_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P[0-9T]+)\s+)?([A-Z][A-Z0-9_]*)((?:\.[A-Za-z0-9_]+)*)([^;]*);")
# The 64-lane pipe of integer adds, logic, shifts and permutes, with what else runs on it; U... is the uniform datapath.
SHARED_PIPE = re.compile("V?IADD3?|VIADDMNMX|LOP3?|PLOP3|SHF|PRMT|LEA|SEL|ISETP|V?IMNMX3?|IABS|MOV|P2R|R2P")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """`guarded`: predicated, so a branch may fall through. `target`: the address of a branch."""

    address: int
    opcode: str
    modifiers: str
    guarded: bool
    target: int | None

    @property
    def name(self) -> str:
        return self.opcode + self.modifiers


@dataclasses.dataclass
class Function:
    """A kernel in machine code."""

    name: str
    instructions: list[Instruction]
    registers: int
    shared_bytes: int

    def count(self, *opcodes: str) -> int:
        return sum(i.opcode in opcodes for i in self.instructions)

    def loop_path(self, through: str, wanted: int) -> list[Instruction]:
        """The fewest instructions of one turn of the innermost loop that holds one called `through` and at least
        `wanted` instructions, by way of the first of them in the loop."""
        loops = []
        for branch in self.instructions:
            if branch.target is None or branch.target >= branch.address:
                continue
            body = [i for i in self.instructions if branch.target <= i.address <= branch.address]
            if len(body) >= wanted and any(i.name.startswith(through) for i in body):
                loops.append(body)
        if not loops:
            raise ValueError(f"{self.name} has no loop of {wanted} instructions with {through}")
        body = min(loops, key=len)
        middle = next(n for n, i in enumerate(body) if i.name.startswith(through))
        first = _shortest(body, 0, middle)
        rest = _shortest(body, middle, len(body) - 1)
        return [body[n] for n in (*first, *rest[1:])]


def _shortest(body: list[Instruction], start: int, goal: int) -> list[int]:
    """Indices of the shortest way from start to goal within a loop's body, both included."""
    index = {i.address: n for n, i in enumerate(body)}
    heap: list[tuple[int, int, tuple[int, ...]]] = [(1, start, (start,))]
    seen = set()
    while heap:
        length, at, path = heapq.heappop(heap)
        if at == goal:
            return list(path)
        if at in seen:
            continue
        seen.add(at)
        instruction = body[at]
        ways = []
        if instruction.target in index:
            ways.append(index[instruction.target])
        falls = instruction.guarded or instruction.opcode not in ("BRA", "EXIT", "RET", "JMP")
        if falls and at + 1 < len(body):
            ways.append(at + 1)
        for way in ways:
            heapq.heappush(heap, (length + 1, way, (*path, way)))
    raise ValueError("the loop has no such way")


def shared_pipe(instructions: Iterable[Instruction]) -> int:
    return sum(SHARED_PIPE.fullmatch(i.opcode) is not None for i in instructions)


def mix(instructions: Iterable[Instruction]) -> str:
    """Counts of opcodes, the most frequent first."""
    return " ".join(f"{name}={n}" for name, n in Counter(i.opcode for i in instructions).most_common())


def compile_cubin(nvcc: str, arch: int, folder: Path) -> Path:
    """csrc/fingerprint.cu for sm_`arch`; a spill or local memory is an error."""
    out = folder / f"fingerprint_sm_{arch}.cubin"
    gate = "-warn-spills,-warn-lmem-usage,-Werror"
    command = [nvcc, "-cubin", "-std=c++17", "-O3", f"-arch=sm_{arch}", "-Xptxas", gate, "-Werror", "all-warnings"]
    _run([*command, str(CSRC / "fingerprint.cu"), "-o", str(out)])
    return out


def disassemble(cubin: Path) -> dict[str, Function]:
    """Kernels by name."""
    tool = find_cuobjdump()
    text = _run([tool, "-sass", str(cubin)])
    usage = _run([tool, "-res-usage", str(cubin)])
    functions = {}
    for part in re.split(r"(?=^[ \t]+Function : )", text, flags=re.M)[1:]:
        name = re.match(r"[ \t]+Function : (\S+)", part)[1]  # type: ignore[index]
        numbers = re.search(
            rf"Function {re.escape(name)}:\s*\n\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", usage
        )
        if numbers is None:
            raise ValueError(f"no resource usage of {name}:\n{usage}")
        functions[name] = Function(name, _instructions(part), int(numbers[1]), int(numbers[3]))
    return functions


def find_cuobjdump() -> str:
    """The one in Triton's wheel, else the toolkit's."""
    try:
        import triton.backends.nvidia as nvidia

        inside = Path(nvidia.__file__ or "").parent / "bin" / "cuobjdump"
        if os.access(inside, os.X_OK):
            return str(inside)
    except ImportError:
        pass
    found = shutil.which("cuobjdump")
    if found is None:
        raise FileNotFoundError("cuobjdump is neither in triton's wheel nor on PATH")
    return found


def _instructions(text: str) -> list[Instruction]:
    found = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None or match[3] == "NOP":
            continue
        address, guard, opcode, modifiers, operands = match.groups()
        target = re.search(r"(?:^|\s)`?\(?(0x[0-9a-f]+)\)?\s*$", operands) if opcode == "BRA" else None
        # A second predicate, as in "@P0 BRA P1, 0x60": such a branch may fall through too.
        guarded = (guard is not None and guard != "PT") or (opcode == "BRA" and bool(re.search(r"\bU?P\d", operands)))
        found.append(Instruction(int(address, 16), opcode, modifiers, guarded, int(target[1], 16) if target else None))
    return found


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout
