"""The garbage collector of a program whose imports are done."""

import gc


def collect_garbage() -> None:
    """Collect garbage from now on, but none of what there is. The modules stay: the collector, which stops the process while it
    walks, is to leave them alone. Not the models that are loaded later: what is frozen is freed by reference counts only, and
    model code may leave cycles."""
    gc.freeze()
    gc.enable()
