"""What several tests of training share."""

import pytest
from training_world import tiny_resnet, tiny_vit


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with a tiny ViT and a tiny ResNet in timm's own format."""
    folder = tmp_path_factory.mktemp("models")
    tiny_vit(folder / "vit")
    tiny_resnet(folder / "rn")
    return folder
