"""gpukey audit | fingerprint | keygen | info. Errors are one line on stderr and exit code 2."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Sequence

from gpukey import __version__

EXPECTED = (ImportError, OSError, RuntimeError, TypeError, ValueError)
"""Errors whose words say enough; any other is printed with its name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.command(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read us has seen enough; the interpreter must not fail on the same pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        # Whatever went wrong is exit code 2: an exception that leaves Python is 1, which says of an engine that it reuses
        # what it must not.
        kind = "" if isinstance(error, EXPECTED) else f"{type(error).__name__}: "
        print(f"gpukey: {kind}{' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpukey", description="Keyed fingerprints of embedding rows.")
    parser.add_argument("--version", action="version", version=f"gpukey {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    audit = commands.add_parser(
        "audit",
        help="ask an engine whether it reuses KV across different embeddings",
        epilog="Exit code: 0 no wrong reuse, 1 wrong reuse, 2 it could not run, 3 outputs not comparable.",
    )
    audit.add_argument("--engine", default="gpukey", help="gpukey (default), vllm or lmdeploy, as installed here")
    audit.add_argument(
        "--model", metavar="DIR", help="a checkpoint in Hugging Face layout (default: a tiny random Qwen2)"
    )
    audit.add_argument(
        "--identity",
        choices=("content", "tokens"),
        default="content",
        help="what the engine keys: content (default), or token ids alone, which is wrong",
    )
    audit.add_argument(
        "--block-size", type=_positive, default=16, metavar="N", help="tokens in a KV block (default 16)"
    )
    audit.add_argument("--dtype", help="of the model, by torch name (default: float32 on a CPU, else the checkpoint's)")
    audit.add_argument("--device", default="cpu", help="torch device (default cpu)")
    audit.add_argument("--max-tokens", type=_positive, default=16, metavar="N", help="output tokens a run (default 16)")
    audit.add_argument(
        "--lora-salt", action="store_true", help="only ask whether a LoRA name and a cache salt share keys"
    )
    audit.add_argument(
        "--plugin",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="with or without gpukey's hooks, for engines that take them (default: as the environment says)",
    )
    audit.add_argument("--json", action="store_true", help="print one JSON object")
    audit.set_defaults(command=_audit)

    fingerprint = commands.add_parser(
        "fingerprint", help="fingerprints of tensors in a file, under the configured secret"
    )
    fingerprint.add_argument("file", metavar="FILE.safetensors")
    fingerprint.add_argument(
        "tensor", nargs="?", metavar="TENSOR", help="print each row of it (default: one span fingerprint a tensor)"
    )
    fingerprint.add_argument("--digest-size", type=int, choices=(16, 32), default=16)
    fingerprint.set_defaults(command=_fingerprint)

    keygen = commands.add_parser("keygen", help="print a new secret for GPUKEY_SECRET or GPUKEY_SECRET_FILE")
    keygen.add_argument("--out", metavar="FILE", help="write it to a new file that only you can read")
    keygen.set_defaults(command=_keygen)

    info = commands.add_parser("info", help="versions, backends, why one is missing, and how fast each is here")
    info.add_argument("--no-speed", action="store_true", help="measure nothing")
    info.add_argument("--json", action="store_true", help="print one JSON object")
    info.set_defaults(command=_info)
    return parser


def _audit(options: argparse.Namespace) -> int:
    from gpukey.audit.command import audit

    return audit(options)


def _fingerprint(options: argparse.Namespace) -> int:
    from gpukey.tensors_file import print_fingerprints

    print_fingerprints(options.file, options.tensor, options.digest_size)
    return 0


def _keygen(options: argparse.Namespace) -> int:
    secret = secrets.token_hex(32)
    if options.out is None:
        print(secret)
        return 0
    with os.fdopen(os.open(options.out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(secret + "\n")
    return 0


def _info(options: argparse.Namespace) -> int:
    from gpukey.info import print_info

    print_info(speed=not options.no_speed, as_json=options.json)
    return 0


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value
