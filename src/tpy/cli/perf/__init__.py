"""`tpy perf`: the load generator's command, with perf_analyzer's flags. `tpy.load` does the work."""
