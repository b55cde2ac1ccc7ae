"""The claims of the product, tried on real parts. The folders mirror `probe` and `backbones`."""
