"""Whatever the format, an image comes out as the RGB a person would see, or an error names it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

import probe.data
from probe.data import decode
from probe.errors import UserError
from tests.support.tiny_datasets import encoded, picture, write_folder


def through(image: Image.Image, format: str = "PNG", **options) -> np.ndarray:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    out = decode.rgb(buffer.getvalue(), "x")
    assert out.mode == "RGB"
    return np.asarray(out)


def test_grey_bilevel_and_cmyk_become_rgb():
    assert (through(Image.new("L", (2, 2), 100)) == 100).all()
    assert (through(Image.new("1", (2, 2), 1)) == 255).all()
    cmyk = through(Image.new("RGB", (8, 8), (200, 30, 30)).convert("CMYK"), "JPEG", quality=95)
    assert np.abs(cmyk.astype(int) - (200, 30, 30)).max() < 12


def test_a_transparent_pixel_is_white_and_an_opaque_one_keeps_its_colour():
    image = Image.new("RGBA", (2, 1), (10, 20, 30, 255))
    image.putpixel((1, 0), (0, 0, 0, 0))
    assert through(image).tolist() == [[[10, 20, 30], [255, 255, 255]]]


def test_an_opaque_alpha_channel_changes_nothing():
    assert np.array_equal(through(picture(1).convert("RGBA")), np.asarray(picture(1)))


def test_a_palette_with_a_transparent_colour_is_laid_over_white():
    image = Image.new("P", (2, 1), 0)
    image.putpalette([0, 0, 0, 9, 8, 7])
    image.putpixel((1, 0), 1)
    assert through(image, transparency=0).tolist() == [[[255, 255, 255], [9, 8, 7]]]


def test_sixteen_bit_grey_keeps_its_range():
    deep = Image.fromarray(np.array([[0, 32768, 65535]], dtype=np.uint16))
    assert through(deep)[0, :, 0].tolist() == [0, 127, 255]


def test_orientation_is_left_as_stored():
    tag = Image.Exif()
    tag[0x0112] = 6  # "rotate to view"
    assert through(Image.new("RGB", (10, 4)), "JPEG", exif=tag).shape == (4, 10, 3)


@pytest.mark.parametrize("damage", [b"", b"not an image", encoded(picture(0, (64, 64)))[:200]])
def test_a_bad_image_is_named_with_its_path(tmp_path, damage):
    folder = write_folder(tmp_path / "photos")
    (folder / "train/dog/1.png").write_bytes(damage)
    train = probe.data.load(folder)["train"]
    with pytest.raises(probe.data.BadImage) as caught:
        train[4]
    assert isinstance(caught.value, UserError)
    assert str(folder / "train/dog/1.png") in str(caught.value)
    assert "--skip-bad-images" in str(caught.value)
    assert train[3][0].mode == "RGB"


def test_a_bad_image_in_parquet_is_named_with_its_id_and_file(tmp_path):
    from tests.support.tiny_datasets import write_parquet

    images = [encoded(picture(0)), b"garbage", None]
    write_parquet(tmp_path / "train.parquet", [0, 1, 0], images=images, ids=["a", "b", "c"])
    write_parquet(tmp_path / "test.parquet", [0, 1])
    train = probe.data.load(tmp_path)["train"]
    for row, name in ((1, '"b"'), (2, '"c"')):
        with pytest.raises(probe.data.BadImage, match=f"{name}.*train.parquet"):
            train[row]
    assert len(train.fingerprint) == 64
