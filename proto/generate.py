"""Turns proto/*.proto into src/tpy/_proto/descriptors.py, and the files of a folder there into `FOLDER_descriptors.py`.

    python proto/generate.py            write it
    python proto/generate.py --check    exit 1 when the committed code is out of step with the .proto files

They hold the serialised descriptors, from which tpy._proto builds Google's message classes in its own descriptor pool. Needs
grpcio-tools, for its protoc.
"""

from __future__ import annotations

import argparse
import base64
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
FOLDER = SOURCES.parent / "src" / "tpy" / "_proto"
GENERATED = {
    SOURCES: FOLDER / "descriptors.py",
    SOURCES / "tensorflow_serving": FOLDER / "tensorflow_serving_descriptors.py",
}
"""The generated files, by the folder of their sources."""

TEMPLATE = '''\
# Written by proto/generate.py from {names}. Do not edit.
"""The serialised FileDescriptorSet of {folder}/*.proto, in base64; dependencies come first."""

FILE_DESCRIPTOR_SET = """
{text}
"""
'''


def render(sources: Path) -> str:
    """Returns the text of the descriptors. Raises SystemExit with protoc's status when a .proto file is wrong."""
    names = sorted(source.name for source in sources.glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "descriptors.bin"
        options = [f"--proto_path={sources}", "--include_imports", f"--descriptor_set_out={out}"]
        command = [sys.executable, "-m", "grpc_tools.protoc", *options, *names]
        done = subprocess.run(command, cwd=sources, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(done.stdout, done.stderr, file=sys.stderr)
            raise SystemExit(done.returncode)
        encoded = base64.b64encode(out.read_bytes()).decode("ascii")
    folder = sources.relative_to(SOURCES.parent)
    return TEMPLATE.format(names=", ".join(names), folder=folder, text="\n".join(textwrap.wrap(encoded, 120)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the code, or with --check only compare; the exit status."""
    parser = argparse.ArgumentParser(description="Generate the code in src/tpy/_proto from proto/*.proto.")
    parser.add_argument("--check", action="store_true", help="fail when the committed code is out of step")
    options = parser.parse_args(arguments)
    status = 0
    for sources, generated in GENERATED.items():
        text = render(sources)
        if not options.check:
            generated.write_text(text, encoding="utf-8")
        elif text != generated.read_text(encoding="utf-8"):
            print(f"{generated} is out of step with {sources}/*.proto: run `python proto/generate.py`", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    raise SystemExit(main())
