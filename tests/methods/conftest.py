"""The methods' tests train on the same small world as the loop's."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "train"))
