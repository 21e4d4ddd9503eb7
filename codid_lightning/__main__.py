"""`python -m codid_lightning` is `codid`."""

import sys

from codid_lightning.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
