"""MNIST or Fashion-MNIST: a convolutional network of 54,528 parameters in Keras, through `fit` or a loop written out."""

import os
import time

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
from keras import layers

import hvdtrain.keras as hk
from hvdtrain import job, record
from hvdtrain.data.sets import ImageSet, load
from hvdtrain.errors import UserError

POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


def network(dropout: float) -> keras.Model:
    """The study's: two convolutions (6 and 10 maps of 3x3, each halved by pooling), then 128, 100, 80 units and 10 logits."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1), dtype="uint8"),
            layers.Rescaling(1 / 255),
            layers.Conv2D(6, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(10, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            *([layers.Dropout(dropout)] if dropout else []),
            layers.Dense(100, activation="relu"),
            layers.Dense(80, activation="relu"),
            layers.Dense(10, dtype="float32"),
        ]
    )


def custom_loop(model, optimizer, loss_of, train, data: ImageSet, options) -> None:
    """What `fit` does, written out for TensorFlow: gradients of this rank, averaged over all of them in `apply`."""
    import tensorflow as tf

    @tf.function(reduce_retracing=True, jit_compile=False)
    def step(x, y, weight):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_of(y, logits)
            scaled = optimizer.scale_loss(loss * weight) if hasattr(optimizer, "inner_optimizer") else loss * weight
        optimizer.apply(tape.gradient(scaled, model.trainable_variables), model.trainable_variables)
        hits = tf.reduce_sum(tf.cast(tf.argmax(logits, 1) == y, tf.float32))
        return loss, hits

    if hk.world().rank == 0:
        record.note(batch_size=options.batch_size, accumulate=options.accumulate, precision=options.precision)
    checkpoints = hk.Checkpoints(model, optimizer)
    share = hk.validation_loader(data.x_test, data.y_test, batch_size=1000)
    forward = tf.function(model, reduce_retracing=True)
    for epoch in range(checkpoints.resume() + 1, options.epochs + 1):
        began, sums = time.perf_counter(), np.zeros(3)
        train.start(epoch)
        for index, part in enumerate(train.batches()):
            x, y = (tf.constant(each) for each in train[index])
            loss, hits = step(x, y, tf.constant(part.weight, tf.float32))
            if part.samples:
                sums += [float(loss) * part.samples, float(hits), part.samples]
        trained, seen = time.perf_counter(), np.zeros(3)
        for x, y in (share[index] for index in range(len(share))):
            logits = forward(tf.constant(x), training=False)
            seen += [float(loss_of(y, logits)) * len(y), int((np.argmax(logits, 1) == y).sum()), len(y)]
        loss, hits, n, val_loss, val_hits, val_n = hk.sum_over_ranks([*sums, *seen])
        result = {
            "train_loss": loss / n,
            "train_acc": hits / n,
            "val_loss": val_loss / val_n,
            "val_acc": val_hits / val_n,
        }
        ended = time.perf_counter()
        hk.record_epoch(epoch, samples=int(n), seconds=ended - began, seconds_val=ended - trained, **result)
        if hk.world().rank == 0:
            print(
                f"epoch {epoch}/{options.epochs}  " + "  ".join(f"{k} {v:.4f}" for k, v in result.items()), flush=True
            )
        checkpoints.save(epoch, score=val_hits)
        checkpoints.stop_if_asked(epoch)


def main() -> None:
    strategies = ("horovod", "multiworker", "mirrored", "tpu", "single")
    parser = job.parser(__doc__, epochs=20, batch_size=64, lr=0.001, strategies=strategies)
    parser.add_argument("--data", default="mnist", choices=["mnist", "fashion-mnist", "synthetic"], help="data set")
    parser.add_argument("--data-dir", help="folder that holds it; default: where `hvdtrain fetch` puts it")
    parser.add_argument("--loop", default="fit", choices=["fit", "custom"], help="Keras' loop, or one written out")
    parser.add_argument("--precision", default="fp32", choices=list(POLICIES), help="of the layers")
    parser.add_argument("--accumulate", type=job.positive_int, default=1, help="steps whose gradients make one update")
    parser.add_argument(
        "--schedule", default="none", choices=["none", "exponential", "cosine"], help="of the learning rate"
    )
    parser.add_argument("--dropout", type=job.share, default=0.0, help="share of the 128 units left out in training")
    options = parser.parse_args()
    if options.loop == "custom" and options.strategy in ("mirrored", "tpu"):
        raise UserError(
            f"--strategy {options.strategy} works through --loop fit; custom is for horovod, multiworker and single"
        )
    if options.loop == "custom" and keras.config.backend() != "tensorflow":
        raise UserError(
            f"--loop custom is written for TensorFlow; with KERAS_BACKEND={keras.config.backend()} take --loop fit"
        )
    hk.init(options.strategy)
    keras.utils.set_random_seed(options.seed)
    keras.config.set_dtype_policy(POLICIES[options.precision])
    data = load(options.data, options.data_dir)
    if hk.world().rank == 0:
        record.note(synthetic=data.synthetic)
    train = hk.loader(data.x_train, data.y_train, batch_size=options.batch_size, seed=options.seed)
    # Keras asks a schedule after every batch, also where several make one update.
    steps = options.epochs * len(train)
    rate = {
        "none": options.lr,
        "exponential": keras.optimizers.schedules.ExponentialDecay(options.lr, steps, 0.1),
        "cosine": keras.optimizers.schedules.CosineDecay(options.lr, steps),
    }[options.schedule]
    accumulate = options.accumulate if options.accumulate > 1 else None
    adam = keras.optimizers.Adam(rate, gradient_accumulation_steps=accumulate)
    optimizer = hk.DistributedOptimizer(
        adam,
        lr_rule=options.lr_rule,
        warmup_epochs=options.warmup_epochs,
        steps_per_epoch=len(train) / options.accumulate,
    )
    model, loss = network(options.dropout), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if options.loop == "custom":
        custom_loop(model, optimizer, loss, train, data, options)
        return
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    validation = hk.validation_loader(data.x_test, data.y_test, batch_size=1000)
    hk.fit(model, train, validation_data=validation, epochs=options.epochs)


if __name__ == "__main__":
    main()
