"""One image file as pixels of a given size, whatever its kind; or the reason why not."""

from __future__ import annotations

import io
import math
import struct
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

try:
    import simplejpeg
except ImportError:  # no wheel for this machine: Pillow decodes them all
    simplejpeg = None

_APP1, _START_OF_SCAN = 0xE1, 0xDA
#: What decoders raise on damaged bytes: nearly anything. (Of EXIF's, struct.error and ZeroDivisionError on sound pictures too.)
DAMAGE = (
    *(
        OSError,
        EOFError,
        SyntaxError,
        ValueError,
        TypeError,
        LookupError,
        ArithmeticError,
        AttributeError,
        RuntimeError,
    ),
    *(struct.error, Image.DecompressionBombError),
)
#: What EXIF's orientations 2 to 8 ask for.
_TURNS = dict(
    enumerate(
        (
            Image.Transpose.FLIP_LEFT_RIGHT,
            Image.Transpose.ROTATE_180,
            Image.Transpose.FLIP_TOP_BOTTOM,
            Image.Transpose.TRANSPOSE,
            Image.Transpose.ROTATE_270,
            Image.Transpose.TRANSVERSE,
            Image.Transpose.ROTATE_90,
        ),
        start=2,
    )
)


class Unreadable(Exception):
    """The file holds no image that can be trained on; the message says why."""


class Unopened(Unreadable):
    """Nobody has seen what the file holds: it could not be opened or read."""


def decode(path: Path, size: int, out: np.ndarray | None = None) -> np.ndarray:
    """Pixels, uint8, shape (size, size, 3): turned as its EXIF says, in RGB whatever it was, stretched to a square.

    A JPEG is decoded at the smallest of libjpeg-turbo's scales that is not below `size`, which takes a fraction of the time. Lets
    other threads run meanwhile.

    Args:
        out: where to put them; contiguous. Its content is undefined after an error.

    Raises:
        Unreadable: empty, truncated, no image, or too large to be one.
    """
    pixels = np.empty((size, size, 3), np.uint8) if out is None else out
    try:
        with open(path, "rb", buffering=0) as file:
            content = file.read()
    except OSError as error:
        raise Unopened(error.strerror or str(error)) from None
    if not _plain_jpeg(content, pixels):
        pixels[...] = _any_kind(content, size)
    return pixels


def _plain_jpeg(content: bytes, out: np.ndarray) -> bool:
    """Decode what is surely a sound JPEG as one sees it. False: it is for Pillow to say what it is, or what is wrong with it."""
    if simplejpeg is None or not content.startswith(b"\xff\xd8"):
        return False
    size = len(out)
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
        if colours not in ("YCbCr", "RGB", "Gray") or _too_large(width, height) or _turned(content):
            return False
        if height == width == size:
            simplejpeg.decode_jpeg(content, "RGB", buffer=out)
            return True
        # Scales of 7/8 to 5/8 take longer than all of it.
        pixels = simplejpeg.decode_jpeg(content, "RGB", min_height=size, min_width=size, min_factor=2)
    except DAMAGE:
        return False
    out[...] = _resized(Image.fromarray(pixels), size)
    return True


def _too_large(width: int, height: int) -> bool:
    """Pillow's own limit, where it only warns; turning warnings into errors would not be safe in threads."""
    return width * height > (Image.MAX_IMAGE_PIXELS or math.inf)


def _turned(content: bytes) -> bool:
    """Whether a JPEG says that it is to be turned or mirrored: in EXIF or XMP, both in a segment APP1 before the pixels."""
    at = 2
    while content[at : at + 1] == b"\xff" and content[at + 1] != _START_OF_SCAN:
        if content[at + 1] == _APP1:
            with Image.open(io.BytesIO(content)) as image:
                return _turn(image) is not None
        at += 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return False


def _turn(image: Image.Image) -> Image.Transpose | None:
    """How it is to be turned or mirrored; as it is where its EXIF is damaged, which says nothing of its pixels."""
    try:
        return _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except DAMAGE:
        return None


def _any_kind(content: bytes, size: int) -> np.ndarray:
    try:
        with Image.open(io.BytesIO(content)) as image:
            if _too_large(*image.size):
                raise Unreadable(f"{image.width} x {image.height} pixels, more than an image has")
            image.draft("RGB" if image.mode != "CMYK" else "CMYK", (size, size))
            # After loading, which itself turns a TIFF.
            image.load()
            turn = _turn(image)
            return _resized(_rgb(image if turn is None else image.transpose(turn)), size)
    except UnidentifiedImageError:
        raise Unreadable("not an image" if content else "empty") from None
    except DAMAGE as error:
        raise Unreadable(str(error) or type(error).__name__) from None


def _resized(image: Image.Image, size: int) -> np.ndarray:
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=2.0))


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
