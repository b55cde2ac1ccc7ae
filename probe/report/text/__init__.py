"""Tables for terminals, spreadsheets, Markdown and LaTeX."""
