"""The table of names: cheap to read, honest about what it promises."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import backbones
from backbones import catalogue
from backbones.errors import UserError
from backbones.families import cifar, open_clip_models, timm_models
from backbones.rows.cifar import CIFAR
from backbones.sources import Hub, Scratch, Url
from backbones.spec import Spec

CLIP_ROWS = [row for row in backbones.specs() if row.family == "clip" and not row.open]
TIMM_ROWS = [row for row in backbones.specs() if row.family in ("timm", "moco", "effnet") and not row.open]
CIFAR_ROWS = [row for row in backbones.specs() if row.family == "cifar"]


def named(row: Spec) -> str:
    return row.name


def test_listing_imports_no_deep_learning_library():
    code = (
        "import sys, backbones; backbones.names(); [s.row() for s in backbones.specs()]; print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {
        "torch",
        "torchvision",
        "timm",
        "open_clip",
        "transformers",
        "huggingface_hub",
        "numpy",
    } & set(loaded)


def test_every_promised_name_is_there():
    promised = """
        clip-rn50 clip-rn101 clip-vit-b32 clip-vit-b16 clip-vit-l14
        mae-vit-b16 mae-vit-l16 mocov2-rn50 dinov2-vit-s14 dinov2-vit-b14 resnet50
        effnet-lite0 effnet-lite1 effnet-lite2
        cifar-resnet20 cifar-resnet32 cifar-resnet44 cifar-resnet56 cifar-resnet110
        cifar-resnet20-b cifar-resnet32-b cifar-resnet44-b cifar-resnet56-b cifar-resnet110-b cifar-resnet50
        cifar-preact20 cifar-preact32 cifar-preact20-b cifar-preact32-b
        wrn-22-10 wrn-28-10 wrn-34-10 wrn-22-10-dropout wrn-28-10-dropout wrn-34-10-dropout
        laion2b-vit-b32 laion2b-vit-b16 laion2b-vit-l14 datacomp-vit-b32 datacomp-vit-b16 datacomp-vit-l14
        metaclip-vit-b32 metaclip-vit-b16 metaclip-vit-l14
        siglip2-vit-b16 siglip2-vit-l16 siglip2-so400m-14 eva02-clip-b16 eva02-clip-l14
        mobileclip2-s0 mobileclip2-s2 mobileclip2-b mobileclip2-s4 pe-core-s16 pe-core-b16 pe-core-l14
        dinov2-vit-l14 dinov2-reg-vit-s14 dinov2-reg-vit-b14 dinov2-reg-vit-l14
        dinov3-vit-s16 dinov3-vit-b16 dinov3-vit-l16
        dinov3-convnext-tiny dinov3-convnext-small dinov3-convnext-base dinov3-convnext-large
        dino-vit-s16 dino-vit-b16 dino-vit-s8 dino-vit-b8 mocov1-rn50 mocov2-rn50-200ep
        vicreg-rn50 swav-rn50 barlowtwins-rn50 mocov3-rn50 mocov3-vit-b16
        aimv2-vit-l14 eva02-vit-b14 eva02-vit-l14
        resnet18 resnet34 resnet101 resnet152 vit-s16-augreg vit-b16-augreg beitv2-vit-b16
        convnextv2-tiny convnextv2-base swinv2-tiny swinv2-base
    """
    assert backbones.names() == promised.split()
    assert [row.name.split(":")[0] for row in backbones.specs() if row.open] == ["timm", "open_clip", "hf"]


def test_a_misspelt_name_is_answered_with_the_nearest_one():
    with pytest.raises(UserError, match='no backbone "clip-rn5"; did you mean "clip-rn50"'):
        backbones.load("clip-rn5")


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("timm:resnt18", 'timm has no model "resnt18"; did you mean "resnet18"'),
        ("timm:resnet18.nope", 'timm has no weights "nope" for resnet18'),
        ("timm:test_vit4", "timm has no pretrained weights for test_vit4; give a local copy with"),
        ("timm:", "names nothing; write timm:<name>"),
        ("open_clip:ViT-B-23/openai", 'no model "ViT-B-23"; did you mean .*"ViT-B-32"'),
        ("open_clip:ViT-B-32/openaj", 'no weights "openaj" for ViT-B-32; did you mean "openai"'),
        ("hf:./no/such folder", "no folder ./no/such folder"),
    ],
)
def test_a_wrong_name_behind_an_open_prefix_says_what_is_known(name, answer):
    with pytest.raises(UserError, match=answer):
        backbones.load(name)


def test_a_row_of_ones_own_is_enough_for_a_new_backbone(monkeypatch):
    monkeypatch.setattr(catalogue, "_by_name", dict(catalogue._by_name))
    row = Spec("tiny", "cifar", "resnet20", Scratch(), {"pooled": 64}, 32, "mit", preprocessing=CIFAR)
    backbones.register(row)
    assert backbones.load("tiny")(torch.zeros(1, 3, 32, 32)).shape == (1, 64)
    with pytest.raises(UserError, match=r"taken"):
        backbones.register(row)


@pytest.mark.parametrize("row", TIMM_ROWS, ids=named)
def test_timm_rows_build_with_the_stated_dimension_and_size(row):
    import timm

    with torch.device("meta"):
        fixed = timm.get_pretrained_cfg(row.architecture).fixed_input_size
        options = timm_models.pooling(row, None) | ({"img_size": row.size} if fixed else {})
        model = timm.create_model(row.architecture, num_classes=0, **options).eval()
        assert model(torch.empty(1, 3, row.size, row.size)).shape == (1, row.dim)


# Some rows of the family have their authors' own file of a plain ResNet-50.
TIMMS_OWN = [row for row in TIMM_ROWS if row.family == "timm" and not isinstance(row.source, Url)]


@pytest.mark.parametrize("row", TIMMS_OWN, ids=named)
def test_timm_rows_are_on_timms_own_list_with_its_licence_repository_and_size(row):
    """And with its preprocessing, unless the row states the authors' own."""
    import timm

    assert row.architecture in timm.list_pretrained()
    known = timm.get_pretrained_cfg(row.architecture)
    assert isinstance(row.source, Hub)
    assert known.hf_hub_id == row.source.repo
    assert known.license == row.licence
    assert row.preprocessing is not None or known.input_size == (3, row.size, row.size)


