"""gpukey's Triton kernels compiled ahead of time, without a driver or a GPU."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def kernels(name: str = "fingerprint") -> Any:
    """gpukey.triton_kernels.<name>; from the source tree where gpukey is not installed but on PYTHONPATH."""
    if importlib.util.find_spec("gpukey.triton_kernels") is None:
        folder = ROOT / "triton_kernels"
        spec = importlib.util.spec_from_file_location(
            "gpukey.triton_kernels", folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return importlib.import_module(f"gpukey.triton_kernels.{name}")


@functools.cache
def compiled(
    name: str, target: str, pointers: tuple[tuple[str, str, bool], ...], constants: tuple[tuple[str, Any], ...]
):
    """A compiled kernel, as triton.compile returns it.

    target     "sm_90" or "gfx942"
    pointers   (parameter, type such as "*u8", is a multiple of 16) for each pointer
    constants  (parameter, value) for each constexpr, and for a parameter that is None
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(kernels(), name)
    types = {parameter: kind for parameter, kind, _ in pointers}
    constant = dict(constants)
    multiples = {parameter for parameter, _, multiple in pointers if multiple}
    signature, attributes = {}, {}
    for i, parameter in enumerate(function.params):
        if parameter.name in constant:
            signature[parameter.name] = "constexpr"
        else:
            signature[parameter.name] = types.get(parameter.name) or parameter.annotation_type or "i32"
        if parameter.name in multiples and not parameter.do_not_specialize_on_alignment:
            attributes[(i,)] = [["tt.divisibility", 16]]
    amd = target.startswith("gfx")
    gpu = GPUTarget("hip", target, 64) if amd else GPUTarget("cuda", int(target.removeprefix("sm_")), 32)
    source = ASTSource(fn=function, signature=signature, constexprs=constant, attrs=attributes)
    return triton.compile(source, target=gpu, options={"num_warps": 1})
