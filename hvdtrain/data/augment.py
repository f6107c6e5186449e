"""The studies' augmentation as one Keras layer: zoom, shift, rotation and flip in a single pass over a batch."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from hvdtrain.errors import UserError


class RandomAffine(keras.layers.Layer):  # type: ignore[misc]
    """Changes each image of a batch by a random zoom, rotation, shift and flip of its own; in training only.

    All four are one affine map, so every pixel is read and written once, where the model runs (on the GPU when there is one), and
    in the images' own type: bytes stay bytes. What lies outside the image takes the nearest edge pixel.

    Args:
        zoom: largest change of scale, as a share: 0.2 for 0.8 to 1.2.
        shift: largest way in each direction, as a share of the edge.
        rotation: largest angle in either direction, as a share of a full turn.
        flip: left and right exchanged, every other time.

    Raises:
        UserError: a share that is not in [0, 1).
    """

    def __init__(
        self,
        zoom: float = 0.0,
        shift: float = 0.0,
        rotation: float = 0.0,
        flip: bool = False,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        for name, value in (("zoom", zoom), ("shift", shift), ("rotation", rotation)):
            if not 0 <= value < 1:
                raise UserError(f"{name}={value} is not a share in [0, 1)")
        options.setdefault("dtype", "uint8")
        super().__init__(**options)
        self.zoom, self.shift, self.rotation, self.flip, self.seed = zoom, shift, rotation, flip, seed
        self.generator = keras.random.SeedGenerator(seed)

    def call(self, images: Any, training: bool = False) -> Any:
        """`images`, shape (n, height, width, channels), uint8 or float."""
        if not training:
            return images
        height, width = images.shape[1:3]
        transforms = self.transforms(ops.shape(images)[0], height, width)
        return ops.image.affine_transform(images, transforms, interpolation="bilinear", fill_mode="nearest")

    def transforms(self, n: Any, height: int, width: int) -> Any:
        """`n` random maps from pixels of the result to those of the image, shape (n, 8): (a0, a1, a2, b0, b1, b2, 0, 0)."""

        def draw(largest: float) -> Any:
            return keras.random.uniform((n,), -largest, largest, "float32", seed=self.generator)

        scale = 1.0 / (1.0 + draw(self.zoom))
        angle = draw(self.rotation) * (2 * math.pi)
        right, down = draw(self.shift) * width, draw(self.shift) * height
        mirror = ops.sign(draw(1.0)) if self.flip else ops.ones((n,), "float32")
        cosine, sine = ops.cos(angle) * scale, ops.sin(angle) * scale
        # About the middle of the image: x_in = middle + A (x_out - middle) + shift.
        x, y = (width - 1) / 2, (height - 1) / 2
        a0, a1, b0, b1 = cosine * mirror, -sine, sine * mirror, cosine
        a2 = x - a0 * x - a1 * y + right
        b2 = y - b0 * x - b1 * y + down
        zero = ops.zeros((n,), "float32")
        return ops.stack([a0, a1, a2, b0, b1, b2, zero, zero], axis=1)

    def compute_output_shape(self, shape: Any) -> Any:
        """As the images."""
        return shape

    def get_config(self) -> dict[str, Any]:
        """For saving."""
        own = {"zoom": self.zoom, "shift": self.shift, "rotation": self.rotation, "flip": self.flip, "seed": self.seed}
        return {**super().get_config(), **own}
