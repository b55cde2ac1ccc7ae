"""MR² in a training loop of your own: one more argument for the loss, and nothing else.

    python examples/own_loop.py

The loss takes logits, targets and the features that the last layer sees. It keeps each class's spread while
it trains, and gives classes that spread more a larger margin.
"""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import probe

torch.manual_seed(0)
X, y = load_digits(return_X_y=True)
tensors = (torch.tensor(X / 16, dtype=torch.float32), torch.tensor(y))
X_train, X_test, y_train, y_test = train_test_split(*tensors, test_size=0.25, stratify=y, random_state=0)

body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
head = nn.Linear(32, 10)
# A net that starts from random weights needs scale="total": in units of the spread (the default, for
# pretrained nets) features that carry no class yet would be pulled to one point.
loss = probe.losses.make("mr2", num_classes=10, scale="total")
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-2)

for _epoch in range(20):
    for rows in torch.randperm(len(X_train)).split(128):
        features = body(X_train[rows])
        optimizer.zero_grad()
        loss(head(features), y_train[rows], features).backward()
        optimizer.step()

with torch.no_grad():
    correct = head(body(X_test)).argmax(dim=1) == y_test
accuracy = [float(correct[y_test == k].float().mean()) for k in range(10)]
print(f"accuracy {float(correct.float().mean()):.3f}, worst class {min(accuracy):.3f}")
