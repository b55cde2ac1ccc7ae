"""Labels that may be wrong, found by cleanlab from what a run already knows about its training images.

    python examples/suspect_labels.py runs/effnet-lite0-letters-mr2-1a2b3c4d     (pip install cleanlab)

`crossfit.parquet` holds, for each training image, the probabilities of probes that have not seen it.
The same numbers are behind "labels that may be wrong" in the report, which needs no further package.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from cleanlab.filter import find_label_issues

table = pq.read_table(Path(sys.argv[1], "crossfit.parquet"))
labels = np.array(table["label_index"])
probabilities = np.stack(table["probabilities"].to_pylist())
suspects = find_label_issues(labels, probabilities, return_indices_ranked_by="self_confidence")
for row in suspects[:20]:
    said = {key: table[key][int(row)].as_py() for key in ("id", "label", "rival", "rival_probability")}
    print("{id}: {label}, or {rival} ({rival_probability:.2f})?".format(**said))
