"""From logits to tokens. A request's draw depends on its seed, its logits and how many tokens it has, on nothing else
in the batch.
"""

from __future__ import annotations

import numpy as np
import torch

from gpukey.engine.request import Request


def uniform(seed: int, index: int) -> float:
    """The index-th number in [0, 1) of a seed: counter-based, so that a preempted request draws the same again."""
    return float(np.random.Generator(np.random.Philox(key=seed, counter=index)).random())


def sample(logits: torch.Tensor, requests: list[Request]) -> list[int]:
    """Next token of each request from logits [num_requests, vocab_size]."""
    # Exact, and four times faster on a CPU than in two bytes.
    chosen = torch.argmax(logits.float() if logits.dtype.itemsize == 2 else logits, dim=-1)
    drawn = [i for i, request in enumerate(requests) if request.params.temperature > 0]
    if drawn:
        chosen[drawn] = draw(logits[drawn], [requests[i] for i in drawn])
    tokens: list[int] = chosen.tolist()
    return tokens


def draw(logits: torch.Tensor, requests: list[Request]) -> torch.Tensor:
    """Inverse-CDF draw over the tokens that top-k and top-p keep, most likely first; [num_requests] int64."""
    device, params = logits.device, [request.params for request in requests]

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)[:, None]

    scaled = torch.nan_to_num(logits.double()) / column([p.temperature for p in params])
    ranked, tokens = torch.sort(scaled, dim=-1, descending=True, stable=True)
    rank = torch.arange(ranked.shape[1], device=device)
    ranked = ranked.masked_fill(rank >= column([p.top_k or ranked.shape[1] for p in params]), -torch.inf)
    probs = torch.softmax(ranked, dim=-1)
    before = probs.cumsum(-1) - probs
    probs = probs.masked_fill((before >= column([p.top_p for p in params])) & (rank > 0), 0.0)
    cdf = probs.cumsum(-1)
    u = column([uniform(request.seed, len(request.output_ids)) for request in requests])
    kept = (probs > 0).sum(-1, keepdim=True)
    # u * total may round up to the total itself: stay on the last kept token.
    place = torch.minimum(torch.searchsorted(cdf, u * cdf[:, -1:], right=True), kept - 1)
    return tokens.gather(1, place)[:, 0]


def logprobs(logits: torch.Tensor, requests: list[Request], tokens: list[int]) -> list[dict[int, float] | None]:
    """For requests that ask: {token id: log probability} of the chosen token and of the n best, from the raw logits."""
    wanted = [i for i, request in enumerate(requests) if request.params.logprobs is not None]
    result: list[dict[int, float] | None] = [None] * len(requests)
    if not wanted:
        return result
    logs = torch.log_softmax(logits[wanted].double(), dim=-1).cpu()
    for row, i in zip(logs, wanted, strict=True):
        best = torch.topk(row, min(requests[i].params.logprobs or 0, row.shape[0]))
        result[i] = {tokens[i]: float(row[tokens[i]])}
        result[i] |= dict(zip(best.indices.tolist(), best.values.tolist(), strict=True))  # type: ignore[operator]
    return result
