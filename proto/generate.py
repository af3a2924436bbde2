"""Turns proto/*.proto into the code in src/tpy/_proto.

    python proto/generate.py            write it
    python proto/generate.py --check    exit 1 when the committed code is out of step with the .proto files

descriptors.py holds the serialised descriptors, from which tpy._proto builds Google's message classes in a descriptor pool of its
own. messages/ holds betterproto2's dataclasses and the service bases. Needs grpcio-tools, for its protoc, and
betterproto2_compiler with ruff, which formats what it generates.
"""

from __future__ import annotations

import argparse
import base64
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
GENERATED = SOURCES.parent / "src" / "tpy" / "_proto"
MESSAGES = "messages"
DESCRIPTORS = "descriptors.py"

TEMPLATE = '''\
# Written by proto/generate.py from {names}. Do not edit.
"""The serialised FileDescriptorSet of proto/*.proto, in base64; dependencies before the files that use them."""

FILE_DESCRIPTOR_SET = """
{text}
"""
'''

PACKAGE_TEXT = '"""What betterproto2 makes of proto/*.proto: one package per protobuf package. Written by proto/generate.py."""\n'


def run_protoc(sources: Sequence[Path], *options: str) -> None:
    """Compile `sources`. Raises SystemExit with protoc's status when one is wrong."""
    # The plugin and ruff are programs beside this Python; ruff takes the line length from the project, so the folder matters.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={SOURCES}", *options]
    done = subprocess.run(
        [*command, *(source.name for source in sources)],
        cwd=SOURCES,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        print(done.stdout, done.stderr, file=sys.stderr)
        raise SystemExit(done.returncode)


def render_descriptors(sources: Sequence[Path], scratch: Path) -> str:
    """The text of descriptors.py."""
    out = scratch / "descriptors.bin"
    run_protoc(sources, "--include_imports", f"--descriptor_set_out={out}")
    encoded = base64.b64encode(out.read_bytes()).decode("ascii")
    names = ", ".join(source.name for source in sources)
    return TEMPLATE.format(names=names, text="\n".join(textwrap.wrap(encoded, 120)))


def render_messages(sources: Sequence[Path], scratch: Path) -> dict[str, str]:
    """The files of messages/: path below it, and text."""
    out = scratch / MESSAGES
    out.mkdir()
    run_protoc(
        sources, f"--python_betterproto2_out={out}", "--python_betterproto2_opt=client_generation=none,server_generation=async"
    )
    files = {path.relative_to(out).as_posix(): path.read_text(encoding="utf-8") for path in sorted(out.rglob("*.py"))}
    return {**files, "__init__.py": PACKAGE_TEXT}


def render() -> dict[str, str]:
    """Every generated file: path below src/tpy/_proto, and text."""
    sources = sorted(SOURCES.glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        files = {DESCRIPTORS: render_descriptors(sources, Path(folder))}
        for name, text in render_messages(sources, Path(folder)).items():
            files[f"{MESSAGES}/{name}"] = text
    return files


def committed() -> dict[str, str]:
    """The generated files that are there now."""
    paths = [GENERATED / DESCRIPTORS, *sorted((GENERATED / MESSAGES).rglob("*.py"))]
    return {path.relative_to(GENERATED).as_posix(): path.read_text(encoding="utf-8") for path in paths if path.exists()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the code, or with --check only compare; the exit status."""
    parser = argparse.ArgumentParser(description="Generate the code in src/tpy/_proto from proto/*.proto.")
    parser.add_argument("--check", action="store_true", help="fail when the committed code is out of step")
    options = parser.parse_args(arguments)
    files, present = render(), committed()
    wrong = sorted(name for name in files.keys() | present.keys() if files.get(name) != present.get(name))
    if options.check:
        for name in wrong:
            print(f"{GENERATED / name} is out of step with proto/*.proto: run `python proto/generate.py`", file=sys.stderr)
        return 1 if wrong else 0
    shutil.rmtree(GENERATED / MESSAGES, ignore_errors=True)
    for name, text in files.items():
        target = GENERATED / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
