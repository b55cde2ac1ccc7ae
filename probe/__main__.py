"""`python -m probe`: the `probe` command."""

import sys

from probe.cli import main

sys.exit(main())
