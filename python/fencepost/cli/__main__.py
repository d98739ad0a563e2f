"""`python -m fencepost.cli`."""

import sys

from fencepost.cli import main

if __name__ == "__main__":
    sys.exit(main())
