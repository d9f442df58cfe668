"""One of two gloo processes: updates every metric with its own batches and saves what `compute` gives."""

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from equipoise.metrics.attributes import AttributeF1
from equipoise.metrics.depth import DepthErrors
from equipoise.metrics.normals import NormalErrors
from equipoise.metrics.offsets import OffsetError
from equipoise.metrics.segmentation import SegmentationScores


def main(folder, rank):
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    metrics = {
        "segmentation": (SegmentationScores(5), "scores", "labels"),
        "depth": (DepthErrors(), "depth_prediction", "depth"),
        "depth by batches": (DepthErrors("batches"), "depth_prediction", "depth"),
        "normals": (NormalErrors(), "normal_prediction", "normals"),
        "normals by batches": (NormalErrors("batches"), "normal_prediction", "normals"),
        "offsets": (OffsetError(), "offset_prediction", "offsets"),
        "attributes": (AttributeF1(7), "logits", "attributes"),
    }
    for batch in torch.load(folder / "batches.pt", weights_only=True)[rank::2]:
        for metric, prediction, target in metrics.values():
            metric.update(batch[prediction], batch[target])
    torch.save({name: metric.compute() for name, (metric, _, _) in metrics.items()}, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
