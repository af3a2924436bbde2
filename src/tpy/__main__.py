"""The programs `tpy` (also `python -m tpy`) and `tritonserver`.

The garbage collector is off while they import: it would walk all modules again and again, a fifth of the CPU time of a start.
`tpy.cli` switches it on when the modules are frozen.
"""

import gc


def main() -> None:
    """`tpy`."""
    gc.disable()
    from tpy.cli import main as run

    run()


def tritonserver() -> None:
    """`tritonserver`: start scripts, entry points of containers and Model Analyzer call it by this name."""
    gc.disable()
    from tpy.cli import tritonserver as run

    run()


if __name__ == "__main__":
    main()
