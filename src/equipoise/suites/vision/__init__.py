"""What the three image benchmarks share: packed caches, batches, networks, augmentation."""
