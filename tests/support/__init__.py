"""What several tests share: small data, small models, plain versions of formulas, victims of faults."""

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent  # of the repository
