"""`tpy perf`: the load generator's command, with perf_analyzer's flags. `tpy_tools.load` does the work."""
