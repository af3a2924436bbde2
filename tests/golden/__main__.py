"""`python -m tests.golden`: write the files as the product is now."""

from __future__ import annotations

from .surface import FOLDER, SURFACES

for name, lines in SURFACES.items():
    (FOLDER / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8")
