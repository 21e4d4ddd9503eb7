"""`python -m codid_lightning` is `codid`."""

import sys

from codid_lightning.cli.main import main

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # `-m` lets Python look in the current directory first: last is enough for classes of one's own.
        sys.path.append(sys.path.pop(0))
    sys.exit(main())
