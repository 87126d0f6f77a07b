"""`gpukey audit`: drive, judge, print."""

from __future__ import annotations

import argparse
import json
import sys

from gpukey.audit import drivers, plan, report, verdict
from gpukey.audit.protocol import Driver, Options


def audit(arguments: argparse.Namespace) -> int:
    """Prints the report of the engine asked for; the exit code."""
    names = ("engine", "model", "identity", "block_size", "dtype", "device", "max_tokens", "lora_salt", "plugin")
    options = Options(**{name: getattr(arguments, name) for name in names})
    driver = drivers.create(options)
    try:
        return _lora_salt(driver, arguments.json) if options.lora_salt else _run(driver, arguments.json)
    finally:
        driver.close()


def _run(driver: Driver, as_json: bool) -> int:
    runs = plan.execute(driver, _progress if sys.stderr.isatty() else _quiet)
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    judged = verdict.judge(runs)
    print((report.as_json if as_json else report.as_table)(driver, runs, judged))
    return judged.exit_code


def _lora_salt(driver: Driver, as_json: bool) -> int:
    shared = driver.lora_against_salt(plan.prompt(driver)[0][: plan.TEXT_BEFORE])
    if as_json:
        code = 3 if shared is None else int(shared > 0)
        found = {"engine": driver.name, "lora_against_salt_reused_tokens": shared, "exit_code": code}
        print(json.dumps(found, indent=2))
        return code
    print(driver.name)
    if shared is None:
        print("this engine has not both LoRA adapters and cache salts here")
        return 3
    print(f'a request with cache salt "X" reused {shared} tokens of one with a LoRA adapter named "X"')
    print("LORA NAME AND CACHE SALT SHARE KEYS" if shared else "LoRA names and cache salts are apart")
    return 1 if shared else 0


def _progress(name: str) -> None:
    sys.stderr.write(f"\r\x1b[Krunning: {name}")
    sys.stderr.flush()


def _quiet(name: str) -> None:
    pass
