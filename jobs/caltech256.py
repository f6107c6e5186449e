"""Caltech-256 by transfer learning in Keras: a frozen backbone, a new layer for 257 classes, 20 % of the images for validation."""

import os

from hvdtrain import job


def main() -> None:
    strategies = ("horovod", "multiworker", "mirrored", "tpu", "single")
    parser = job.parser(
        __doc__, epochs=30, batch_size=32, lr=0.01, lr_rule="linear", warmup_epochs=3, strategies=strategies
    )
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
    parser.add_argument("--fine-tune", action="store_true", help="train the backbone too; the study did not")
    options = parser.parse_args()
    os.environ["KERAS_BACKEND"] = options.framework  # read when Keras is imported
    import keras

    import hvdtrain.keras as hk
    from hvdtrain.data import image_job
    from hvdtrain.data.affine import Affine

    hk.init(options.strategy)
    keras.utils.set_random_seed(options.seed)
    keras.config.set_dtype_policy(image_job.POLICIES[options.precision])
    data = image_job.one_folder("caltech256", options, share=0.2)
    # As published: rotation 5 %, zoom 20 %, shift 20 %, horizontal flip.
    changes = Affine(zoom=0.2, shift=0.2, rotation=0.05, flip=True)
    model = image_job.classifier(options, len(data[0].classes), changes, options.fine_tune)
    # As published: the learning rate grows with the number of GPUs (rule linear); the warm-up is ours.
    sgd = keras.optimizers.SGD(options.lr, momentum=0.9)
    optimizer = hk.DistributedOptimizer(sgd, lr_rule=options.lr_rule, warmup_epochs=options.warmup_epochs)
    image_job.train(options, model, optimizer, data, changes)


if __name__ == "__main__":
    main()
