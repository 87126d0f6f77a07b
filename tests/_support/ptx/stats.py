"""What a launch counted."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Stats:
    """Counts of one or more launches. An instruction counts once for each warp in which a lane reaches it, also where
    its predicate is false: that is what a scheduler issues."""

    warps: int = 0
    warp_instructions: int = 0
    thread_instructions: int = 0
    by_class: Counter[str] = field(default_factory=Counter)

    @property
    def issue_slots(self) -> int:
        """32 x the instructions of each warp with a live lane."""
        return 32 * self.warp_instructions

    @property
    def instructions_per_warp(self) -> float:
        return self.warp_instructions / max(self.warps, 1)

    def __iadd__(self, other: "Stats") -> "Stats":
        self.warps += other.warps
        self.warp_instructions += other.warp_instructions
        self.thread_instructions += other.thread_instructions
        self.by_class.update(other.by_class)
        return self


_CLASSES = {
    "add": "add", "sub": "add", "addc": "add", "subc": "add", "mul": "mul", "mad": "mul", "madc": "mul",
    "and": "logic", "or": "logic", "xor": "logic", "not": "logic", "lop3": "logic",
    "shl": "shift", "shr": "shift", "shf": "shift", "prmt": "shift", "bfe": "shift", "bfi": "shift",
    "setp": "compare", "selp": "compare", "min": "compare", "max": "compare",
    "mov": "move", "cvt": "move", "cvta": "move", "shfl": "shuffle", "redux": "shuffle", "vote": "vote",
    "bra": "branch", "brx": "branch", "ret": "branch", "exit": "branch", "bar": "barrier", "barrier": "barrier",
}  # fmt: skip


def instruction_class(mnemonic: str) -> str:
    """The row of `by_class` for a mnemonic: loads and stores are split by space."""
    stem, *modifiers = mnemonic.split(".")
    if stem in ("ld", "ldu", "st"):
        space = next((m.split("::")[0] for m in modifiers if m.split("::")[0] in _SPACES), "generic")
        return f"{'st' if stem == 'st' else 'ld'}.{space}"
    if stem in ("ldmatrix", "stmatrix"):
        return f"{stem[:2]}.shared"
    return _CLASSES.get(stem, "other")


_SPACES = ("global", "shared", "local", "param", "const")
