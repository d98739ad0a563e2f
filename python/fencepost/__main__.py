"""The command line as `python -m fencepost`."""

import sys

from fencepost.cli import run

if __name__ == "__main__":
    sys.exit(run())