@pytest.mark.parametrize("name", ["dinov3-vit-s16", "dinov3-vit-b16", "dinov3-vit-l16"])
def test_the_class_token_needs_the_same_weights_as_timms_pooling(name):
    import timm

    row = catalogue.find(name)
    with torch.device("meta"):
        pooled, token = (
            timm.create_model(row.architecture, num_classes=0, **timm_models.pooling(row, tap))
            for tap in ("pooled", "cls")
        )
    shapes = [{key: value.shape for key, value in model.state_dict().items()} for model in (pooled, token)]
    assert shapes[0] == shapes[1]
    assert (pooled.global_pool, token.global_pool) == ("avg", "token")


@pytest.mark.parametrize("row", CLIP_ROWS, ids=named)
def test_clip_rows_build_with_the_stated_dimensions_and_activation(row):
    import open_clip
    from open_clip.transformer import QuickGELU

    model_name = row.architecture.split("/")[0]
    config = open_clip.get_model_config(model_name)
    with torch.device("meta"):
        model = _visual(config)
        activations = {type(module) for module in model.modules() if "GELU" in type(module).__name__}
        assert not activations or (QuickGELU in activations) == ("-quickgelu/" in row.architecture)
        for tap, dim in row.taps.items():  # the default tap first: the other one takes the projection away
            encoder, told = open_clip_models.tapped(model, tap, config["embed_dim"])
            assert told == dim
            assert encoder(torch.empty(1, 3, row.size, row.size)).shape == (1, dim)


def _visual(config):
    """The image tower alone, as open_clip builds it."""
    from open_clip.model import _build_vision_tower

    tower = _build_vision_tower(config["embed_dim"], config["vision_cfg"], config.get("quick_gelu", False))
    return tower.eval()


@pytest.mark.parametrize(
    ("name", "dim"), [("coca_ViT-B-32", 512), ("convnext_base", 1024), ("EVA02-B-16", 768)]
)
def test_other_towers_of_open_clip_stop_before_their_projection_too(name, dim):
    """A captioning model, a timm tower with a projecting head, and one whose trunk projects."""
    import open_clip

    with torch.device("meta"):
        model = open_clip.create_model(name, load_weights=False, pretrained_text=False, device="meta").eval()
        encoder, told = open_clip_models.tapped(
            model.visual, "pooled", open_clip.get_model_config(name)["embed_dim"]
        )
        assert encoder(torch.empty(1, 3, 224, 224)).shape == (1, told) == (1, dim)


@pytest.mark.parametrize("row", CLIP_ROWS, ids=named)
def test_clip_rows_fetch_what_open_clip_would(row):
    import open_clip
    from open_clip.pretrained import get_pretrained_cfg

    model, tag = row.architecture.split("/")
    known = get_pretrained_cfg(model, tag)
    assert isinstance(row.source, Hub)
    assert known["hf_hub"] == f"{row.source.repo}/"
    assert bool(known.get("quick_gelu")) == ("-quickgelu/" in row.architecture)
    size = open_clip.get_model_config(model)["vision_cfg"]["image_size"]
    assert size == row.size


