"""A small training run: what tests of checkpoints save, restore and compare."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import penstock
import torch


class Loader:
    """Batches in an order that is its own, with a state."""

    def __init__(self) -> None:
        self.position = 0

    def next(self) -> torch.Tensor:
        self.position += 1
        return torch.full((4, 8), float(self.position % 7))

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class Run:
    """Model, optimizer, scheduler, loader, progress; every step draws from each random generator."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 8))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.9)
        self.loader = Loader()
        self.progress: dict[str, Any] = {"epoch": 0, "losses": []}
        self.state = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "loader": self.loader,
            "rng": penstock.Rng(),
            "progress": self.progress,
        }

    def step(self) -> float:
        noise = torch.randn(4, 8) + random.random() + np.random.rand()
        self.optimizer.zero_grad()
        loss = self.model(self.loader.next() + noise).square().mean()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.progress["losses"].append(loss.item())
        return float(loss.item())

    def steps(self, count: int) -> list[float]:
        return [self.step() for _ in range(count)]
