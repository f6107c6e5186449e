"""CIFAR-10: two convolutions and two hidden layers in PyTorch; the losses of the published study were sums over batches."""

import copy

import torch
from torch import nn
from torch.utils.data import TensorDataset

import hvdtrain.torch as ht
from hvdtrain import job, record
from hvdtrain.data.sets import ImageSet, load

#: Mean and deviation of the training images, for each colour.
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def datasets(data: ImageSet) -> tuple[TensorDataset, TensorDataset]:
    """Training and test images, shape (n, 3, 32, 32), normalised."""
    mean, deviation = (torch.tensor(each).view(1, -1, 1, 1) for each in (MEAN, DEVIATION))

    def part(images, labels) -> TensorDataset:
        x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
        return TensorDataset((x - mean) / deviation, torch.from_numpy(labels))

    return part(data.x_train, data.y_train), part(data.x_test, data.y_test)


def network() -> nn.Module:
    """The study's: convolution, ReLU, pooling, twice; two hidden layers; 62,006 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def main() -> None:
    parser = job.parser(__doc__, epochs=10, batch_size=64, lr=0.001, strategies=("horovod", "ddp", "single"))
    parser.add_argument("--data", default="cifar10", choices=["cifar10", "synthetic"], help="data set")
    parser.add_argument("--data-dir", help="folder that holds it; default: where `hvdtrain fetch` puts it")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16", "fp16"], help="of the layers")
    parser.add_argument(
        "--warm-up-run", action="store_true", help="train one epoch first that does not count, as the study did"
    )
    options = parser.parse_args()
    world = ht.init(options.strategy)
    data = load("cifar10", options.data_dir) if options.data == "cifar10" else synthetic_cifar()
    train_data, test_data = datasets(data)
    if world.rank == 0:
        record.note(synthetic=data.synthetic)

    torch.manual_seed(options.seed)
    loss, model = nn.CrossEntropyLoss(), network().to(world.device)
    if options.warm_up_run:
        warm_up(copy.deepcopy(model), loss, train_data, options.batch_size, world.device)
    train = ht.loader(train_data, options.batch_size, seed=options.seed)
    test = ht.validation_loader(test_data, 1000)
    adam = torch.optim.Adam(model.parameters(), lr=options.lr)
    model, optimizer = ht.distribute(model, adam, lr_rule=options.lr_rule, warmup_epochs=options.warmup_epochs)
    history = ht.fit(model, optimizer, loss, train, test, epochs=options.epochs, precision=options.precision)
    if world.rank == 0:
        batches = len(train_data) / options.batch_size
        sums = " ".join(f"{epoch.train_loss * batches:.3f}" for epoch in history)
        print(f"losses summed over the batches of one rank's size, as the study prints them: {sums}")


def warm_up(model: nn.Module, loss: nn.Module, data: TensorDataset, batch_size: int, device: str) -> None:
    """One epoch of a copy that is thrown away: libraries load and caches fill before anything is timed."""
    for x, y in zip(*(tensor.split(batch_size) for tensor in data.tensors), strict=True):
        loss(model(x.to(device)), y.to(device)).backward()


def synthetic_cifar() -> ImageSet:
    """Made-up images of CIFAR-10's shape, to measure speed with."""
    from hvdtrain.data.sets import synthetic

    return synthetic(shape=(32, 32, 3))


if __name__ == "__main__":
    main()
