"""One verdict from all runs."""

from __future__ import annotations

from dataclasses import dataclass

from gpukey.audit import plan
from gpukey.audit.plan import Run, Runs

BLIND = "EMBEDDINGS-BLIND REUSE CONFIRMED"
EQUAL = "reuse inside the span, outputs equal"
NONE_FOUND = "no blind reuse found"
NOT_COMPARABLE = "outputs not comparable"

EXIT_CODES = {NONE_FOUND: 0, EQUAL: 0, BLIND: 1, NOT_COMPARABLE: 3}
_PAIRS = (
    (plan.E2_WARM, plan.E2_COLD),
    (plan.FLIP_WARM, plan.FLIP_COLD),
    (plan.BARE_WARM, plan.BARE_COLD),
)


@dataclass(frozen=True)
class Verdict:
    """`line` is one of the four above; `reason` says what it rests on; `shared_by_lora_and_salt` is a fault of its
    own."""

    line: str
    reason: str
    shared_by_lora_and_salt: bool = False

    @property
    def exit_code(self) -> int:
        """0 clean, 1 wrong reuse, 3 not comparable."""
        return 1 if self.shared_by_lora_and_salt else EXIT_CODES[self.line]


def first_difference(one: Run, other: Run) -> int | None:
    """First output position where two runs differ; None where they are equal or there are no outputs."""
    if one.output is None or other.output is None or one.output == other.output:
        return None
    pairs = enumerate(zip(one.output, other.output, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one.output), len(other.output)))


def judge(runs: Runs) -> Verdict:
    """The verdict. Where a driver computes no outputs, reuse alone decides."""
    shared = bool(runs.lora_against_salt)
    reason = _not_comparable(runs)
    if reason is not None:
        return Verdict(NOT_COMPARABLE, reason, shared)
    reused = [(runs[warm], runs[cold]) for warm, cold in _PAIRS if warm in runs.by_name and runs[warm].wrongly_reused]
    for warm, cold in reused:
        where = f'"{warm.name}" reused {warm.wrongly_reused} tokens of other content'
        if warm.output is None:
            return Verdict(BLIND, f"{where} (this driver computes no outputs)", shared)
        position = first_difference(warm, cold)
        if position is not None:
            return Verdict(BLIND, f"{where}, and its output differs from its cold run at position {position}", shared)
    if reused:
        return Verdict(
            EQUAL, f'"{reused[0][0].name}" reused {reused[0][0].wrongly_reused} tokens of other content', shared
        )
    if not any(run.reused for run in runs.by_name.values()):
        return Verdict(
            NONE_FOUND, "no run reused a token: prefix caching is off, or a block is longer than the prompt", shared
        )
    return Verdict(NONE_FOUND, "no run reused a token at or after the first position where its content differs", shared)


def _not_comparable(runs: Runs) -> str | None:
    for name in (plan.E1_REFILL, plan.E1_AGAIN):
        position = first_difference(runs[plan.E1], runs[name])
        if position is not None:
            return f'"{name}" differs from "{plan.E1}" at output position {position}: the same request, another output'
    for run in runs.by_name.values():
        if "cold" in run.name and run.reused:
            return f'"{run.name}" reused {run.reused} tokens: the engine kept its cache'
    return None
