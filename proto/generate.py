"""Turns proto/*.proto into src/tpy/_proto/descriptors.py.

    python proto/generate.py            write the module
    python proto/generate.py --check    exit 1 when the committed module is out of step with the .proto files

The module holds the serialised descriptors, not message classes: tpy._proto builds those in a descriptor pool of its own.
Needs grpcio-tools, for its protoc.
"""

from __future__ import annotations

import argparse
import base64
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path

from grpc_tools import protoc

SOURCES = Path(__file__).resolve().parent
GENERATED = SOURCES.parent / "src" / "tpy" / "_proto" / "descriptors.py"

TEMPLATE = '''\
# Written by proto/generate.py from {names}. Do not edit.
"""The serialised FileDescriptorSet of proto/*.proto, in base64; dependencies before the files that use them."""

FILE_DESCRIPTOR_SET = """
{text}
"""
'''


def compile_descriptors(sources: Sequence[Path]) -> bytes:
    """The serialised FileDescriptorSet of `sources`. Raises SystemExit with protoc's status when one is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "descriptors.bin"
        arguments = ["protoc", f"--proto_path={SOURCES}", "--include_imports", f"--descriptor_set_out={out}"]
        status = protoc.main([*arguments, *(source.name for source in sources)])
        if status != 0:
            raise SystemExit(status)
        return out.read_bytes()


def render() -> str:
    """The text of the generated module."""
    sources = sorted(SOURCES.glob("*.proto"))
    encoded = base64.b64encode(compile_descriptors(sources)).decode("ascii")
    names = ", ".join(source.name for source in sources)
    return TEMPLATE.format(names=names, text="\n".join(textwrap.wrap(encoded, 120)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the module, or with --check only compare; the exit status."""
    parser = argparse.ArgumentParser(description="Generate src/tpy/_proto from proto/*.proto.")
    parser.add_argument("--check", action="store_true", help="fail when the committed code is out of step")
    options = parser.parse_args(arguments)
    text = render()
    if options.check:
        if GENERATED.exists() and GENERATED.read_text(encoding="utf-8") == text:
            return 0
        print(f"{GENERATED} is out of step with proto/*.proto: run `python proto/generate.py`", file=sys.stderr)
        return 1
    GENERATED.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
