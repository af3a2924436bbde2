"""The decisions of the control plane, without I/O: values in, values out.

From scans of model directories, the version policy, load and unload requests, the previous desired state and failures,
`ControlCore` decides the desired state and the rejections. `Debouncer` decides when a directory has stopped changing. `index`
merges both halves of the store for callers. Nothing here reads a clock, a file or the store.
"""
