"""MNIST or Fashion-MNIST: a perceptron with one hidden layer, in PyTorch over ranks, or in numpy or GPU kernels of one's own."""

import argparse
import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hvdtrain.torch as ht
from hvdtrain import engines, job, record
from hvdtrain.data.sets import load
from hvdtrain.data.shard import epoch_order
from hvdtrain.errors import UserError

OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "adadelta": torch.optim.Adadelta,
}
#: Options that engine "torch" alone obeys: their defaults, and what the other engines do in any case.
OF_TORCH = {
    "optimizer": ("sgd",),
    "lr_rule": ("auto", "none"),
    "warmup_epochs": (0.0,),
    "workers": (0,),
    "strategy": ("horovod", "single"),
    "precision": ("fp32",),
}


def arrays(options: argparse.Namespace) -> tuple[np.ndarray, ...]:
    """Flat images in [0, 1] and labels: of the study's sizes, both cut from the data set's training images."""
    data = load(options.data, options.data_dir)
    x, y = data.x_train.reshape(len(data.x_train), -1), data.y_train
    cut, end = options.train_images, options.train_images + options.test_images
    if end > len(x):
        raise SystemExit(f"error: {options.data} has {len(x):,} images; {end:,} were asked for")
    return x[:cut].astype(np.float32) / 255, y[:cut], x[cut:end].astype(np.float32) / 255, y[cut:end]


def with_horovod(options: argparse.Namespace) -> None:
    """Engine "torch": any number of ranks, any optimizer of the study's sweeps."""
    world = ht.init(options.strategy)
    torch.manual_seed(options.seed)
    x_train, y_train, x_test, y_test = (torch.from_numpy(each) for each in arrays(options))
    model = nn.Sequential(nn.Linear(x_train.shape[1], options.hidden), nn.ReLU(), nn.Linear(options.hidden, 10))
    model = model.to(world.device)
    optimizer = OPTIMIZERS[options.optimizer](model.parameters(), lr=options.lr)
    train = ht.loader(
        TensorDataset(x_train, y_train), options.batch_size, seed=options.seed, num_workers=options.workers
    )
    test = ht.validation_loader(TensorDataset(x_test, y_test), 1024)
    model, optimizer = ht.distribute(model, optimizer, lr_rule=options.lr_rule, warmup_epochs=options.warmup_epochs)
    loss = nn.CrossEntropyLoss()
    ht.fit(model, optimizer, loss, train, test, epochs=options.epochs, precision=options.precision)


def with_engine(options: argparse.Namespace) -> None:
    """The other engines: one process, plain SGD, forward and backward passes timed apart as in the study."""
    for name, legal in OF_TORCH.items():
        if (given := getattr(options, name)) not in legal:
            option = f"--{name.replace('_', '-')} {given}"
            raise UserError(
                f"{option} is for --engine torch; {options.engine} is one process with plain SGD at a constant rate"
            )
    if options.engine == "numpy":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # or what it measures would be recorded as of a GPU that it never uses
    ht.init("single")
    record.note(batch_size=options.batch_size, accumulate=1, precision="fp32", lr_rule="none", warmup_epochs=0.0)
    x_train, y_train, x_test, y_test = arrays(options)
    weights = engines.Weights.random(x_train.shape[1], options.hidden, 10, options.seed)
    first = slice(options.batch_size)
    engine = engines.create(options.engine, weights, compiled_for=(x_train[first], y_train[first]))
    for epoch in range(1, options.epochs + 1):
        began, losses = time.perf_counter(), []
        order = epoch_order(len(x_train), options.seed, epoch, shuffle=True)
        for start in range(0, len(order), options.batch_size):
            chosen = order[start : start + options.batch_size]
            losses.append(engine.step(x_train[chosen], y_train[chosen], options.lr) * len(chosen))
        trained = time.perf_counter()
        accuracy, loss = engines.accuracy(engine, x_test, y_test), sum(losses) / len(order)
        ended = time.perf_counter()
        ht.record_epoch(
            epoch,
            samples=len(order),
            seconds=ended - began,
            seconds_val=ended - trained,
            train_loss=loss,
            val_acc=accuracy,
            lr=options.lr,
        )
        print(
            f"epoch {epoch}/{options.epochs}  loss {loss:.4f}  val_acc {accuracy:.4f}  {trained - began:.2f} s",
            flush=True,
        )
    seconds = engine.seconds
    print(f"engine {options.engine}: forward {seconds.forward:.3f} s, backward and update {seconds.backward:.3f} s")


def main() -> None:
    parser = job.parser(__doc__, epochs=5, batch_size=64, lr=0.1, strategies=("horovod", "ddp", "single"))
    parser.add_argument("--data", default="mnist", choices=["mnist", "fashion-mnist"], help="data set")
    parser.add_argument("--data-dir", help="folder that holds it; default: where `hvdtrain fetch` puts it")
    parser.add_argument("--hidden", type=job.positive_int, default=128, help="units of the hidden layer")
    parser.add_argument("--optimizer", default="sgd", choices=list(OPTIMIZERS), help="with engine torch")
    parser.add_argument("--workers", type=job.natural, default=0, help="processes that load data, with engine torch")
    parser.add_argument("--train-images", type=job.positive_int, default=37_800, help="images to train on")
    parser.add_argument("--test-images", type=job.positive_int, default=4_200, help="images to test on")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16", "fp16"], help="with engine torch")
    engine_names = ["torch", "numpy", "naive", "explicit", "tiled"]
    parser.add_argument(
        "--engine", default="torch", choices=engine_names, help="what computes; the last three need a GPU"
    )
    options = parser.parse_args()
    if options.engine == "torch":
        with_horovod(options)
    else:
        with_engine(options)


if __name__ == "__main__":
    main()
