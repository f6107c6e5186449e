"""One image file as pixels of a given size, whatever its kind; or the reason why not."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError


class Unreadable(Exception):
    """The file holds no image that can be trained on; the message says why."""


def decode(path: Path, size: int) -> np.ndarray:
    """Pixels, uint8, shape (size, size, 3): turned as its EXIF says, in RGB whatever it was, stretched to a square.

    A JPEG is decoded at the smallest scale (1/2, 1/4, 1/8) that is not below `size`, which libjpeg-turbo does in a fraction of the
    time.

    Raises:
        Unreadable: empty, truncated, no image, or too large to be one.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                image.draft("RGB" if image.mode != "CMYK" else "CMYK", (size, size))
                image.load()
                pixels = _rgb(ImageOps.exif_transpose(image))
                return np.asarray(pixels.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=2.0))
    except UnidentifiedImageError:
        empty = path.stat().st_size == 0
        raise Unreadable("empty" if empty else "not an image") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise Unreadable(str(error) or type(error).__name__) from None


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        # 16 bits: Pillow would cut them off at 255. Whatever is larger is scaled by its own largest value.
        values = np.asarray(image, np.float64)
        top = 65535.0 if values.max() > 255 else 255.0
        top = max(top, float(values.max()))
        return Image.fromarray(np.clip(values * (255.0 / top), 0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        # What is transparent shows white, as on the page it was made for.
        image = image.convert("RGBA")
        background = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(background, image).convert("RGB")
    return image.convert("RGB")
