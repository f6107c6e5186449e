"""NAME: say here what it trains. Run it alone, or on many GPUs: python -m hvdtrain.submit --job NAME.py --gpus 1,2,4"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Subset, TensorDataset, random_split

import hvdtrain.torch as ht
from hvdtrain import job


def datasets() -> list[Subset[tuple[torch.Tensor, ...]]]:
    """Your data: anything that torch's DataLoader takes, the same on every rank. hvdtrain gives each rank its part."""
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.from_numpy(images).float() / 16, torch.from_numpy(labels))
    return random_split(data, [1437, 360], torch.Generator().manual_seed(0))


def network() -> nn.Module:
    """Your model."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def main() -> None:
    # Options that every job has (--epochs, --batch-size, --lr, --seed, ...) with your defaults; add more with add_argument.
    # Each can be an axis of a grid: --batch-size 16,32 or --set dropout=0.1,0.5.
    options = job.parser(__doc__, epochs=10, batch_size=32, lr=0.1, warmup_epochs=1).parse_args()
    world = ht.init()  # finds this rank's place; a process that nothing launched is a world of one
    torch.manual_seed(options.seed)
    train_data, validation_data = datasets()
    train = ht.loader(train_data, options.batch_size, seed=options.seed)  # batch size of one rank
    validation = ht.validation_loader(validation_data, 256)
    model = network().to(world.device)
    # The learning rate for one rank: it is scaled by --lr-rule, and rises to that in the warm-up.
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    model, optimizer = ht.distribute(model, optimizer, lr_rule=options.lr_rule, warmup_epochs=options.warmup_epochs)
    # Averages gradients, validates over all ranks, records each epoch, saves checkpoints and goes on from them.
    ht.fit(model, optimizer, nn.CrossEntropyLoss(), train, validation, epochs=options.epochs)


if __name__ == "__main__":
    main()
