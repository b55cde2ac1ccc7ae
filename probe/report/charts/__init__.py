"""Charts as Vega-Lite specifications: results, diagnostics, and files of their own."""
