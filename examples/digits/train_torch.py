"""Trains a linear model on the digits: python train_torch.py TARGET CHECKPOINT, as in train_torch.py digits@v1 saved.pt

It saves model, optimizer and the loader's state every few batches. After a kill, the same call goes on from there: the
samples come in the same order, with any --workers, and on the same machine the model ends with the same weights. The
last line has hashes of both. It needs PyTorch and Pillow.
"""

import argparse
import hashlib
import io
import os

import torch
from PIL import Image

import dsv
from dsv.torch import Loader

parser = argparse.ArgumentParser()
parser.add_argument("target")
parser.add_argument("checkpoint")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--every", type=int, default=10, help="batches between two checkpoints")


def read(sample):
    """Return a sample as a tensor, with its label and its path: it runs in the workers."""
    pixels = Image.open(io.BytesIO(sample.data)).tobytes()
    return (
        torch.frombuffer(bytearray(pixels), dtype=torch.uint8) / 255,
        int(sample.path.split("/")[0]),
        sample.path,
    )


def save(path, **state):
    """Replace the checkpoint at once, so that a kill leaves the old one or the new one."""
    torch.save(state, f"{path}.new")
    os.replace(f"{path}.new", path)  # noqa: PTH105


def main():
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    samples = dsv.open(options.target).samples("*/*.png")
    loader = Loader(samples, 32, seed=7, transform=read, num_workers=options.workers)
    order, step, right = hashlib.sha256().hexdigest(), 0, []
    if os.path.exists(options.checkpoint):  # noqa: PTH110
        known = torch.load(options.checkpoint)
        model.load_state_dict(known["model"])
        optimizer.load_state_dict(known["optimizer"])
        loader.load_state_dict(known["loader"])
        order, step, right = known["order"], known["step"], known["right"]
        print(f"goes on with epoch {loader.epoch}, step {step}", flush=True)

    while loader.epoch < options.epochs:
        for images, labels, paths in loader:
            scores = model(images)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(scores, labels).backward()
            optimizer.step()
            order = hashlib.sha256("\n".join([order, *paths]).encode()).hexdigest()
            right = [*right, (scores.argmax(1) == labels).float().mean().item()][-20:]
            step += 1
            print(f"step {step}", flush=True)
            if step % options.every == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                save(
                    options.checkpoint,
                    **state,
                    loader=loader.state_dict(),
                    order=order,
                    step=step,
                    right=right,
                )

    weights = hashlib.sha256(repr(model.weight.tolist()).encode()).hexdigest()
    accuracy = sum(right) / len(right)
    print(f"{step} steps, accuracy {accuracy:.4f}, order {order[:16]}, weights {weights[:16]}")


if __name__ == "__main__":
    main()
