"""`python -m fencepost.cli`."""

import sys

from fencepost.cli import run

if __name__ == "__main__":
    sys.exit(run())
