"""`python -m clusterformer`."""

import sys
from pathlib import Path

# `python -m` puts the working folder on the path; in a clone of this repository it would make our
# `tasks` and `kernels` folders hide other packages of these names (transformers imports one).
if sys.path and Path(sys.path[0] or ".").resolve() == Path.cwd():
    del sys.path[0]

from clusterformer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
