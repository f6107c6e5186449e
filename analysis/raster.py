"""Figures as PNG files. Drawing and encoding are apart, for the encoder works outside of Python's lock: in a thread, while the next
figure is drawn.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

#: The strongest compression takes three times as long for a tenth of the size.
_LEVEL = 3


def pixels(figure: Figure, dpi: float) -> Image.Image:
    """The figure as it is drawn with so many dots per inch."""
    canvas: Any = FigureCanvasAgg(figure)
    before = figure.dpi
    figure.dpi = dpi
    try:
        canvas.draw()
        return Image.fromarray(np.array(canvas.buffer_rgba()))
    finally:
        figure.dpi = before


def png(image: Image.Image, dpi: float, description: str) -> bytes:
    """The bytes of a PNG file that says what it shows, and how large it is in print."""
    info, buffer = PngInfo(), io.BytesIO()
    info.add_text("Software", "hvdtrain")
    info.add_text("Description", description)
    image.save(buffer, format="png", pnginfo=info, dpi=(dpi, dpi), compress_level=_LEVEL)
    return buffer.getvalue()
