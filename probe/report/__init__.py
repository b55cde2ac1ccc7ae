"""What people see of a result: the terminal table, files, plots and the HTML page."""
