"""One module for each family of backbones: `load(spec, weights, *, tap, image_size) -> Parts`."""
