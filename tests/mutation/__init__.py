"""Do the tests notice? Small faults are put into the cores, one at a time, and the suites of each must fail.

    python -m tests.mutation --per-file 20          a sample of every core
    python -m tests.mutation --only default.py      every mutant of one file

mutants.py   the faults: from a file's source to many slightly wrong ones
trial.py     one mutant against its suites, in a forked child
__main__.py  which files, which suites, the report
"""
