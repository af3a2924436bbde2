"""Many models in little memory, and rollouts, for real. `python -m tests.fleet` serves 200 ONNX and 40 Python models in a budget
for 20, asks them at random, and reports errors, waits, and the resident memory beside the budget.
`python -m tests.fleet rollouts` rolls out faulty and good versions under load."""
