"""`python -m flower_privsyn.cli`: the command `privsyn` where its script is not on the path."""

import sys

from flower_privsyn.cli import main

if __name__ == "__main__":
    sys.exit(main())
