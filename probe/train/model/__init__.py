"""What is trained: encoder and head as one network, where it starts, and how it is saved."""
