"""The audit of our own engine: blind by tokens, clean by content; on the real checkpoint too where it is there."""

import json
import os

import pytest
import torch

from gpukey.audit import drivers, plan, verdict
from gpukey.audit.protocol import Options
from gpukey.cli import main


def runs_of(**options):
    driver = drivers.create(Options(**options))
    try:
        runs = plan.execute(driver)
    finally:
        driver.close()
    return runs, verdict.judge(runs)


@pytest.mark.parametrize("block_size", [16, 7])
def test_by_content(block_size):
    """lmdeploy#4933, the seed's own bug: content is keyed."""
    runs, judged = runs_of(block_size=block_size)
    assert judged.line == verdict.NONE_FOUND
    assert runs[plan.E2_WARM].reused == 64 // block_size * block_size
    assert runs[plan.E2_WARM].output == runs[plan.E2_COLD].output
    assert runs[plan.E1_AGAIN].reused >= 512
    assert runs[plan.BARE_WARM].reused == 64 // block_size * block_size
    assert runs.lora_against_salt == 0


def test_by_tokens():
    runs, judged = runs_of(identity="tokens")
    assert judged.line == verdict.BLIND
    assert runs[plan.E2_WARM].reused >= 496
    assert runs[plan.E2_WARM].output != runs[plan.E2_COLD].output


def test_the_command(capsys):
    assert main(["audit", "--json", "--max-tokens", "4"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"] == verdict.NONE_FOUND
    assert main(["audit", "--identity", "tokens", "--max-tokens", "4"]) == 1
    out = capsys.readouterr()
    assert verdict.BLIND in out.out
    assert main(["audit", "--lora-salt"]) == 0
    assert "apart" in capsys.readouterr().out
    assert main(["audit", "--lora-salt", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["lora_against_salt_reused_tokens"], data["exit_code"]) == (0, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--engine", "nonesuch"],
        ["--engine", "../cli"],
        ["--model", "/nonesuch"],
        ["--dtype", "float33"],
        ["--dtype", "int32"],
        ["--dtype", "float8_e4m3fn"],
        ["--engine", "vllm", "--identity", "tokens"],
        ["--device", "warp"],
        *([] if torch.cuda.is_available() else [["--device", "cuda"]]),
        ["--model", "a\nb"],
    ],
)
def test_hostile_arguments_are_one_line(capsys, arguments):
    assert main(["audit", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if line.startswith("gpukey: ")]
    assert len(lines) == 1
    assert captured.err.rstrip().endswith(lines[0])


@pytest.mark.model
@pytest.mark.parametrize("identity", ["tokens", "content"])
def test_the_real_checkpoint(identity):
    runs, judged = runs_of(model=os.environ["GPUKEY_MODEL_DIR"], identity=identity, max_tokens=8)
    if identity == "tokens":
        assert judged.line == verdict.BLIND
        assert runs[plan.E2_WARM].reused >= 496
        assert runs[plan.E2_WARM].output != runs[plan.E2_COLD].output
    else:
        assert judged.line == verdict.NONE_FOUND
        assert runs[plan.E2_WARM].reused == 64
        assert runs[plan.E2_WARM].output == runs[plan.E2_COLD].output
        assert runs[plan.E1_AGAIN].reused >= 512
        assert runs[plan.E1_AGAIN].output == runs[plan.E1].output
