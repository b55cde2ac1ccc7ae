"""A method distils from the frozen network of a run: its keys, its logits, nothing of it is trained."""

import pytest
import torch

import backbones
from probe.errors import UserError
from probe.heads import fitted
from probe.heads.fitted import FittedHead
from probe.train.model import teacher
from tests.support.training_world import (
    image_training,
    method,
    same_bits,
    tiny_convnet,
    tiny_vit,
    whole_state,
)

NAMES = ["a", "b", "c", "d"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """As much of a run folder as a teacher is read from."""
    model, folder = tmp_path_factory.mktemp("vit"), tmp_path_factory.mktemp("run")
    backbone = tiny_vit(model)
    torch.manual_seed(0)
    head = FittedHead("linear", {"weight": torch.randn(4, backbone.dim), "bias": torch.randn(4)})
    about = {
        "backbone": {"name": f"timm:{model}", "image_size": 32},
        "class_names": NAMES,
        "fingerprint": backbone.digest(),
    }
    fitted.save(head, folder, about)
    return folder, model


def taught(run, student, **params):
    folder, _ = run
    built = method("gml", dim=student.dim, num_classes=4, labels=[0, 1, 2, 3], teacher=str(folder), **params)
    built.taught_by(teacher.load(folder, student, NAMES))
    return built


def test_its_features_and_logits_are_those_of_the_run(run):
    folder, model = run
    found = teacher.load(folder, tiny_vit(model), NAMES)
    images = torch.rand(5, 3, 32, 32)
    with torch.inference_mode():
        expected = tiny_vit(model)(images)
    features, logits = found(images)
    assert torch.allclose(features, expected, atol=1e-6)
    assert torch.allclose(logits, fitted.load(folder)[0].scores(expected), atol=1e-5)
    assert not features.requires_grad


def test_distillation_trains_the_student_and_leaves_the_teacher(run):
    student = tiny_vit(run[1])

    def build(folder=None):
        net = tiny_convnet(size=32)
        net.preprocessing = student.preprocessing
        built = taught(run, net, hidden=16, embedding=8, queue=24)
        return image_training(net, method=built, kind="cosine", epochs=4, lr=0.03, optimizer="adamw")

    training = build()
    before = training.method._taught.fingerprint
    losses = [row["loss"] for row in training.run().epochs]
    assert losses[-1] < losses[0]
    assert training.method._taught.fingerprint == before
    state = whole_state(training)
    assert "method.keys.0.weight" in state  # embeds the teacher's features anew at every step
    assert not any("copy" in name or "taught" in name for name in state)
    again = build()
    again.run()
    assert same_bits(state, whole_state(again))


def test_a_student_with_the_teachers_logits_has_nothing_to_learn_from_it(run):
    built = taught(run, tiny_vit(run[1]))
    logits = torch.randn(6, 4)
    assert float(built._distillation(logits, logits)) == pytest.approx(0, abs=1e-6)
    other = built._distillation(logits, logits.roll(1, 0))
    p, q = ((z.double() / 4).softmax(1) for z in (logits, logits.roll(1, 0)))
    assert float(other) == pytest.approx(16 * float((q * (q / p).log()).sum(1).mean()), rel=1e-5)


def test_a_teacher_of_other_classes_or_other_images_is_refused(run):
    folder, model = run
    with pytest.raises(UserError, match="knows other classes"):
        teacher.load(folder, tiny_vit(model), ["x", "y"])
    with pytest.raises(UserError, match="they must be the same"):
        teacher.load(folder, backbones.load(f"timm:{model}", image_size=64), NAMES)
