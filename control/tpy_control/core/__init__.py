"""The decisions of the control plane, without I/O: values in, values out.

From pictures of model directories, the version policy, load and unload requests, what was desired before and what has failed,
`ControlCore` decides what is desired now and what is rejected. `Settling` decides when a directory is quiet enough to be
used. `index` merges both halves of the store into what callers see. Nothing here reads a clock, a file or the store.
"""
