"""The prompts of bench/engine.py, the same in every engine's process; and how a median is taken."""

import statistics
import time

import torch

ROWS, HIDDEN, TEXT, CONCURRENT, LONG, VOCAB = 448, 896, 32, 8, 32, 150_000


def rows(number: int, dtype: torch.dtype) -> torch.Tensor:
    """[448, 896], of the size of the model's own embeddings."""
    return (0.02 * torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(number))).to(dtype)


def texts(number: int) -> list[list[int]]:
    """Eight prompts of 32 ids."""
    ids = torch.randint(0, VOCAB, (CONCURRENT, TEXT), generator=torch.Generator().manual_seed(1000 + number))
    return ids.tolist()


def seconds(function, clock: str) -> float:
    """Of the wall's clock, or of this process' own, which others on the machine do not slow down."""
    now = {"wall": time.perf_counter, "cpu": time.process_time}[clock]
    began = now()
    function()
    return now() - began


def medians(rounds: int, cases: dict, clock: str = "wall") -> dict[str, float]:
    """Median seconds of each case; `cases` maps a name to a function of the round, and cases alternate in every round."""
    times = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, function in cases.items():
            taken = seconds(lambda function=function, number=number: function(number), clock)
            if number:  # the first round warms up
                times[name].append(taken)
    return {name: statistics.median(values) for name, values in times.items()}
