"""The audit's table, and the same as JSON."""

from __future__ import annotations

import json
from typing import Any

from gpukey.audit import plan
from gpukey.audit.plan import Runs
from gpukey.audit.protocol import Driver
from gpukey.audit.verdict import Verdict, first_difference

# What a run's output is compared with.
_COMPARED = {
    plan.E2_WARM: plan.E2_COLD,
    plan.E1_REFILL: plan.E1,
    plan.E1_AGAIN: plan.E1,
    plan.FLIP_WARM: plan.FLIP_COLD,
    plan.BARE_WARM: plan.BARE_COLD,
}


def as_table(driver: Driver, runs: Runs, verdict: Verdict) -> str:
    """Lines for a reader; the verdict comes last."""
    rows = [("run", "reused", "may reuse", "outputs")]
    for run in runs.by_name.values():
        rows.append((run.name, str(run.reused), str(run.allowed), _outputs(runs, run.name)))
    if runs.lora_against_salt is not None:
        rows.append(('cache salt "X" after LoRA "X"', str(runs.lora_against_salt), "0", ""))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [f"{driver.name}, block size {driver.block_size}", f"prompt: {_prompt()}", ""]
    if driver.note:
        lines.insert(1, driver.note)
    for row in rows:
        name, *numbers, outputs = (
            cell.rjust(w) if 0 < i < 3 else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([name, *numbers, outputs]).rstrip())
    lines += ["", f"{verdict.line}: {verdict.reason}"]
    if verdict.shared_by_lora_and_salt:
        lines.append("LORA NAME AND CACHE SALT SHARE KEYS: a tenant can name its salt after another's adapter")
    return "\n".join(lines)


def as_json(driver: Driver, runs: Runs, verdict: Verdict) -> str:
    """One object: engine, prompt, runs, verdict, exit_code."""
    report: dict[str, Any] = {
        "engine": driver.name,
        "note": driver.note,
        "block_size": driver.block_size,
        "prompt": {"text_before": plan.TEXT_BEFORE, "rows": plan.ROWS, "text_after": plan.TEXT_AFTER},
        "runs": [
            {
                "name": run.name,
                "reused_tokens": run.reused,
                "may_reuse_tokens": run.allowed,
                "output_ids": run.output,
                "compared_with": _COMPARED.get(run.name) if _COMPARED.get(run.name) in runs.by_name else None,
                "first_difference": _difference(runs, run.name),
            }
            for run in runs.by_name.values()
        ],
        "lora_against_salt_reused_tokens": runs.lora_against_salt,
        "verdict": verdict.line,
        "reason": verdict.reason,
        "exit_code": verdict.exit_code,
    }
    return json.dumps(report, indent=2)


def _prompt() -> str:
    return f"{plan.TEXT_BEFORE} text tokens + {plan.ROWS} replaced rows + {plan.TEXT_AFTER} text tokens"


def _difference(runs: Runs, name: str) -> int | None:
    other = _COMPARED.get(name)
    return first_difference(runs[name], runs[other]) if other in runs.by_name else None


def _outputs(runs: Runs, name: str) -> str:
    other = _COMPARED.get(name)
    if other not in runs.by_name or runs[name].output is None:
        return ""
    position = _difference(runs, name)
    return f'as "{other}"' if position is None else f'differ from "{other}" at position {position}'
