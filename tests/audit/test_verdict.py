"""The audit's runs and verdicts on engines that are right, blind, forgetful or not repeatable."""

import hashlib
import json

import pytest
import torch

from gpukey.audit import plan, report, verdict
from gpukey.audit.verdict import BLIND, EQUAL, NONE_FOUND, NOT_COMPARABLE


class FakeEngine:
    """A prefix cache whose outputs are a hash of the KV that was really used; `identify` is what a block key sees of a
    position."""

    name, note, vocab_size, hidden, dtype, scale, block_size = "fake 1", None, 1000, 8, torch.float32, 0.02, 16

    def __init__(self, identify, *, evicts=True, repeatable=True, sees_rows=True, outputs=True, lora_against_salt=None):
        self.identify, self.evicts, self.repeatable, self.sees_rows, self.outputs = (
            identify,
            evicts,
            repeatable,
            sees_rows,
            outputs,
        )
        self.lora, self.cache, self.calls, self.closed = lora_against_salt, {}, 0, False

    def run(self, token_ids, embeds):
        self.calls += 1
        content = [(token, None) for token in token_ids]
        for start, rows in embeds or ():
            for i, row in enumerate(rows):
                content[start + i] = (token_ids[start + i], row.numpy().tobytes())
        keys = [self.identify(*position) for position in content]
        reused = 0
        while reused + 16 < len(keys) and tuple(keys[: reused + 16]) in self.cache:
            reused += 16
        kv = self.cache[tuple(keys[:reused])] + content[reused:] if reused else content
        for end in range(16, len(keys) + 1, 16):
            self.cache.setdefault(tuple(keys[:end]), kv[:end])
        seen = [position if self.sees_rows else position[0] for position in kv]
        digest = hashlib.sha256(repr((seen, None if self.repeatable else self.calls)).encode()).digest()
        return (list(digest[:8]) if self.outputs else None), reused

    def evict(self):
        if self.evicts:
            self.cache.clear()

    def lora_against_salt(self, token_ids):
        return self.lora

    def close(self):
        self.closed = True


def right(token, row):
    return token, row


def blind(token, row):
    return token


def sampled(token, row):
    """Sees that a row is replaced, and four bytes of it: a flip elsewhere is lost."""
    return token, None if row is None else row[:4]


def unsigned(token, row):
    """Hashes magnitudes: E and -E are one."""
    return token, None if row is None else torch.frombuffer(bytearray(row), dtype=torch.float32).abs().numpy().tobytes()


def judged(engine):
    runs = plan.execute(engine)
    return verdict.judge(runs), runs


def test_a_right_engine():
    result, runs = judged(FakeEngine(right, lora_against_salt=0))
    assert (result.line, result.exit_code) == (NONE_FOUND, 0)
    reused = {name: run.reused for name, run in runs.by_name.items()}
    assert reused == {
        plan.E1: 0,
        plan.E2_WARM: 64,
        plan.E2_COLD: 0,
        plan.E1_REFILL: 0,
        plan.E1_AGAIN: 528,
        plan.FLIP_WARM: 288,
        plan.BARE_WARM: 64,
    }


def test_a_blind_engine():
    result, runs = judged(FakeEngine(blind))
    assert (result.line, result.exit_code) == (BLIND, 1)
    assert runs[plan.E2_WARM].reused == 528
    assert runs[plan.E2_WARM].output != runs[plan.E2_COLD].output
    assert "464 tokens of other content" in result.reason


@pytest.mark.parametrize(("identify", "name"), [(sampled, plan.FLIP_WARM), (unsigned, plan.E2_WARM)])
def test_an_engine_that_sees_part_of_a_row(identify, name):
    result, _ = judged(FakeEngine(identify))
    assert (result.line, result.exit_code) == (BLIND, 1)
    assert f'"{name}"' in result.reason


def test_reuse_that_changes_no_output():
    result, _ = judged(FakeEngine(blind, sees_rows=False))
    assert (result.line, result.exit_code) == (EQUAL, 0)


def test_an_engine_that_does_not_repeat_itself():
    result, _ = judged(FakeEngine(right, repeatable=False))
    assert (result.line, result.exit_code) == (NOT_COMPARABLE, 3)


def test_an_engine_that_keeps_its_cache():
    """Its "cold" run of E2 would be as wrong as the warm one."""
    result, _ = judged(FakeEngine(blind, evicts=False))
    assert result.line == NOT_COMPARABLE
    assert "kept its cache" in result.reason


@pytest.mark.parametrize(("identify", "line"), [(right, NONE_FOUND), (blind, BLIND)])
def test_a_driver_without_outputs(identify, line):
    result, runs = judged(FakeEngine(identify, outputs=False))
    assert result.line == line
    assert runs[plan.E1].output is None


def test_an_engine_that_reuses_nothing_is_named_as_such():
    engine = FakeEngine(right)
    engine.run = lambda token_ids, embeds: ([1], 0)
    result, _ = judged(engine)
    assert result.line == NONE_FOUND
    assert "prefix caching is off" in result.reason


def test_lora_names_that_share_keys_with_salts():
    result, runs = judged(FakeEngine(right, lora_against_salt=48))
    assert (result.line, result.exit_code) == (NONE_FOUND, 1)
    assert "LORA NAME AND CACHE SALT SHARE KEYS" in report.as_table(FakeEngine(right), runs, result)


def test_the_prompt_is_as_described_and_always_the_same():
    ids, rows = plan.prompt(FakeEngine(right))
    again = plan.prompt(FakeEngine(blind))
    assert len(ids) == 64 + 448 + 20
    assert rows.shape == (448, 8)
    assert ids == again[0]
    assert torch.equal(rows, again[1])
    assert ids[64:512] == [0] * 448
    assert all(0 < token < 1000 for token in ids[:64] + ids[512:])
    flipped = plan.flip_one_bit(rows)
    difference = rows.view(torch.int32) ^ flipped.view(torch.int32)
    assert sum(bin(word & 0xFFFFFFFF).count("1") for word in difference.flatten().tolist()) == 1
    assert difference[plan.FLIPPED_ROW].any()


def test_first_difference():
    def run(output):
        return plan.Run("", 0, 0, output)

    assert verdict.first_difference(run([1, 2]), run([1, 2])) is None
    assert verdict.first_difference(run([1, 2]), run([1, 3])) == 1
    assert verdict.first_difference(run([1, 2]), run([1, 2, 3])) == 2
    assert verdict.first_difference(run(None), run([1])) is None


def test_table_and_json_say_the_same():
    engine = FakeEngine(blind, lora_against_salt=0)
    result, runs = judged(engine)
    lines = report.as_table(engine, runs, result).splitlines()
    assert lines[0] == "fake 1, block size 16"
    assert lines[-1].startswith(BLIND + ": ")
    (row,) = [line.split() for line in lines if line.startswith("ids + E2 = -E1 ")]
    assert row[5:7] == ["528", "64"]
    data = json.loads(report.as_json(engine, runs, result))
    assert (data["verdict"], data["exit_code"]) == (BLIND, 1)
    assert [run["name"] for run in data["runs"]] == list(runs.by_name)
    (warm,) = [run for run in data["runs"] if run["name"] == plan.E2_WARM]
    assert (warm["reused_tokens"], warm["may_reuse_tokens"], warm["compared_with"]) == (528, 64, plan.E2_COLD)
    assert warm["first_difference"] is not None
