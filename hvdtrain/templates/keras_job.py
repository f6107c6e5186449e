"""NAME: say here what it trains. Run it alone, or on many GPUs: python -m hvdtrain.submit --job NAME.py --gpus 1,2,4"""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import hvdtrain.keras as hk
from hvdtrain import job


def network() -> keras.Model:
    """Your model; begin it with keras.Input, so that its variables exist before the first step."""
    layers = keras.layers
    return keras.Sequential([keras.Input((64,)), layers.Dense(128, activation="relu"), layers.Dense(10)])


def main() -> None:
    # Options that every job has (--epochs, --batch-size, --lr, --seed, ...) with your defaults; add more with add_argument.
    # Each can be an axis of a grid: --batch-size 16,32 or --set dropout=0.1,0.5.
    options = job.parser(__doc__, epochs=10, batch_size=32, lr=0.1, warmup_epochs=1).parse_args()
    hk.init()  # finds this rank's place; a process that nothing launched is a world of one
    keras.utils.set_random_seed(options.seed)
    # Your data: arrays of all samples, the same on every rank. hvdtrain gives each rank its part.
    images, labels = load_digits(return_X_y=True)
    x, x_val, y, y_val = train_test_split(images / 16, labels, test_size=360, stratify=labels, random_state=0)
    train = hk.loader(x, y, batch_size=options.batch_size, seed=options.seed)  # batch size of one rank
    validation = hk.validation_loader(x_val, y_val, batch_size=256)
    # The learning rate for one rank: it is scaled by --lr-rule, and rises to that in the warm-up.
    sgd = keras.optimizers.SGD(options.lr, momentum=0.9)
    optimizer = hk.DistributedOptimizer(sgd, lr_rule=options.lr_rule, warmup_epochs=options.warmup_epochs)
    model, loss = network(), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    # Averages gradients, validates over all ranks, records each epoch, saves checkpoints and goes on from them.
    hk.fit(model, train, validation_data=validation, epochs=options.epochs)


if __name__ == "__main__":
    main()
