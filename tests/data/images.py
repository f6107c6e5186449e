"""Image trees for tests: colours that tell the class, and all the nasty files that real trees hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def picture(label: int, classes: int, seed: int, shape: tuple[int, int] = (80, 60)) -> Image.Image:
    """Noise in a colour that only its class has."""
    rng = np.random.default_rng([label, seed])
    hue = np.array([label / classes, 1 - label / classes, (label * 7 % classes) / classes])
    pixels = hue * 200 + rng.normal(0, 20, (shape[1], shape[0], 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def tree(root: Path, classes: int = 4, each: int = 12, shape: tuple[int, int] = (80, 60)) -> Path:
    """JPEG files in a folder for each class."""
    for label in range(classes):
        folder = root / f"{label:03d}.class {label}"
        folder.mkdir(parents=True)
        for number in range(each):
            picture(label, classes, number, shape).save(folder / f"{number:04d}.jpg", quality=90)
    return root


def nasty(folder: Path) -> dict[str, str]:
    """Files beside good ones; returns the bad ones with a part of the reason that must be given."""
    image = picture(0, 4, 99)
    image.convert("CMYK").save(folder / "n_cmyk.jpg")
    image.convert("L").save(folder / "n_grey.jpg")
    image.convert("RGBA").save(folder / "n_alpha.png")
    image.convert("P").save(folder / "n_palette.png")
    Image.fromarray(np.asarray(image.convert("L"), np.uint16) * 257).save(folder / "n_sixteen.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    turned = Image.new("RGB", (80, 40), "blue")
    turned.paste("red", (0, 0, 40, 40))
    turned.save(folder / "n_turned.jpg", exif=exif, quality=95)
    (folder / "n_empty.jpg").write_bytes(b"")
    (folder / "n_text.jpg").write_text("<html>404 not found</html>")
    whole = folder / "n_cut.jpg"
    image.save(whole)
    whole.write_bytes(whole.read_bytes()[:300])
    (folder / "greg").mkdir()
    (folder / "greg" / "vf_readme.txt").write_text("no image by its name")
    return {"n_empty.jpg": "empty", "n_text.jpg": "not an image", "n_cut.jpg": "(?i)truncated"}
