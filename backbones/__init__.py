"""What is probed: a name becomes a frozen or trainable image encoder."""