# Rows whose licence is not what timm says of its copy of the same weights; why: backbones/rows/image_text.py.
REPACKAGED = {
    *(
        "clip-vit-b32",
        "clip-vit-b16",
        "clip-vit-l14",
        "laion2b-vit-b32",
        "laion2b-vit-b16",
        "laion2b-vit-l14",
    ),
    *("datacomp-vit-b32", "datacomp-vit-b16", "datacomp-vit-l14"),
}
TIMM_COPIES = {  # of repositories that timm does not name: the image tower alone
    "laion2b-vit-b32": "vit_base_patch32_clip_224.laion2b",
    "laion2b-vit-b16": "vit_base_patch16_clip_224.laion2b",
    "laion2b-vit-l14": "vit_large_patch14_clip_224.laion2b",
    "datacomp-vit-b32": "vit_base_patch32_clip_224.datacompxl",
    "datacomp-vit-b16": "vit_base_patch16_clip_224.datacompxl",
    "datacomp-vit-l14": "vit_large_patch14_clip_224.datacompxl",
    "siglip2-vit-b16": "vit_base_patch16_siglip_224.v2_webli",
    "siglip2-vit-l16": "vit_large_patch16_siglip_256.v2_webli",
    "siglip2-so400m-14": "vit_so400m_patch14_siglip_224.v2_webli",
    "eva02-clip-b16": "eva02_base_patch16_clip_224.merged2b",
    "eva02-clip-l14": "eva02_large_patch14_clip_224.merged2b",
    "mobileclip2-s0": "fastvit_mci0.apple_mclip2_dfndr2b",
    "mobileclip2-s2": "fastvit_mci2.apple_mclip2_dfndr2b",
    "mobileclip2-b": "vit_base_mci_224.apple_mclip2_dfndr2b",
    "mobileclip2-s4": "fastvit_mci4.apple_mclip2_dfndr2b",
    "pe-core-s16": "vit_pe_core_small_patch16_384.fb",
    "pe-core-b16": "vit_pe_core_base_patch16_224.fb",
    "pe-core-l14": "vit_pe_core_large_patch14_336.fb",
}


def test_licences_of_image_text_rows_are_those_that_timm_has_for_the_same_weights():
    """But for nine rows, of which timm says something else: a change there is to be looked at."""
    import timm

    by_repo = {}
    for name in timm.list_pretrained():
        known = timm.get_pretrained_cfg(name)
        by_repo.setdefault(known.hf_hub_id, known)
    differing = {}
    for row in CLIP_ROWS:
        copy = TIMM_COPIES.get(row.name)
        known = by_repo[row.source.repo] if copy is None else timm.get_pretrained_cfg(copy)
        if known.license != row.licence:
            differing[row.name] = row.licence, known.license
    assert differing == dict.fromkeys(REPACKAGED, ("mit", "apache-2.0"))


def test_published_accuracies_are_percentages_by_kind_and_are_listed():
    rows = {spec.name: spec.row()["imagenet"] for spec in backbones.specs()}
    kinds = {kind for values in rows.values() for kind in values}
    assert kinds == {"linear", "k-NN", "zero-shot"}
    assert all(50 < value < 90 for values in rows.values() for value in values.values())
    assert rows["dinov2-vit-s14"] == {"k-NN": 79.0, "linear": 81.1}
    assert rows["mocov2-rn50"] == {"linear": 71.1}
    assert rows["metaclip-vit-l14"] == {"zero-shot": 79.2}
    assert rows["effnet-lite0"] == {}


# A forward pass at random weights, one for each kind of network among the newer rows.
@pytest.mark.parametrize(
    "name", ["dinov3-vit-s16", "dinov3-convnext-tiny", "dino-vit-s16", "swinv2-tiny", "convnextv2-tiny"]
)
def test_a_newer_row_runs_at_random_weights(name):
    built = backbones.load(name, weights="scratch")
    assert (built.tap, built.dim) == next(iter(catalogue.find(name).taps.items()))
    with torch.no_grad():
        found = built(torch.randn(1, 3, built.preprocessing.size, built.preprocessing.size))
    assert found.shape == (1, built.dim)
    assert bool(found.isfinite().all())


@pytest.mark.parametrize("name", ["mobileclip2-s0", "siglip2-vit-b16", "pe-core-s16", "eva02-clip-b16"])
def test_a_newer_image_tower_runs_at_random_weights(name):
    import open_clip

    row = catalogue.find(name)
    config = open_clip.get_model_config(row.architecture.split("/")[0])
    torch.manual_seed(0)
    encoder, dim = open_clip_models.tapped(_visual(config), "projected", config["embed_dim"])
    with torch.no_grad():
        found = encoder(torch.randn(1, 3, row.size, row.size))
    assert found.shape == (1, dim)
    assert bool(found.isfinite().all())


