"""What the Keras jobs on image folders share: their data, and a pretrained backbone with a new head."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers
from keras.src.utils import file_utils

import hvdtrain.keras as hk
from hvdtrain.data import pretrained
from hvdtrain.data.affine import Affine, Augmented, opencv
from hvdtrain.data.augment import RandomAffine
from hvdtrain.data.folders import scan, split
from hvdtrain.data.packed import Packed, Rows, cores_of, pack
from hvdtrain.data.sources import locate
from hvdtrain.errors import UserError, nearest

POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
#: How families of keras.applications want pixels of 0..255, by the modes of `keras.applications.imagenet_utils`; None: as they are,
#: for they rescale inside. The first pattern that fits counts.
_PIXELS = (
    (r"MobileNetV3|EfficientNet|ConvNeXt", None),
    (r"MobileNet|Inception|Xception|NASNet|ResNet\d+V2", "tf"),
    (r"ResNet\d|VGG", "caffe"),
    (r"DenseNet", "torch"),
)
#: Means of ImageNet's pixels by mode, and deviations: red, green, blue (as in imagenet_utils).
_CAFFE_MEAN = np.array([123.68, 116.779, 103.939])
_TORCH_MEAN, _TORCH_DEVIATION = np.array([0.485, 0.456, 0.406]) * 255, np.array([0.229, 0.224, 0.225]) * 255


def one_folder(
    name: str, options: argparse.Namespace, share: float
) -> tuple[Packed, Rows, np.ndarray, Rows, np.ndarray]:
    """Images and labels for training and validation, from one folder that is split; the same split on every rank.

    Raises:
        UserError: no such data, backbone or file of weights.
    """
    _check(options)
    root = locate(name, options.data_dir)
    inner = root / "256_ObjectCategories"
    packed = _pack(inner if inner.is_dir() else root, options)
    train, validation = split(packed.labels, share, good=packed.good)
    return packed, *_part(packed, train), *_part(packed, validation)


def two_folders(name: str, options: argparse.Namespace) -> tuple[Packed, Rows, np.ndarray, Rows, np.ndarray]:
    """Images and labels for training and test, from folders of their own.

    Raises:
        UserError: no such data, backbone or file of weights.
    """
    _check(options)
    root = locate(name, options.data_dir)
    root = root / "dataset" if (root / "dataset").is_dir() else root
    train, test = _pack(root / "train", options), _pack(root / "test", options)
    if train.classes != test.classes:
        raise UserError(f"{root}: train has the classes {', '.join(train.classes)}, test has {', '.join(test.classes)}")
    return train, *_part(train, train.good), *_part(test, test.good)


def _check(options: argparse.Namespace) -> None:
    """What is known to be wrong before the images are packed, which takes minutes."""
    known = [name for name in dir(keras.applications) if name[0].isupper()]
    if options.backbone not in known:
        raise UserError(
            f'--backbone "{options.backbone}" is not in keras.applications{nearest(options.backbone, known)}'
        )
    if options.weights not in ("none", "imagenet") and not Path(options.weights).is_file():
        raise UserError(
            f"--weights {options.weights}: no such file; legal are imagenet, none, or a file that keras.Model.save_weights wrote"
        )


def _pack(root: Path, options: argparse.Namespace) -> Packed:
    return pack(scan(root), options.image_size, hk.world(), hk.gather_objects, max_bad=options.max_bad)


def _part(packed: Packed, chosen: np.ndarray) -> tuple[Rows, np.ndarray]:
    return Rows(packed.images, chosen), packed.labels[chosen]


def changed_by_loader() -> bool:
    """Whether training images are changed by the loader's threads: so on CPUs, where a layer of the model takes ten times as long.

    Where there is a GPU the layer does it there. The model has the layer in either case, so that a checkpoint fits both.
    """
    on_cpu = hk.world().device == "cpu"
    if on_cpu:
        opencv()
    return on_cpu


def classifier(options: argparse.Namespace, classes: int, changes: Affine, fine_tune: bool) -> keras.Model:
    """Pixels -> augmentation -> backbone -> mean over positions -> logits, one for each class.

    Args:
        changes: the augmentation; `train` must be given the same.
        fine_tune: whether the backbone learns too; its batch statistics stay as they are in either case.

    Raises:
        UserError: weights that cannot be had.
    """
    size = options.image_size
    pixels = keras.Input((size, size, 3), dtype="uint8")
    changed = RandomAffine(**vars(changes), passive=changed_by_loader())(pixels)
    features = as_wanted(options.backbone, changed)
    backbone = _backbone(options, size)
    backbone.trainable = fine_tune
    pooled = layers.GlobalAveragePooling2D()(backbone(features, training=False))
    return keras.Model(pixels, layers.Dense(classes, dtype="float32")(pooled))


def as_wanted(backbone: str, pixels: Any) -> Any:
    """`pixels` (0 to 255, red, green, blue) in the range and order that the backbone was trained on.

    Raises:
        UserError: what it wants is not known.
    """
    mode = next((mode for pattern, mode in _PIXELS if re.match(pattern, backbone)), "unknown")
    if mode == "caffe":
        return layers.Rescaling(1.0, (-_CAFFE_MEAN[::-1]).tolist())(keras.ops.flip(pixels, axis=-1))
    if mode == "torch":
        return layers.Rescaling((1 / _TORCH_DEVIATION).tolist(), (-_TORCH_MEAN / _TORCH_DEVIATION).tolist())(pixels)
    if mode == "unknown":
        raise UserError(
            f"--backbone {backbone}: which range of pixels it wants is not known; take one of another family"
        )
    return layers.Rescaling(*((1 / 127.5, -1.0) if mode == "tf" else (1.0, 0.0)))(pixels)


def _backbone(options: argparse.Namespace, size: int) -> keras.Model:
    make = getattr(keras.applications, options.backbone)
    weights = None if options.weights == "none" else options.weights
    with hk.rank_zero_first():  # a download, perhaps
        backbone: keras.Model = pretrained.load(
            lambda: make(include_top=False, weights=weights, input_shape=(size, size, 3)),
            file_utils,
            f"--backbone {options.backbone} --weights {options.weights}",
        )
    return backbone


def train(
    options: argparse.Namespace, model: keras.Model, optimizer: Any, data: tuple[Any, ...], changes: Affine
) -> keras.callbacks.History:
    """`fit` on what `one_folder` or `two_folders` gave, with the training images changed anew in each epoch."""
    _, x, y, x_val, y_val = data
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    if changed_by_loader():
        x = Augmented(x, changes, options.seed)
    # A batch is one thread's work, so there are as many threads as this rank has cores; eight change 40,000 images a second.
    threads = min(8, max(2, cores_of(hk.world())))
    train = hk.loader(x, y, batch_size=options.batch_size, seed=options.seed, workers=threads, max_queue_size=8)
    validation = hk.validation_loader(x_val, y_val, batch_size=options.batch_size, workers=2)
    return hk.fit(model, train, validation_data=validation, epochs=options.epochs)
