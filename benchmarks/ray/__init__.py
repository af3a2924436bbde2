"""tpy on Ray Serve beside what else one can do there: `python -m benchmarks.ray`, in a private network (`make bench-ray`)."""
