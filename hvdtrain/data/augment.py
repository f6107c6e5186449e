"""The studies' augmentation as one Keras layer: zoom, shift, rotation and flip in a single pass over a batch, on the GPU."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from hvdtrain.data.affine import DRAWS, Affine


class RandomAffine(keras.layers.Layer):  # type: ignore[misc]
    """Changes each image of a batch by a random zoom, rotation, shift and flip of its own; in training only.

    All four are one affine map, so every pixel is read and written once, where the model runs, and in the images' own type: bytes
    stay bytes. What lies outside the image takes the nearest edge pixel. On a CPU this is slow, so that there the loader's threads
    do the same, in `hvdtrain.data.affine.Augmented`.

    Args:
        zoom, shift, rotation, flip: as for `Affine`.
        passive: leave the images as they are: the loader has changed them.

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
        passive: bool = False,
        **options: Any,
    ) -> None:
        self.changes = Affine(zoom, shift, rotation, flip)
        options.setdefault("dtype", "uint8")
        super().__init__(**options)
        self.supports_jit = False  # TensorFlow has no XLA kernel for the transformation
        self.seed, self.passive = seed, passive
        self.generator = keras.random.SeedGenerator(seed)

    def call(self, images: Any, training: bool = False) -> Any:
        """`images`, shape (n, height, width, channels), uint8 or float."""
        if not training or self.passive:
            return images
        height, width = images.shape[1:3]
        transforms = self.transforms(ops.shape(images)[0], height, width)
        return ops.image.affine_transform(images, transforms, interpolation="bilinear", fill_mode="nearest")

    def transforms(self, n: Any, height: int, width: int) -> Any:
        """`n` random maps from pixels of the result to those of the image, shape (n, 8): (a0, a1, a2, b0, b1, b2, 0, 0)."""
        draws = keras.random.uniform((n, DRAWS), -1.0, 1.0, "float32", seed=self.generator)
        return ops.pad(self.changes.maps(draws, height, width, ops), ((0, 0), (0, 2)))

    def compute_output_shape(self, shape: Any) -> Any:
        """As the images."""
        return shape

    def get_config(self) -> dict[str, Any]:
        """For saving."""
        return {**super().get_config(), **vars(self.changes), "seed": self.seed, "passive": self.passive}
