"""Fresh and rotten apples, bananas and oranges by fine-tuning in Keras: 6 classes, images for training and test in two folders."""

import argparse
import os
from collections.abc import Sequence

from hvdtrain import job


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; those of the process itself for None."""
    strategies = ("horovod", "multiworker", "mirrored", "tpu", "single")
    parser = job.parser(__doc__, epochs=10, batch_size=32, lr=0.0001, warmup_epochs=1, strategies=strategies)
    parser.add_argument("--data-dir", help="folder that holds the data; default: where `hvdtrain fetch` puts them")
    parser.add_argument("--image-size", type=job.positive_int, default=224, help="edge in pixels")
    parser.add_argument(
        "--backbone", default="MobileNetV2", help="of keras.applications, such as ResNet50, EfficientNetB0"
    )
    parser.add_argument(
        "--weights", default="imagenet", help="of the backbone: imagenet (downloads), none, or a .weights.h5 file"
    )
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16", "fp16"], help="of the layers")
    parser.add_argument(
        "--max-bad", type=job.natural, help="unreadable files that are left out; default: 1 in 100, at least 10"
    )
    parser.add_argument(
        "--framework", default="tensorflow", choices=["tensorflow", "torch"], help="what Keras computes with"
    )
    parser.add_argument(
        "--published", action="store_true", help="the study's own rate, Adam(lr=0.1 x GPUs), which diverges"
    )
    parser.add_argument("--frozen", action="store_true", help="train the new layer alone; the study trained all")
    options = parser.parse_args(arguments)
    if options.published:
        # In place of the defaults: what is given beside it counts.
        as_published = argparse.Namespace(lr=0.1, lr_rule="linear", warmup_epochs=0.0)
        options = parser.parse_args(arguments, as_published)
    return options


def main() -> None:
    options = parsed()
    os.environ["KERAS_BACKEND"] = options.framework  # read when Keras is imported
    import keras

    import hvdtrain.keras as hk
    from hvdtrain.data import image_job
    from hvdtrain.data.affine import Affine

    hk.init(options.strategy)
    keras.utils.set_random_seed(options.seed)
    keras.config.set_dtype_policy(image_job.POLICIES[options.precision])
    data = image_job.two_folders("fruit", options)
    # As published: zoom 1 %, shift 1 %, no flip.
    changes = Affine(zoom=0.01, shift=0.01, rotation=0.0, flip=False)
    model = image_job.classifier(options, len(data[0].classes), changes, fine_tune=not options.frozen)
    adam = keras.optimizers.Adam(options.lr)
    optimizer = hk.DistributedOptimizer(adam, lr_rule=options.lr_rule, warmup_epochs=options.warmup_epochs)
    image_job.train(options, model, optimizer, data, changes)


if __name__ == "__main__":
    main()
