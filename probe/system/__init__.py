"""What the machine offers, made safe: files, locks, checksums, processes, terminals."""
