"""Every method of the catalogue trains a small net from scratch, and resumes to the same bits when killed."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from probe import methods
from probe.recipe import MethodConfig
from probe.recipe.train_settings import TrainConfig
from probe.train.build import make_head, make_method
from probe.train.loop import Training
from probe.train.model.network import Network
from probe.train.task import Task
from tests.support.training_world import (
    Pictures,
    image_loader,
    killed,
    same_bits,
    tiny_convnet,
    whole_state,
)

CLASSES = 4
NEEDED = {"ef": {"frequency": [1.0] * CLASSES}}  # without held-out images nothing measures them
TRAINED = [name for name in methods.names() if not methods.catalogue.is_second_stage(name)]


def training(name, folder=None):
    """Three epochs on unequal classes, with the head that the method takes."""
    whole, net = Pictures(48, 16), tiny_convnet()
    rows = np.flatnonzero((whole.labels > 0) | (np.arange(48) < 24))  # half of the first class is left out
    whole.labels, whole.pixels = whole.labels[rows], whole.pixels[rows]
    settings = TrainConfig(batch_size=14, lr=0.05, checkpoint_minutes=1e-9)
    choice = MethodConfig(name=name, **NEEDED.get(name, {}))
    made = make_method(choice, num_classes=CLASSES, labels=whole.labels, dim=net.dim, scratch=True)
    made.from_scratch = True
    torch.manual_seed(1)
    head = make_head(made, settings, dim=net.dim, num_classes=CLASSES, seed=0)
    loader = image_loader(whole, net, settings)
    task = Task(Network(net.encoder, head), made, loader, CLASSES, "sgd", 3)
    return Training(task, settings, folder=folder, digest=name, show=False)


def cross_entropy(t):
    return float(F.cross_entropy(t.training_logits(), torch.as_tensor(t.labels)))


@pytest.mark.parametrize("name", TRAINED)
def test_it_learns_its_training_set_and_resumes_to_the_same_bits(name, tmp_path):
    whole = training(name)
    before = cross_entropy(whole)
    whole.run()
    assert cross_entropy(whole) < before
    killed(training(name, tmp_path), 5)
    resumed = training(name, tmp_path)
    resumed.run()
    assert same_bits(whole_state(whole), whole_state(resumed))
