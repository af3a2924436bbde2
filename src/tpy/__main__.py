"""`python -m tpy` is `tpy`."""

from tpy.cli import main

if __name__ == "__main__":
    main()
