"""What an import brings along, and that data flows one way: no module imports one that stands after it."""

import ast
import pathlib

import pytest

import gpukey

PACKAGE = pathlib.Path(gpukey.__file__).parent
# Each line may import from the lines above it. Where two stand together they may import each other.
ORDER = [
    {"reference"},
    {"secret", "device_keys", "streams"},
    {"checks"},
    {"backends"},
    {"ops"},
    {"intake", "handle"},
    {"fingerprint"},
    {"envelope"},
    {"fields", "spans", "token_ids", "_checks", "overlays", "root", "keys"},
    {"cache", "_cache_check"},
    {"engine"},
    {"integrations"},
    {"audit"},
    {"info", "tensors_file"},
    {"cli", "__main__"},
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}


def imported(path):
    """Names of gpukey's parts that the file imports at run time, at any depth, type-checking blocks left out."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("gpukey."))
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "gpukey":
            parts = node.module.split(".")
            yield from [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names if alias.name in RANK]


def parts():
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if name not in ("__init__", "triton_kernels"):
            yield name, path


def test_every_part_has_its_place():
    assert {name for name, _ in parts()} <= set(RANK)


def test_no_arrow_runs_back():
    back = [
        f"{path.relative_to(PACKAGE)} imports {other}"
        for name, path in parts()
        for other in imported(path)
        if other in RANK and RANK[other] > RANK[name]
    ]
    assert not back


def test_files_are_short():
    long = {str(path): lines for _, path in parts() if (lines := path.read_text().count("\n")) > 400}
    assert not long


@pytest.mark.parametrize(
    "module", ["gpukey", "gpukey.secret", "gpukey.keys", "gpukey.cache", "gpukey.reference", "gpukey.envelope"]
)
def test_works_with_torch_absent(fresh_python, module):
    code = f"""
import sys
sys.modules["torch"] = None
import {module}
import gpukey
secret = gpukey.Secret(b"a secret for tests, long enough")
assert secret.host_key("row", "bfloat16", 8, 16)
keys = gpukey.block_keys(range(32), block_size=16, root=gpukey.Root(model="m", dtype="bfloat16"), secret=secret)
assert len(keys) == 2 and gpukey.PrefixCache(num_blocks=4, block_size=16).match(keys, num_tokens=32).num_cached_tokens == 0
print("fine")
"""
    assert fresh_python(code).strip() == "fine"


def test_importing_everything_is_quiet_and_light(fresh_python):
    """pytorch PR#46572: no CUDA context, no engine, no kernel compiler, nothing printed."""
    code = """
import sys, torch
before = set(sys.modules)
import gpukey, gpukey.ops, gpukey.fingerprint, gpukey.envelope, gpukey.keys, gpukey.cache, gpukey.cli
torch.ops.gpukey.fingerprint_rows.default
torch.ops.gpukey.stage_rows.out
heavy = {"triton", "cupy", "transformers", "vllm", "sglang", "lmdeploy", "tensorrt_llm", "gpukey.engine", "rich"}
assert not heavy & (set(sys.modules) - before), heavy & set(sys.modules)
assert not torch.cuda.is_initialized()
gpukey.fingerprint_rows(torch.ones(2, 4), secret=gpukey.Secret.random())
gpukey.fingerprint_rows_async(torch.ones(2, 4), secret=gpukey.Secret.random()).result()
assert not torch.cuda.is_initialized()
"""
    assert fresh_python(code) == ""


def test_importing_asks_torch_for_no_device(fresh_python):
    """vllm#12754: torch forbids CUDA in forks of a process that has asked, even without a context."""
    code = """
import torch
torch.version.cuda = "13.0"
def asked(*arguments):
    raise SystemExit("torch was asked for a device")
torch.cuda.is_available = torch.cuda.device_count = asked
import gpukey, gpukey.ops, gpukey.fingerprint
secret = gpukey.Secret.random()
gpukey.fingerprint_rows_async(torch.ones(2, 4), secret=secret).result()
"""
    assert fresh_python(code) == ""


def test_every_public_name_is_there():
    assert all(getattr(gpukey, name) is not None for name in gpukey.__all__)
    with pytest.raises(AttributeError, match="no attribute 'fingerprint_row'"):
        gpukey.fingerprint_row  # noqa: B018
