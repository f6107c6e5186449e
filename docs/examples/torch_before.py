"""Handwritten digits with plain PyTorch, on one device."""

import torch
from sklearn.datasets import load_digits
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
images, labels = load_digits(return_X_y=True)
data = torch.utils.data.TensorDataset(torch.from_numpy(images / 16).float(), torch.from_numpy(labels))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True, drop_last=True)
for epoch in range(1, 6):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