# Parameter counts with a classifier of ten classes, as the papers give them: arXiv 1512.03385 table 6,
# 1605.07146 table 4 (WRN-22-10, -28-10); WRN-34-10 as in adversarial training, 46.2 M. The encoder here has
# no classifier, so its weights and biases are added.
@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("cifar-resnet20", 0.27),
        ("cifar-resnet32", 0.46),
        ("cifar-resnet44", 0.66),
        ("cifar-resnet56", 0.85),
        ("cifar-resnet110", 1.7),
        ("cifar-preact20", 0.27),
        ("cifar-preact32", 0.46),
        ("cifar-resnet50", 23.5),
        ("wrn-22-10", 26.8),
        ("wrn-28-10", 36.5),
        ("wrn-34-10", 46.2),
    ],
)
def test_cifar_nets_have_the_papers_parameter_counts(name, millions):
    row = catalogue.find(name)
    with torch.device("meta"):
        net = cifar.ResidualNet(cifar.PLANS[row.architecture])
        assert net(torch.empty(1, 3, row.size, row.size)).shape == (1, row.dim)
    count = sum(parameter.numel() for parameter in net.parameters()) + (row.dim + 1) * 10
    assert round(count / 1e6, 2 if millions < 1 else 1) == millions


def layers(name):
    with torch.device("meta"):
        return cifar.ResidualNet(cifar.PLANS[catalogue.find(name).architecture])


@pytest.mark.parametrize("name", [row.name for row in CIFAR_ROWS if row.name.endswith("-b")])
def test_option_b_adds_two_normalised_convolutions_and_nothing_else(name):
    with_a, with_b = layers(name.removesuffix("-b")), layers(name)
    added = set(dict(with_b.named_parameters())) - set(dict(with_a.named_parameters()))
    assert set(dict(with_a.named_parameters())) <= set(dict(with_b.named_parameters()))
    convolutions = 16 * 32 + 32 * 64
    norms = 0 if "preact" in name else 2 * (32 + 64)  # pre-activation: what it sees is normalised already
    assert sum(dict(with_b.named_parameters())[key].numel() for key in added) == convolutions + norms


def test_dropout_is_between_the_convolutions_in_training_only():
    plain, dropping = (cifar.PreactivationBlock(4, 4, 1, torch.nn.Identity(), rate) for rate in (0.0, 0.3))
    dropping.load_state_dict(plain.state_dict())
    x = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(plain.eval()(x), dropping.eval()(x))
    assert not torch.equal(plain.train()(x), dropping.train()(x))
    zeroed = torch.nn.functional.dropout(torch.ones(1, 1, 100, 100), 0.3)
    assert dropping.dropout(torch.ones(1, 1, 100, 100)).max() == pytest.approx(float(zeroed.max()))
    rates = {m.p for m in layers("wrn-28-10-dropout").modules() if isinstance(m, torch.nn.Dropout)}
    assert rates == {0.3}


@pytest.mark.parametrize("name", ["timm:test_vit", "timm:test_resnet", "effnet-lite0"])
def test_any_timm_net_is_built_without_weights_by_the_word_scratch(name):
    first = backbones.load(name, weights="scratch", image_size=32, seed=1)
    assert first.fingerprint == backbones.load(name, weights="scratch", image_size=32, seed=1).fingerprint
    assert first.fingerprint != backbones.load(name, weights="scratch", image_size=32, seed=2).fingerprint
    assert first.source == str(Scratch())
    with torch.no_grad():
        assert first(torch.zeros(2, 3, 32, 32)).shape == (2, first.dim)


@pytest.mark.parametrize("name", ["clip-rn50", "mocov2-rn50", "hf:some/model"])
def test_what_is_only_known_by_its_weights_cannot_be_built_without_them(name):
    with pytest.raises(UserError, match=r"cannot be built without its weights.*timm:resnet50"):
        backbones.load(name, weights="scratch")


def test_a_net_without_weights_is_the_same_at_every_load_and_another_by_seed_or_name():
    first = backbones.load("cifar-resnet20")
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    assert backbones.load("cifar-resnet20").fingerprint == first.fingerprint
    assert torch.equal(torch.random.get_rng_state(), before)
    again = backbones.load("cifar-resnet20", seed=1)
    assert again.fingerprint == backbones.load("cifar-resnet20", seed=1).fingerprint
    assert again.fingerprint != first.fingerprint
    other = backbones.load("cifar-resnet32")
    assert not torch.equal(other.encoder.stem.weight, first.encoder.stem.weight)


def test_a_net_without_weights_is_the_same_in_every_process():
    code = "import backbones; print(backbones.load('cifar-resnet20').fingerprint)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == backbones.load("cifar-resnet20").fingerprint


def test_cifar_nets_start_from_he_initialisation():
    weight = backbones.load("wrn-22-10").encoder.blocks[8].conv2.weight
    assert weight.std().item() == pytest.approx((2 / (9 * 640)) ** 0.5, rel=0.01)
