"""Many models in little memory, for real: `python -m tests.fleet` serves 200 ONNX and 40 Python models in a budget for 20, asks
them at random, and reports errors, waits, and the resident memory beside the budget."""
