"""The prompt of the audit and the runs that are made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from gpukey.audit.protocol import Driver

TEXT_BEFORE, ROWS, TEXT_AFTER = 64, 448, 20
START, END = TEXT_BEFORE, TEXT_BEFORE + ROWS
FLIPPED_ROW = ROWS // 2
SEED = 20261130

E1 = "ids + E1, cold"
E2_WARM = "ids + E2 = -E1"
E2_COLD = "ids + E2, cold"
E1_REFILL = "ids + E1, cold again"
E1_AGAIN = "ids + E1 again"
FLIP_WARM = "ids + E1, one bit flipped"
FLIP_COLD = "one bit flipped, cold"
BARE_WARM = "ids, no rows at all"
BARE_COLD = "no rows at all, cold"


@dataclass(frozen=True)
class Run:
    """One request: prompt tokens reused, how many of them may be (up to the first difference), and its output ids."""

    name: str
    reused: int
    allowed: int
    output: list[int] | None

    @property
    def wrongly_reused(self) -> int:
        """Reused tokens at or after the first position where the content differs from what filled the cache."""
        return max(0, self.reused - self.allowed)


@dataclass
class Runs:
    """All runs by name, in order, and the tokens that the salt "X" reused of the adapter "X" (None: not in this
    engine)."""

    block_size: int
    by_name: dict[str, Run] = field(default_factory=dict)
    lora_against_salt: int | None = None

    def __getitem__(self, name: str) -> Run:
        return self.by_name[name]


def prompt(driver: Driver) -> tuple[list[int], torch.Tensor]:
    """Token ids (0 under the rows) and E1 [448, hidden]: always the same for one engine and model."""
    dice = torch.Generator().manual_seed(SEED)
    text = torch.randint(1, driver.vocab_size, (TEXT_BEFORE + TEXT_AFTER,), generator=dice).tolist()
    rows = torch.randn(ROWS, driver.hidden, generator=dice) * driver.scale
    return text[:TEXT_BEFORE] + [0] * ROWS + text[TEXT_BEFORE:], rows.to(driver.dtype)


def flip_one_bit(rows: torch.Tensor) -> torch.Tensor:
    """A copy with the sign of one element of the middle row flipped: the largest one, so that the model can notice."""
    flipped = rows.clone()
    column = int(flipped[FLIPPED_ROW].float().abs().argmax())
    flipped[FLIPPED_ROW, column] = -flipped[FLIPPED_ROW, column]
    return flipped


def execute(driver: Driver, progress: Callable[[str], None] = lambda name: None) -> Runs:
    """All runs. A variant's own cold run is made only where it reused what it must not have."""
    ids, rows = prompt(driver)
    runs = Runs(driver.block_size)

    def run(name: str, embeds: torch.Tensor | None, allowed: int) -> Run:
        progress(name)
        output, reused = driver.run(ids, None if embeds is None else [(START, embeds)])
        runs.by_name[name] = Run(name, reused, allowed, output)
        return runs[name]

    def cold(name: str, embeds: torch.Tensor | None) -> Run:
        driver.evict()
        return run(name, embeds, 0)

    cold(E1, rows)
    run(E2_WARM, -rows, START)
    cold(E2_COLD, -rows)
    # E2 has filled the cache: an engine that is blind would give it to E1 too, and what must be compared is E1 with E1.
    cold(E1_REFILL, rows)
    run(E1_AGAIN, rows, len(ids))
    flipped = flip_one_bit(rows)
    warm = run(FLIP_WARM, flipped, START + FLIPPED_ROW), run(BARE_WARM, None, START)
    for warm_run, name, embeds in zip(warm, (FLIP_COLD, BARE_COLD), (flipped, None), strict=True):
        if warm_run.wrongly_reused:
            cold(name, embeds)
    progress("LoRA name against salt")
    driver.evict()
    runs.lora_against_salt = driver.lora_against_salt(ids[:START])
    return runs
