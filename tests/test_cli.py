"""The command line: what it prints, its exit codes, and one line for whatever goes wrong."""

import json
import os
import pathlib
import stat
import subprocess
import sys

import pytest
import torch

import gpukey
from gpukey import cli, info
from gpukey.cli import main
from gpukey.tensors_file import print_fingerprints

SECRET = "a secret for tests, long enough"


@pytest.fixture
def tensors(tmp_path, monkeypatch):
    from safetensors.torch import save_file

    monkeypatch.setenv("GPUKEY_SECRET", SECRET)
    monkeypatch.delenv("GPUKEY_SECRET_FILE", raising=False)
    content = {"rows": torch.randn(5, 12).bfloat16(), "bias": torch.randn(12), "small": torch.ones(2, 3)}
    save_file(content, tmp_path / "file.safetensors")
    return str(tmp_path / "file.safetensors"), content


def test_fingerprints_of_a_file(tensors, capsys, secret):
    path, content = tensors
    assert main(["fingerprint", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["bias", "rows", "small"]
    assert lines[0].startswith("-")
    assert "not [num_rows, hidden]" in lines[0]
    span = gpukey.fingerprint_spans(content["rows"], torch.tensor([0, 5]), secret=secret)
    assert lines[1].split()[0] == span.numpy().tobytes().hex()


@pytest.mark.parametrize("size", [16, 32])
def test_fingerprints_of_a_tensor(tensors, capsys, secret, size):
    path, content = tensors
    assert main(["fingerprint", path, "rows", "--digest-size", str(size)]) == 0
    want = gpukey.fingerprint_rows(content["rows"], secret=secret, digest_size=size)
    assert capsys.readouterr().out.splitlines() == [bytes(row).hex() for row in want.numpy()]


def one_line_error(arguments, capsys, words):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("gpukey: ")
    assert words in line
    return line


def test_what_cannot_be_read(tensors, tmp_path, capsys, monkeypatch):
    path, _ = tensors
    one_line_error(["fingerprint", path, "nonesuch"], capsys, "no tensor 'nonesuch'; it has bias, rows, small")
    one_line_error(["fingerprint", path, "bias"], capsys, "shape [12]")
    one_line_error(["fingerprint", str(tmp_path / "nonesuch")], capsys, "nonesuch")
    one_line_error(["fingerprint", str(tmp_path)], capsys, str(tmp_path))
    whole = pathlib.Path(path).read_bytes()
    for number, content in enumerate((b"", b"\xff" * 100, whole[:20], whole[:-1])):
        broken = tmp_path / f"broken{number}"
        broken.write_bytes(content)
        one_line_error(["fingerprint", str(broken)], capsys, "safetensors")
    monkeypatch.setenv("GPUKEY_SECRET", "short")
    line = one_line_error(["fingerprint", path], capsys, "5 bytes")
    assert "short" not in line
    monkeypatch.delenv("GPUKEY_SECRET")
    one_line_error(["fingerprint", path], capsys, "GPUKEY_SECRET")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonesuch"],
        ["audit", "--block-size", "0"],
        ["audit", "--block-size", "x"],
        ["audit", "--block-size", "1e3"],
        ["audit", "--max-tokens", "-1"],
        ["audit", "--identity", "none"],
        ["fingerprint"],
        ["fingerprint", "f", "t", "--digest-size", "8"],
        ["keygen", "extra"],
    ],
)
def test_wrong_usage(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    words = capsys.readouterr().err
    assert "Traceback" not in words
    assert "_positive" not in words


def test_keygen(tmp_path, capsys):
    assert main(["keygen"]) == 0
    first = capsys.readouterr().out
    assert main(["keygen"]) == 0
    assert capsys.readouterr().out != first
    assert len(bytes.fromhex(first.strip())) == 32
    path = tmp_path / "secret"
    assert main(["keygen", "--out", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    from_file = gpukey.Secret.from_env({"GPUKEY_SECRET_FILE": str(path)})
    assert from_file == gpukey.Secret.from_env({"GPUKEY_SECRET": path.read_text().strip()})
    before = path.read_bytes()
    one_line_error(["keygen", "--out", str(path)], capsys, "exists")
    assert path.read_bytes() == before


def test_info(capsys, monkeypatch):
    monkeypatch.setenv("GPUKEY_SECRET", SECRET)
    monkeypatch.setattr(info, "NUM_BYTES", 1 << 20)
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["torch"] == torch.__version__ or found["versions"]["torch"]
    assert set(found["backends"]) == {"python", "cpu", "cuda", "nvrtc", "triton"}
    assert found["backends"]["python"]["gb_per_s"] > 0
    assert all((b["missing"] is None) == (b["gb_per_s"] is not None) for b in found["backends"].values())
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert f"key id {gpukey.Secret(SECRET.encode()).key_id}" in text
    assert SECRET not in text


def test_info_says_why_a_half_was_not_built(tmp_path, capsys, monkeypatch):
    path = tmp_path / "report.json"
    path.write_text('{"_cpu": {"built": true}, "_cuda": {"built": false, "reason": "no nvcc on this machine"}}')
    monkeypatch.setattr(info, "REPORT", str(path))
    assert main(["info", "--no-speed"]) == 0
    out = capsys.readouterr().out
    assert "build of _cuda: no nvcc on this machine" in out
    assert "_cpu: " not in out


def test_a_reader_that_leaves_early():
    code = "import sys; from gpukey.cli import main; sys.exit(main(['keygen']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == ""


def test_fingerprints_for_a_reader_that_leaves_early(tensors):
    """What became of the pipe is no fault of the file."""
    code = f"import sys; from gpukey.cli import main; sys.exit(main(['fingerprint', {tensors[0]!r}, 'rows']))"
    command = [sys.executable, "-u", "-c", code]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(60) == 0


def test_a_full_disk_is_no_fault_of_the_file(tensors, capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("builtins.print", full)
    with pytest.raises(OSError, match="No space left"):
        print_fingerprints(tensors[0], "rows", 16)


@pytest.mark.parametrize("error", [AssertionError("Torch not compiled with CUDA"), KeyError("x"), MemoryError()])
def test_no_error_is_taken_for_a_verdict(error, capsys, monkeypatch):
    """Exit code 1 says that an engine reuses what it must not; an exception that leaves Python is 1 too."""

    def broken(options):
        raise error

    monkeypatch.setattr(cli, "_audit", broken)
    one_line_error(["audit"], capsys, type(error).__name__)


def test_an_interrupt(monkeypatch):
    def interrupted(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_keygen", interrupted)
    assert main(["keygen"]) == 130


def test_as_a_module(fresh_python):
    code = "import runpy, sys; sys.argv = ['gpukey', '--version']; runpy.run_module('gpukey', run_name='__main__')"
    assert fresh_python(code).strip() == f"gpukey {gpukey.__version__}"
