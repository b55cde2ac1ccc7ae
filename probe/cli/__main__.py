"""`python -m probe.cli`: the `probe` command."""

import sys

from probe.cli import main

sys.exit(main())
